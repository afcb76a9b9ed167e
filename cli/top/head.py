"""The head of the picture: what the ranks have in common, what the numbers rest on, and what was found."""

from __future__ import annotations

import time

from annotq.cli.straggler_text import VERDICTS
from annotq.cli.top.columns import NOTHING, short_age, short_duration
from annotq.cli.top.rows import Snapshot

# Ranges of missing ranks that are named.
_RANGES_NAMED = 6


def job_line(snapshot: Snapshot) -> str:
    """Job, step, speed and place."""
    attempt = f" attempt {snapshot.attempt}" if snapshot.attempt else ""
    others = f" (one of {snapshot.jobs} jobs)" if snapshot.jobs > 1 else ""
    step = NOTHING if snapshot.newest_step is None else f"{snapshot.newest_step:,}"
    speed = snapshot.steps_per_second
    pace = NOTHING if speed is None else f"{speed:.3g}" if speed < 1000 else f"{speed:,.0f}"
    return f"{snapshot.job}{attempt}{others}   step {step}   {pace} steps/s   {snapshot.place}"


def ranks_line(snapshot: Snapshot) -> str:
    """Ranks seen of expected, by state, and who is missing."""
    from annotq.collector.receipt import ranges

    of = f" of {snapshot.ranks_expected:,}" if snapshot.ranks_expected else ""
    states = ", ".join(f"{count:,} {state}" for state, count in snapshot.states.items())
    text = f"{len(snapshot.ranks):,}{of} ranks" + (f": {states}" if states else "")
    if snapshot.missing:
        named = ranges(snapshot.missing).split(", ")
        more = ", ..." if len(named) > _RANGES_NAMED else ""
        text += f"   missing {len(snapshot.missing):,}: {', '.join(named[:_RANGES_NAMED])}{more}"
    spooled = [row for row in snapshot.ranks if row.dropped_traces]
    if spooled:
        text += f"   {sum(row.dropped_traces for row in spooled):,} traces dropped for space"
    if notes := sum(row.notes for row in snapshot.ranks):
        text += f"   {notes:,} notes of agents (annotq status)"
    return text


def window_line(snapshot: Snapshot) -> str:
    """The newest window, how much of it has a name, what was not judged, and the clocks."""
    totals, newest = snapshot.totals, snapshot.newest
    if totals is None:
        if newest is not None:
            return f"newest window: steps {newest.first_step}-{newest.last_step}, asking ..."
        return "no steps in the profiler windows" if snapshot.windows else "no profiler window yet"
    window = totals.window
    if not totals.ranks:
        return f"newest window: steps {window.first_step}-{window.last_step}, no GPU work in it"
    parts = [f"newest window: steps {window.first_step}-{window.last_step} of {totals.ranks:,} ranks"]
    if totals.graph_events:
        parts.append(f"coverage {_percent(totals.named, totals.graph_events)} of graph kernels named")
    if totals.judged < totals.collectives:
        parts.append(f"waits of {_percent(totals.judged, totals.collectives)} of collectives judged")
    error = snapshot.clock_error_ns
    parts.append("clock error not known" if error is None else f"clock error {error:,} ns")
    return ", ".join(parts)


def verdict_line(snapshot: Snapshot, problem: str) -> str:
    """The verdict with its age; problem: why there is no newer one. Empty before the first."""
    judgement = snapshot.judgement
    late = f" (not judged again: {problem})" if problem else ""
    if judgement is None:
        return f"No verdict: {problem}" if problem else ""
    if judgement.verdict is None:
        return ". ".join([*_most_behind(snapshot), f"No verdict: {judgement.sentence}{late}"])
    age_ns = int((time.monotonic() - judgement.made) * 1e9)
    return f"{VERDICTS[judgement.verdict]} (judged {short_age(age_ns)} ago): {judgement.sentence}{late}"


def _most_behind(snapshot: Snapshot) -> list[str]:
    """What the newest window alone says; no test of it was made."""
    row = max(snapshot.ranks, key=lambda row: row.behind_ns or 0.0, default=None)
    if row is None or not row.behind_ns or row.ratio is None:
        return []
    return [
        f"Most time is lost by rank {row.rank}: {short_duration(row.behind_ns)} a step of the newest window, the largest part "
        f"in {row.region} {row.phase} ({row.ratio:.2f} times the ranks' median)"
    ]


def _percent(part: int, whole: int) -> str:
    """100 % only for all of it."""
    return "100 %" if part == whole else f"{min(100 * part / whole, 99.9):.3g} %"
