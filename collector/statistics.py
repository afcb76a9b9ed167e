"""Small robust statistics of the verdict. Arrays may hold NaN where a rank did not run; medians and sums leave those out."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
# Where Huber's estimator stops believing a value, in standard deviations: 96 % efficient for normal noise (Huber 1964).
HUBER_LIMIT = 1.5
MAD_TO_SIGMA = 1.4826


def medians(values: Floats, axis: int = -1) -> Floats:
    """Median along an axis, NaN left out; NaN where nothing is left. The axis stays, with length 1."""
    ordered = np.sort(values, axis=axis)
    count = np.sum(~np.isnan(values), axis=axis, keepdims=True)
    lower = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis)
    upper = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis)
    middle: Floats = 0.5 * (lower + upper)
    return np.where(count > 0, middle, np.nan)


def quantiles(values: Floats, share: float) -> Floats:
    """By row, the quantile of the share (0.5: the median), NaN left out; values: shape (rows, columns)."""
    # numpy's quantile without NaN takes rows one by one, which only those with NaN need.
    whole = ~np.isnan(values).any(axis=1)
    some = ~np.isnan(values).all(axis=1)
    found = np.full(len(values), np.nan)
    if whole.any():
        found[whole] = np.quantile(values[whole], share, axis=1)
    if (some & ~whole).any():
        found[some & ~whole] = np.nanquantile(values[some & ~whole], share, axis=1)
    return found


def medians_of_others(values: Floats, axis: int = -1) -> Floats:
    """For each value the median of the other values along the axis; same shape, NaN where there is no other."""
    ordered = np.sort(values, axis=axis)
    count = np.sum(~np.isnan(values), axis=axis, keepdims=True)
    last = values.shape[axis] - 1

    def nth_of_others(position: NDArray[np.intp]) -> Floats:
        """The others' n-th smallest: everything from the value's own place on moves one down."""
        here = np.take_along_axis(ordered, np.clip(position, 0, last), axis)
        following = np.take_along_axis(ordered, np.clip(position + 1, 0, last), axis)
        return np.where(values <= here, following, here)

    middle: Floats = 0.5 * (nth_of_others((count - 2) // 2) + nth_of_others((count - 1) // 2))
    return np.where((count >= 2) & ~np.isnan(values), middle, np.nan)


def huber_locations(values: Floats, scale: Floats, rounds: int = 8) -> Floats:
    """Huber's M-estimate of location along the last axis (Huber 1964); shape without it, NaN where nothing is.

    scale: standard deviations, broadcastable to the result. Newton's steps from the median; `rounds` of them.
    """
    valid = ~np.isnan(values)
    count = valid.sum(axis=-1)
    center: Floats = medians(values)[..., 0]
    limit = HUBER_LIMIT * np.broadcast_to(scale, center.shape)[..., None]
    for _ in range(rounds):
        away = np.where(valid, values - center[..., None], 0.0)
        inside = (valid & (np.abs(away) < limit)).sum(axis=-1)
        step = np.clip(away, -limit, limit).sum(axis=-1) / np.maximum(inside, 0.25 * np.maximum(count, 1))
        center = center + step
    return center


def variance_inflation(residuals: Floats) -> float:
    """By how much the variance of a mean over steps exceeds that of independent steps; at least 1.

    residuals: deviations from each series' own level, shape (series, steps), bounded in size. Autocorrelations are pooled
    over the series and corrected for the own level having been taken out, which draws each down by about
    inflation / steps. The larger of two answers: their sum up to the first that is not positive (Geyer 1992), and that of
    a first-order autoregression under independent noise, which sees further than few steps do: the first of them says how
    much there is of it, the second over the first how fast it dies away.
    """
    steps = residuals.shape[-1]
    valid = ~np.isnan(residuals)
    # From its mean: of skewed noise the mean lies beside the median, which would look like noise that lasts for ever.
    count = np.maximum(valid.sum(axis=-1, keepdims=True), 1)
    filled = np.where(valid, residuals - np.nansum(residuals, axis=-1, keepdims=True) / count, 0.0)
    power = float((filled**2).sum() / max(valid.sum(), 1))
    if steps < 3 or power == 0:
        return 1.0
    above, lost = 1.0, 0.0
    lags: list[float] = []
    for lag in range(1, max(2, min(steps // 3, 30))):
        pairs = int((valid[..., lag:] & valid[..., :-lag]).sum())
        if pairs == 0:
            break
        seen = float((filled[..., lag:] * filled[..., :-lag]).sum()) / pairs / power
        lags.append(seen)
        if seen + (1 - seen) * above / steps <= 0.02:
            break
        weight = 2 * (1 - lag / steps)
        above, lost = above + weight * seen, lost + weight * (1 - seen) / steps
    summed = above / max(1 - lost, 0.2)
    return float(np.clip(max(summed, _autoregressive_inflation(lags, steps)), 1.0, steps / 2))


def _autoregressive_inflation(seen: list[float], steps: int) -> float:
    """The same for a first-order autoregression under independent noise; seen: its first autocorrelations, own level out."""
    inflation = 1.0
    for _ in range(20 if seen else 0):
        first, *more = [min(max(lag + (1 - lag) * inflation / steps, 0.0), 0.95) for lag in seen[:2]]
        carry = float(np.clip(more[0] / first, first, 0.9)) if more and first > LEAST_FOR_CARRY else first
        lags = np.arange(1, steps)
        inflation = 1 + 2 * first * float(((1 - lags / steps) * carry ** (lags - 1)).sum())
    return inflation


# A first autocorrelation below this says nothing about how fast it dies away.
LEAST_FOR_CARRY = 0.1

# The fewest values whose smallest and largest enclose the median in 95 of 100 cases (Binomial: 2 * 0.5**6 = 3 %).
FEWEST_FOR_INTERVAL = 6
# Signs depend on each other less than values do: 2 / pi arcsin(r) for correlation r, summed over the lags.
SIGN_INFLATION = 0.7


def median_interval(values: Floats, inflation: float = 1.0) -> tuple[float, float] | None:
    """95 % interval for the median of whatever the values are distributed like, from interpolated order statistics.

    values: one number per step. inflation: of the variance of a mean by dependence between the steps; the interval takes
    in as many more values, and where there are no more it is stretched. None with fewer than 6 values. Hettmansperger &
    Sheather 1986. A block bootstrap of one series of 20 steps cannot know how long noise lasts and covers the truth in
    60 to 80 of 100 cases where it lasts for some steps.
    """
    count = len(values)
    if count < FEWEST_FOR_INTERVAL:
        return None
    middle = (count - 1) / 2
    wanted = (middle - _interval_place(count)) * math.sqrt(1 + SIGN_INFLATION * (inflation - 1))
    half = min(wanted, middle)
    ordered = np.sort(values)
    low, center, high = (float(value) for value in _at(ordered, np.array([middle - half, middle, middle + half])))
    beyond = wanted / half
    return center - (center - low) * beyond, center + (high - center) * beyond


def _at(ordered: Floats, places: Floats) -> Floats:
    return np.interp(places, np.arange(len(ordered)), ordered)


@lru_cache(maxsize=4096)
def _interval_place(count: int) -> float:
    """Where, counted from 0 in the sorted values, the lower end of the interval lies."""
    tails = np.cumsum([_binomial(k, count, 0.5) for k in range(count // 2)])
    covered = 1 - 2 * tails
    cut = int((covered >= CONFIDENCE).sum())
    if cut == len(covered):
        return float(cut - 1)
    between = (covered[cut - 1] - CONFIDENCE) / (covered[cut - 1] - covered[cut])
    return cut - 1 + float((count - cut) * between / (cut + (count - 2 * cut) * between))


@lru_cache(maxsize=4096)
def binomial_tail(successes: int, trials: int, chance: float) -> float:
    """P(X >= successes) for X binomial: how often chance alone makes one rank the slowest that many times."""
    return min(1.0, math.fsum(_binomial(k, trials, chance) for k in range(successes, trials + 1)))


def benjamini_hochberg(p_values: Floats, tests: int | None = None) -> Floats:
    """p-values adjusted for the number of tests: below q means a false discovery rate of at most q.

    Benjamini & Hochberg 1995. Same shape and order as the input. tests: how many were made, where p_values holds only the
    smallest of them.
    """
    count = len(p_values)
    order = np.argsort(p_values)
    scaled = p_values[order] * (tests or count) / np.arange(1, count + 1)
    adjusted = np.empty(count)
    adjusted[order] = np.minimum(1.0, np.minimum.accumulate(scaled[::-1])[::-1])
    return adjusted


def _binomial(k: int, trials: int, chance: float) -> float:
    if chance in (0.0, 1.0):
        return float(k == trials * chance)
    log = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
    return math.exp(log + k * math.log(chance) + (trials - k) * math.log1p(-chance))
