"""From which step to which an effect holds: the best segment of a series of two levels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from annotq.collector.statistics import MAD_TO_SIGMA, Floats, medians

# The fewest steps inside of a segment, and beside it where the series goes on there.
SHORTEST_SIDE = 2
# By how much each edge within the series has to raise twice the logarithm of the likelihood, in log(steps): it grows with the
# places that an edge can have, as information criteria for change points do (Yao 1988). With 3, an effect that holds in all
# steps seems to begin or end within them in fewer than 1 of 100 series.
EDGE = 3.0
# Values further than this many scales beyond the levels that their neighbours confirm are drawn in.
CUT = 3.0
# Of longer series the edges are first looked for at so many places, then near the best ones.
MOST_PLACES = 128
SMALLEST_SCALE = 0.002
# An effect of less than this share of what it is elsewhere counts as none.
HARDLY = 0.25


@dataclass(frozen=True)
class Span:
    """The steps, as indices, in which an effect holds: from first up to, not including, end."""

    first: int
    end: int

    @property
    def steps(self) -> slice:
        return slice(self.first, self.end)


@dataclass(frozen=True)
class Asked:
    """What counts as a segment. rise: how much higher than the rest it has to be. inflation: of the variance of a mean by
    dependence between the steps. threshold: the level inside has to reach it, and the one outside to stay below it or
    below a quarter of the one inside. edge: see EDGE."""

    rise: float
    inflation: float = 1.0
    threshold: float = -math.inf
    edge: float = EDGE


@dataclass(frozen=True)
class Segment:
    """A part of a series that lies above the rest: its steps, and the means of both."""

    span: Span
    inside: float
    outside: float


def best_segment(series: Floats, asked: Asked) -> Segment | None:
    """The segment that explains most of a series with one value per step, without NaN; None where noise explains it as well.

    Circular binary segmentation (Olshen et al. 2004): both edges are looked for together, because each alone is hidden by
    the other when an effect holds only in the middle. One edge is preferred where the second explains too little.
    """
    count = len(series)
    if count < 2 * SHORTEST_SIDE:
        return None
    values = _drawn_in(series)
    places = np.unique(np.linspace(0, count, min(count, MOST_PLACES) + 1).astype(np.int64))
    found = _best(values, places, places, asked)
    if found is None or len(places) == count + 1:
        return found
    near = count // MOST_PLACES + 1
    return _best(values, _around(found.span.first, near, count), _around(found.span.end, near, count), asked)


def span_of_effect(series: Floats, smallest: float, inflation: float = 1.0) -> Span:
    """Where the series lies above `smallest`: everything, unless it clearly began or ended within.

    series: one value per step, NaN where there is none. inflation: as in Asked.
    """
    known = np.flatnonzero(~np.isnan(series))
    segment = best_segment(series[known], Asked(smallest, inflation, smallest))
    if segment is None:
        return Span(0, len(series))
    first, end = segment.span.first, segment.span.end
    return Span(int(known[first]) if first else 0, int(known[end - 1]) + 1 if end < len(known) else len(series))


def _best(values: Floats, firsts: NDArray[np.int64], ends: NDArray[np.int64], asked: Asked) -> Segment | None:
    """Of all segments with these edges."""
    count = len(values)
    first, end = _edges(firsts, ends, count)
    size = end - first
    sums = np.concatenate([[0.0], np.cumsum(values)])
    inside = (sums[end] - sums[first]) / size
    outside = (sums[-1] - (sums[end] - sums[first])) / (count - size)
    right = (inside - outside >= asked.rise) & (inside >= asked.threshold)
    right &= outside < np.maximum(asked.threshold, HARDLY * inside) if math.isfinite(asked.threshold) else True
    if not right.any():
        return None
    explained = np.where(right, (inside - outside) ** 2 * size * (count - size) / count, 0.0)
    # Two levels and two edges have been fitted.
    freedom = max(count - 4, 1)
    left = float(((values - values.mean()) ** 2).sum() - explained.max())
    variance = max(left / freedom, SMALLEST_SCALE**2) * asked.inflation
    # Twice the logarithm of the likelihood ratio, with few steps less sure of the variance.
    gain = freedom * np.log1p(explained / (variance * freedom))
    inner = (first > 0).astype(np.int64) + (end < count)
    gain = np.where(right, gain - asked.edge * math.log(count) * inner, -math.inf)
    best = int(np.argmax(gain))
    if gain[best] <= 0:
        return None
    return Segment(Span(int(first[best]), int(end[best])), float(inside[best]), float(outside[best]))


def _edges(
    firsts: NDArray[np.int64], ends: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First step and end of every segment that leaves enough steps inside and on either side, and some at least on one."""
    first, end = np.meshgrid(firsts, ends, indexing="ij")
    allowed = (end - first >= SHORTEST_SIDE) & (end - first < count)
    allowed &= ((first == 0) | (first >= SHORTEST_SIDE)) & ((end == count) | (count - end >= SHORTEST_SIDE))
    return first[allowed], end[allowed]


def _drawn_in(series: Floats) -> Floats:
    """The series without single values far beyond all others: cut at the levels that two neighbours confirm."""
    confirmed = medians(np.stack([series[:-2], series[1:-1], series[2:]]), axis=0)[0]
    scale = MAD_TO_SIGMA * float(np.median(np.abs(np.diff(series)))) / math.sqrt(2)
    away = CUT * max(scale, SMALLEST_SCALE)
    return np.asarray(np.clip(series, confirmed.min() - away, confirmed.max() + away))


def _around(edge: int, near: int, count: int) -> NDArray[np.int64]:
    """Places near an edge."""
    return np.arange(max(edge - near, 0), min(edge + near, count) + 1)
