"""Without a screen: one line per refresh, the whole picture once, or JSON."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

import typer

from annotq.agent.errors import AnnotqError
from annotq.cli.errors import note
from annotq.cli.straggler_text import VERDICTS
from annotq.cli.top.columns import printable, region_text, short_age, short_duration, signed_duration
from annotq.cli.top.columns import ratio_text as times
from annotq.cli.top.frame import Trouble, head, shown_rows, table
from annotq.cli.top.rows import RankRow, Snapshot
from annotq.cli.top.view import View
from annotq.cli.top.watch import NoJobError, Watch

# Of the ranks that a line names.
_WORST_NAMED = 3
# Lines of a verdict that nobody has to cut.
_WHOLE = 100


def picture(snapshot: Snapshot, view: View, trouble: Trouble, width: int) -> str:
    """Head and table of all chosen ranks as text."""
    rows = shown_rows(snapshot, view)
    lines = [*head(snapshot, trouble, width, _WHOLE), None, *table(rows, view, width)]
    return "\n".join("" if line is None else line.plain for line in lines)


def line(snapshot: Snapshot, view: View) -> str:
    """One refresh in one line: time, job, step, speed, states, the worst ranks, the verdict's first word."""
    when = time.strftime("%H:%M:%S", time.localtime(snapshot.now_ns / 1e9))
    step = "-" if snapshot.newest_step is None else f"{snapshot.newest_step:,}"
    speed = "-" if snapshot.steps_per_second is None else f"{snapshot.steps_per_second:.3g}"
    of = f"/{snapshot.ranks_expected}" if snapshot.ranks_expected else ""
    states = "".join(f", {count} {state}" for state, count in snapshot.states.items())
    parts = [f"{when} {snapshot.job} step {step}, {speed} steps/s, ranks {len(snapshot.ranks)}{of}{states}"]
    worst = ", ".join(map(_rank, shown_rows(snapshot, view)[:_WORST_NAMED]))
    parts.append(f"{view.order}: {worst}" if worst else "no such rank")
    if snapshot.judgement is not None and snapshot.judgement.verdict is not None:
        parts.append(VERDICTS[snapshot.judgement.verdict])
    return " | ".join(parts)


def _rank(row: RankRow) -> str:
    words = [f"rank {row.rank}"]
    if row.state not in (None, "running"):
        words.append(f"{row.state} ({short_age(row.age_ns)})")
    if row.behind_ns is not None and row.ratio is not None:
        words.append(f"{signed_duration(row.behind_ns)} a step, {region_text(row)} {times(row.ratio)}")
    elif row.step_ns is not None:
        words.append(short_duration(row.step_ns))
    return " ".join(words)


def json_of(snapshot: Snapshot, view: View, trouble: Trouble) -> dict[str, object]:
    """The refresh for a program: everything the screen shows, numbers as they are, None where nothing is known."""
    totals, judgement = snapshot.totals, snapshot.judgement
    return {
        "place": snapshot.place,
        "job": snapshot.job,
        "attempt": snapshot.attempt,
        "now_ns": snapshot.now_ns,
        "ranks_seen": len(snapshot.ranks),
        "ranks_expected": snapshot.ranks_expected,
        "ranks_missing": list(snapshot.missing),
        "states": snapshot.states,
        "newest_step": snapshot.newest_step,
        "steps_per_second": snapshot.steps_per_second,
        "windows": snapshot.windows,
        "clock_error_ns": snapshot.clock_error_ns,
        "newest_window": None
        if totals is None
        else {
            "first_step": totals.window.first_step,
            "last_step": totals.window.last_step,
            "ranks": totals.ranks,
            "graph_events": totals.graph_events,
            "matched": totals.named,
            "collectives": totals.collectives,
            "judged": totals.judged,
        },
        "verdict": None if judgement is None else judgement.verdict,
        "verdict_sentence": None if judgement is None else judgement.sentence,
        "verdict_age_seconds": None if judgement is None else round(time.monotonic() - judgement.made, 1),
        "problem": trouble.analysis or None,
        "ranks": [asdict(row) for row in shown_rows(snapshot, view)],
    }


def run_plain(watch: Watch, view: View, interval: float, once: bool, as_json: bool, width: int) -> None:
    """Print until Ctrl-C or a closed pipe; once: a single refresh. width: of the table that --once prints.

    Raises AnnotqError when the first look fails. Later ones are tried again, which stderr says once.
    """
    failed = ""
    looked = False
    while True:
        try:
            snapshot = watch.look(wait=True)
        except AnnotqError as error:
            if once or not (looked or isinstance(error, NoJobError)):
                raise
            if error.message != failed:
                note(f"{error.message} Trying again.")
            failed = error.message
        else:
            if failed:
                note(f"{snapshot.place} answers again.")
            failed, looked = "", True
            typer.echo(_text(snapshot, view, Trouble(analysis=watch.analysis.problem), once, as_json, width))
            sys.stdout.flush()
        if once:
            return
        time.sleep(interval)


def _text(snapshot: Snapshot, view: View, trouble: Trouble, once: bool, as_json: bool, width: int) -> str:
    if as_json:
        return json.dumps(json_of(snapshot, view, trouble))
    if once:
        return picture(snapshot, view, trouble, width)
    return printable(line(snapshot, view))
