"""How much larger one series of steps is than another, with an interval that assumes no distribution.

The interval is that of Hodges & Lehmann (1963): order statistics of all pairwise differences, as many cut off on each side
as the Mann-Whitney test rejects. Steps resemble their neighbours; the variance of the test is stretched by
(1 + r) / (1 - r), where r is the correlation of a step with the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
MOST_CORRELATED = 0.9
USUAL_CORRELATION = 0.3  # where the series are too short to tell
FEWEST_FOR_CORRELATION = 8
# Longer series are thinned to this many evenly spread values before they are paired.
LONGEST = 1_000


@dataclass(frozen=True)
class Shift:
    """difference: median of b less median of a. low, high: interval of the difference; None with too few steps for one."""

    difference: float
    low: float | None
    high: float | None


def shift(a: Floats, b: Floats, inflation: float = 1.0, confidence: float = CONFIDENCE) -> Shift:
    """How much larger b is than a, both not empty. inflation: of the variance, by resemblance of the steps (>= 1)."""
    difference = float(np.median(b) - np.median(a))
    few, many = _thinned(a), _thinned(b)
    pairs = np.sort((many[:, None] - few[None, :]).ravel())
    score = NormalDist().inv_cdf(0.5 + confidence / 2)
    width = score * math.sqrt(inflation * len(few) * len(many) * (len(few) + len(many) + 1) / 12)
    cut = math.floor(len(pairs) / 2 - width)
    if cut < 1:
        return Shift(difference, None, None)
    low, high = float(pairs[cut - 1]), float(pairs[len(pairs) - cut])
    return Shift(difference, min(low, difference), max(high, difference))


def inflation_of(series: Iterable[Floats]) -> float:
    """(1 + r) / (1 - r) for the median lag-1 rank correlation r of the series, corrected for their length; at least 1.

    A short series underestimates r by about (1 + 4 r) / n (Kendall 1954).
    """
    found = []
    for values in series:
        count = len(values)
        scores = np.argsort(np.argsort(values)) - (count - 1) / 2
        if count >= FEWEST_FOR_CORRELATION:
            raw = float((scores[1:] * scores[:-1]).sum() / (scores**2).sum())
            found.append((raw * count + 1) / (count - 4))
    correlation = min(max(float(np.median(found)), 0.0), MOST_CORRELATED) if found else USUAL_CORRELATION
    return (1 + correlation) / (1 - correlation)


def _thinned(values: Floats) -> Floats:
    if len(values) <= LONGEST:
        return values
    return values[np.linspace(0, len(values) - 1, LONGEST).astype(np.int64)]
