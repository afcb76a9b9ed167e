"""One picture of the job as lines: head, verdict, table of ranks, foot; for a screen of a given size, or as long as it gets."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from annotq.cli.top.columns import columns_for, line_of, printable
from annotq.cli.top.head import job_line, ranks_line, verdict_line, window_line
from annotq.cli.top.order import chosen, ordered
from annotq.cli.top.rows import RankRow, Snapshot
from annotq.cli.top.view import View

_VERDICT_LINES = 3
# Time lost, of a step, from which a rank is worth a second look.
_WORTH_A_LOOK = 0.02

HELP = """\
q  Ctrl-C        quit
s  S             next, previous order; r turns it round
p  space         pause: nothing is asked meanwhile
/                choose ranks, such as 0-63,777; Escape shows all again
up down j k      move; Page Up, Page Down, Home, End

state            running; silent: no sign of life for 30 s, or 3 of its steps;
                 ending: its files are on their way; stopped; gone: it died
step  time  vs   last step; what a step takes, by the last five that were seen;
                 that over the median of the ranks
behind           compute time a step in the newest window beyond the ranks'
                 median, summed over its regions
slowest region   where it loses most of that; ratio: to the ranks' median there
wait             of the step's time: waiting for the last rank in collectives
age              since the last sign of life
-                not known, or not yet

annotq top --show-sql prints the SQL behind the numbers. Any key goes back."""


@dataclass(frozen=True)
class Trouble:
    """What went wrong lately; empty when nothing did. asking: with the last question; analysis: with window or verdict."""

    asking: str = ""
    analysis: str = ""


def shown_rows(snapshot: Snapshot, view: View) -> list[RankRow]:
    """All ranks that the view has, in its order."""
    return ordered(chosen(snapshot.ranks, view.ranges), view.order, view.backwards)


def head(snapshot: Snapshot, trouble: Trouble, width: int, verdict_lines: int = _VERDICT_LINES) -> list[Text]:
    """What the ranks have in common, what is wrong with the numbers, and the verdict, in at most so many lines."""
    lines = [Text(line, style="bold") for line in _wrapped(job_line(snapshot), width)]
    for text in (ranks_line(snapshot), window_line(snapshot)):
        lines += [Text(line) for line in _wrapped(text, width)]
    lines += [Text(line, style="bold reverse") for line in _wrapped(trouble.asking, width) if line]
    judgement = snapshot.judgement
    style = "bold" if judgement is not None and judgement.verdict in ("straggler", "imbalance") else ""
    # Where nobody answers at all, that is said already.
    verdict = _wrapped(verdict_line(snapshot, "" if trouble.asking else trouble.analysis), width)
    if len(verdict) > verdict_lines:
        verdict = [*verdict[: verdict_lines - 1], f"{verdict[verdict_lines - 1][: width - 4]} ..."]
    return lines + [Text(line, style=style) for line in verdict if line]


def table(rows: Sequence[RankRow], view: View, width: int) -> list[Text]:
    """The titles, that of the order underlined, and a line per row."""
    columns = columns_for(width)
    title = Text(line_of([column.title for column, _ in columns], columns), style="bold")
    for column, _ in columns:
        if column.order == view.order:
            title.highlight_words([column.title], "underline")
    lines = [Text(line_of([column.text(row) for column, _ in columns], columns), style=_style(row)) for row in rows]
    return [title, *lines]


def screen(snapshot: Snapshot, view: View, trouble: Trouble, width: int, height: int) -> list[Text]:
    """Exactly `height` lines of at most `width`. Where there is no room for the head as well, the ranks come first."""
    if view.help:
        return _filled([Text(line) for line in HELP.splitlines()], [], width, height)
    rows = shown_rows(snapshot, view)
    above = [*head(snapshot, trouble, width)[: _head_lines(height)], Text("")]
    page = page_size(len(above), height)
    first = max(0, min(view.top, len(rows) - page))
    shown = rows[first : first + page]
    return _filled(above + table(shown, view, width), [_foot(view, first, len(shown), len(rows), width)], width, height)


def _head_lines(height: int) -> int:
    """On a small screen the ranks have the other half."""
    return max(0, min(height - 5, height // 2))


def page_size(above: int, height: int) -> int:
    """Rows that fit below the head: less the titles and the foot."""
    return max(1, height - above - 2)


def rows_on_screen(snapshot: Snapshot, trouble: Trouble, width: int, height: int) -> int:
    return page_size(len(head(snapshot, trouble, width)[: _head_lines(height)]) + 1, height)


def _foot(view: View, first: int, shown: int, rows: int, width: int) -> Text:
    if view.typed is not None:
        return Text(f"ranks, such as 0-63,777: {view.typed}_", style="bold")
    if view.said:
        return Text(view.said, style="bold red")
    order = f"{view.order}{' reversed' if view.backwards else ''}"
    keys = f"q quit  s order: {order}  r reverse  p pause  / ranks  ? help"
    place = f"{first + 1:,}-{first + shown:,} of {rows:,}" if rows else "no such rank"
    if view.paused:
        keys = f"PAUSED  {keys}"
    text = f"{keys}{place.rjust(width - len(keys))}" if len(keys) + len(place) < width else f"{place}  {keys}"
    return Text(text, style="reverse" if view.paused else "dim")


def _filled(lines: list[Text], foot: list[Text], width: int, height: int) -> list[Text]:
    room = max(0, height - len(foot))
    lines = [*lines, *(Text() for _ in range(room))][:room] + foot
    for line in lines:
        line.no_wrap = True
        line.truncate(width)
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(printable(text), max(width, 20), break_on_hyphens=False) or [""]


def _style(row: RankRow) -> str:
    if row.state in ("gone", "silent"):
        return "bold red"
    if row.behind_ns is not None and row.step_ns and row.behind_ns > _WORTH_A_LOOK * row.step_ns:
        return "bold"
    return "dim" if row.state == "stopped" else ""
