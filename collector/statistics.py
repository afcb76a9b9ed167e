"""The three small pieces of statistics behind a verdict. Exact, no distribution assumed."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95


def median_interval(values: NDArray[np.float64]) -> tuple[float, float] | None:
    """Distribution-free interval for the median from order statistics, at least 95 % (David & Nagaraja, sec. 7.1).

    values: one number per step. None when there are too few (under 6) for any such interval.
    """
    count = len(values)
    cut = _order_statistic(count)
    if cut == 0:
        return None
    ordered = np.sort(values)
    return float(ordered[cut - 1]), float(ordered[count - cut])


@lru_cache(maxsize=4096)
def binomial_tail(successes: int, trials: int, chance: float) -> float:
    """P(X >= successes) for X binomial: how often chance alone makes one rank the slowest that many times."""
    return min(1.0, math.fsum(_binomial(k, trials, chance) for k in range(successes, trials + 1)))


def benjamini_hochberg(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """p-values adjusted for the number of tests: below q means a false discovery rate of at most q.

    Benjamini & Hochberg 1995. Same shape and order as the input.
    """
    count = len(p_values)
    order = np.argsort(p_values)
    scaled = p_values[order] * count / np.arange(1, count + 1)
    adjusted = np.empty(count)
    adjusted[order] = np.minimum(1.0, np.minimum.accumulate(scaled[::-1])[::-1])
    return adjusted


@lru_cache(maxsize=4096)
def _order_statistic(count: int) -> int:
    """Largest d with P(Binomial(count, 1/2) < d) <= 2.5 %: the d-th smallest and d-th largest value bound the median."""
    below, cut = 0.0, 0
    while cut < count:
        below += _binomial(cut, count, 0.5)
        if below > (1 - CONFIDENCE) / 2:
            break
        cut += 1
    return cut


def _binomial(k: int, trials: int, chance: float) -> float:
    if chance in (0.0, 1.0):
        return float(k == trials * chance)
    log = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
    return math.exp(log + k * math.log(chance) + (trials - k) * math.log1p(-chance))
