"""The regions by the time they gained or lost, each with its interval, and the table of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from annotq.cli.html.comparison_axis import Axis, linear_axis, logarithmic_axis, signed_duration
from annotq.cli.html.comparison_sentences import name_of, slowest_counts, slowest_difference
from annotq.cli.html.comparison_sides import Compared
from annotq.cli.html.comparison_sql import changes_statement
from annotq.cli.html.figure import Figure, without_data
from annotq.cli.html.rendering import duration, render
from annotq.collector.diff import Change
from annotq.collector.diff_sides import Key

# Rows of the picture, and of the table; `annotq diff` has them all.
MOST_DRAWN = 24
MOST_LISTED = 2_000
# New and vanished regions that are named.
MOST_NAMED = 12

Rows = Sequence[Change[Key]]


@dataclass(frozen=True)
class Mark:
    """A difference on an axis, in per cent of the width. interval, slowest: None where there is none to show."""

    at: float
    interval: tuple[float, float] | None
    slowest: float | None


@dataclass(frozen=True)
class Drawn:
    """One row of the picture. marks: by name of the axis. direction: slower, faster, or empty for what is
    neither; median_direction, slowest_direction: the same of the ranks' median and of the slowest rank alone."""

    row: Change[Key]
    name: str
    direction: str
    median_direction: str
    slowest_direction: str
    interval_text: str
    slowest_text: str
    marks: dict[str, Mark]


def changes_figure(before: Compared, after: Compared, rows: Rows, inflation: float) -> Figure:
    """Those with the largest difference, a dot and an interval each around a zero line."""
    title = "Regions by time gained or lost a step"
    statements = [changes_statement(before.side, after.side, ("compute", "transfer"), inflation, _most(before, after))]
    regions = [row for row in rows if row.key[0] != "step"]
    if not regions:
        return without_data("regions", title, "Neither side has a region or a judged collective in a step.", statements)
    lacking = [side.title for side in (before, after) if not side.has_data]
    if lacking:
        why = f"{lacking[0]} has no GPU work in a step: all regions are those of the other side, and none can be compared."
        return without_data("regions", title, why, statements)
    drawn = regions[:MOST_DRAWN]
    axes = {"linear": linear_axis(_values(drawn), with_zero=True), "log": logarithmic_axis(_values(drawn))}
    body = render(
        "comparison_changes.html",
        axes=axes,
        rows=[_drawn(row, axes) for row in drawn],
        left=len(regions) - len(drawn),
        new=[row for row in regions if row.change == "new"],
        vanished=[row for row in regions if row.change == "vanished"],
        named=MOST_NAMED,
        signed=signed_duration,
        name_of=name_of,
        shared=any(row.change not in ("new", "vanished") for row in regions),
    )
    lead = (
        "The dot is the difference of the ranks' median, the bar its 95 % interval, the diamond the difference of the slowest "
        "rank; orange and to the right got slower, blue and to the left got faster, grey is no change that counts. A ring has "
        "one side only: a new or vanished region. Each interval holds for itself: of 100 regions that did not change, about "
        "five lie outside of theirs by chance."
    )
    return Figure("regions", title, lead, body, statements)


def table_figure(before: Compared, after: Compared, rows: Rows, inflation: float) -> Figure:
    """Every row of annotq diff, to sort, filter and copy."""
    statements = [
        changes_statement(before.side, after.side, ("step", "compute", "transfer"), inflation, _most(before, after))
    ]
    title = "All regions"
    if not rows:
        return without_data("all", title, "There is nothing to compare.", statements)
    ordered = sorted(rows, key=lambda row: row.key[0] != "step")  # the step first, as in annotq diff
    body = render(
        "comparison_table.html",
        rows=ordered[:MOST_LISTED],
        left=max(0, len(rows) - MOST_LISTED),
        signed=signed_duration,
    )
    lead = (
        "Times are medians over the steps of the ranks' median, per step; slowest: of the slowest rank. Compute leaves "
        "communication out, transfer leaves the wait out. Copied, it has the columns of annotq diff, in ns."
    )
    return Figure("all", title, lead, body, statements)


def _most(before: Compared, after: Compared) -> int:
    return max(before.most_steps, after.most_steps)


def _values(rows: Rows) -> list[float]:
    found = []
    for row in rows:
        found += [value for value in (row.difference_ns, row.low_ns, row.high_ns) if value is not None]
        if (slowest := slowest_difference(row)) is not None:
            found.append(slowest)
    return found


def _drawn(row: Change[Key], axes: dict[str, Axis]) -> Drawn:
    word = row.change
    worse = word.startswith("slower") or word == "new"
    direction = "slower" if worse else "faster" if word.startswith("faster") or word == "vanished" else ""
    interval = None if row.low_ns is None or row.high_ns is None else (row.low_ns, row.high_ns)
    slowest = slowest_difference(row)
    marks = {
        name: Mark(
            axis.at(row.difference_ns),
            None if interval is None else (axis.at(interval[0]), axis.at(interval[1])),
            None if slowest is None else axis.at(slowest),
        )
        for name, axis in axes.items()
    }
    return Drawn(
        row=row,
        name=name_of(row.key),
        direction=direction,
        median_direction="" if word.endswith("on some ranks") else direction,
        slowest_direction="" if slowest is None or not slowest_counts(row) else "slower" if slowest > 0 else "faster",
        interval_text=signed_duration(None) if interval is None else " to ".join(map(signed_duration, interval)),
        slowest_text=f"{duration(row.slowest_a_ns)} → {duration(row.slowest_b_ns)}",
        marks=marks,
    )
