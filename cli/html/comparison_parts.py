"""Where a step's time goes on each side: compute, transfer, wait, launch gap, and the rest."""

from __future__ import annotations

from dataclasses import dataclass

from annotq.cli.html.comparison_axis import Axis, linear_axis, signed_duration
from annotq.cli.html.comparison_sentences import PARTS, mean_parts
from annotq.cli.html.comparison_sides import Compared
from annotq.cli.html.comparison_times import parts_statement
from annotq.cli.html.figure import Figure, without_data
from annotq.cli.html.rendering import duration, render

# Ranks with bars of their own: those whose parts changed unlike those of the others.
MOST_RANKS = 6

CLASSES = {"compute": "compute", "transfer": "transfer", "wait": "wait", "launch gap": "gap", "other": "other"}


@dataclass(frozen=True)
class Piece:
    """A part of a bar: from and width in per cent of the picture's width."""

    name: str
    css: str
    at: float
    width: float
    text: str


@dataclass(frozen=True)
class Bar:
    """A side's mean step. pieces: empty for the row of differences, which has texts only."""

    word: str
    period: str
    texts: tuple[str, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Pair:
    """A title (all ranks, rank 3) and its bars: before, after, difference; those that exist."""

    title: str
    bars: tuple[Bar, ...]


def parts_figure(before: Compared, after: Compared) -> Figure:
    title = "Where a step's time goes"
    parts = (before.parts, after.parts)
    sides = list(zip(("before", "after"), (before, after), parts, strict=True))
    statements = [parts_statement(side.side, cut.asked) for _, side, cut in sides]
    means = [mean_parts(cut.sample) for cut in parts]
    failed = next((f"{word}: {cut.failure}" for word, _, cut in sides if cut.failure), "")
    if failed:
        why = f"The steps could not be cut into parts ({failed.rstrip('.')}). The statements below ask for it."
        return without_data("parts", title, why, statements)
    if not any(means):
        return without_data(
            "parts", title, "Neither side has GPU work in a step that could be cut into parts.", statements
        )
    axis = linear_axis(
        [mean["period_ns"] for mean in means if mean] + [row.period_ns for cut in parts for row in cut.rows],
        with_zero=True,
    )
    of_ranks = [{row.rank: mean_parts([row]) for row in cut.rows} for cut in parts]
    chosen = _apart(of_ranks, means)
    pairs = [_pair("all ranks", means, axis)]
    pairs += [_pair(f"rank {rank}", [side.get(rank, {}) for side in of_ranks], axis) for rank in chosen]
    body = render(
        "comparison_parts.html",
        axis=axis,
        pairs=pairs,
        names=[name for name, _ in PARTS],
        classes=CLASSES,
        sampled=[
            f"{len(cut.sample)} of {len(side.ranks)} ranks {word}" for word, side, cut in sides if cut.asked is not None
        ],
        left=len(of_ranks[0] | of_ranks[1]) - len(chosen),
    )
    lead = (
        "Means over the steps, so that the parts add up to the step (the findings above give medians). Each moment counts once: "
        "compute first, then transfer that no compute covers, then waiting for the last rank, then the gap before a step's first "
        "work."
    )
    return Figure("parts", title, lead, body, statements)


def _apart(of_ranks: list[dict[int, dict[str, float]]], means: list[dict[str, float]]) -> list[int]:
    """The ranks whose parts changed unlike those of all ranks, in rank order; those of one side only are the last choice."""

    def apart(rank: int) -> float:
        first, second = (side.get(rank) for side in of_ranks)
        if first is None or second is None:
            return -1.0
        usual = [means[1][column] - means[0][column] for _, column in PARTS]
        own = [second[column] - first[column] for _, column in PARTS]
        return max(abs(one - other) for one, other in zip(own, usual, strict=True))

    ranks = sorted(of_ranks[0] | of_ranks[1], key=lambda rank: (-apart(rank), rank))
    return sorted(ranks[:MOST_RANKS])


def _pair(title: str, means: list[dict[str, float]], axis: Axis) -> Pair:
    bars = [_bar(word, mean, axis) for word, mean in zip(("before", "after"), means, strict=True) if mean]
    if len(bars) == 2:
        first, second = means
        texts = tuple(signed_duration(second[column] - first[column]) for _, column in PARTS)
        bars.append(Bar("difference", signed_duration(second["period_ns"] - first["period_ns"]), texts, ()))
    return Pair(title, tuple(bars))


def _bar(word: str, mean: dict[str, float], axis: Axis) -> Bar:
    pieces, reached = [], 0.0
    for name, column in PARTS:
        start, end = axis.at(reached), axis.at(reached + mean[column])
        if end > start:
            share = mean[column] / mean["period_ns"] if mean["period_ns"] else 0.0
            text = f"{name} {duration(mean[column])}, {share:.0%}"
            pieces.append(Piece(name, CLASSES[name], start, round(end - start, 2), text))
        reached += mean[column]
    return Bar(word, duration(mean["period_ns"]), tuple(duration(mean[column]) for _, column in PARTS), tuple(pieces))
