"""From which step to which an effect holds: the best split of a series into two levels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from annotq.collector.statistics import MAD_TO_SIGMA, Floats

# Steps on either side of a split, and the difference of the levels in standard errors from which it is believed.
SHORTEST_SIDE = 2
CLEAR = 4.5
MOST_SPLITS = 400


@dataclass(frozen=True)
class Shift:
    """The level changes from `before` to `after` at index `at`, by `strength` standard errors."""

    at: int
    before: float
    after: float
    strength: float


@dataclass(frozen=True)
class Span:
    """The steps, as indices, in which an effect holds: from first up to, not including, end."""

    first: int
    end: int

    @property
    def steps(self) -> slice:
        return slice(self.first, self.end)


def best_shift(series: Floats, inflation: float = 1.0, smallest_scale: float = 0.002) -> Shift | None:
    """The split with the smallest sum of absolute deviations from the two medians; None in fewer than 4 values.

    series: one value per step, without NaN. inflation: of the variance by dependence between the steps.
    """
    count = len(series)
    splits = np.arange(SHORTEST_SIDE, count - SHORTEST_SIDE + 1)
    if len(splits) == 0:
        return None
    splits = splits[:: max(1, len(splits) // MOST_SPLITS)]
    costs = [_deviation(series[:at]) + _deviation(series[at:]) for at in splits.tolist()]
    at = int(splits[int(np.argmin(costs))])
    before, after = float(np.median(series[:at])), float(np.median(series[at:]))
    residuals = np.concatenate([series[:at] - before, series[at:] - after])
    # Two of the values lie on their medians.
    scale = max(
        MAD_TO_SIGMA * float(np.median(np.abs(residuals))) * math.sqrt(count / max(count - 2, 1)), smallest_scale
    )
    error = scale * math.sqrt(math.pi / 2 * inflation * (1 / at + 1 / (count - at)))
    return Shift(at, before, after, abs(after - before) / error)


def span_of_effect(series: Floats, smallest: float, inflation: float = 1.0) -> Span:
    """Where the series lies above `smallest`: everything, unless a clear shift says that it began or ended within.

    series: one value per step, NaN where there is none.
    """
    known = np.flatnonzero(~np.isnan(series))
    values = series[known]
    span = Span(0, len(values))
    # A beginning and an end: two shifts at the most.
    for _ in range(2):
        shift = best_shift(values[span.steps], inflation)
        if shift is None or shift.strength < CLEAR:
            break
        at = span.first + shift.at
        if shift.before < smallest <= shift.after:
            span = Span(at, span.end)
        elif shift.after < smallest <= shift.before:
            span = Span(span.first, at)
        else:
            break
    if len(known) == 0:
        return Span(0, len(series))
    first = int(known[span.first]) if span.first else 0
    end = int(known[span.end - 1]) + 1 if span.end < len(values) else len(series)
    return Span(first, end)


def _deviation(values: Floats) -> float:
    return float(np.abs(values - np.median(values)).sum())
