"""What chance does to the ranks' times when nobody is slow, learnt from the job itself.

Every rank is measured against its own level, and what remains, from all ranks, regions and steps together, is the noise:
its size by region, its shape, tails included, and how much one step resembles the next. So few steps are enough when
there are many ranks and regions, and no distribution is assumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from annotq.collector.noise_shape import Shape
from annotq.collector.statistics import (
    MAD_TO_SIGMA,
    Floats,
    medians,
    medians_of_others,
    quantiles,
    variance_inflation,
)

# Healthy GPUs of one kind differ by about this much for good in a single region; measured where there are enough ranks.
USUAL_DIFFERENCE = 0.01
# However small it is measured, in its usual size.
LEAST_DIFFERENCE = 0.6
# Ranks from which the difference between ranks is measured, and from which the measurement alone counts.
FEW_RANKS, MANY_RANKS = 4, 32
# The scale is the root mean square of the residuals cut at this many of their median absolute deviations (as sigma), and
# what that is for normal noise of scale 1.
CUT, CUT_SCALE = 2.5, 0.977
# Its variance relative to its square, times the number of values; and the same for the inflation, by simulation.
ERROR_OF_SCALE, ERROR_OF_INFLATION, ERROR_OF_DEPENDENCE = 0.6, 0.35, 0.4
# Steps from which the test of the location is nearly always the stronger one, and what it may then spend of the chance.
MANY_STEPS, SPENT_ON_LOCATION = 8, 0.9
# Standard errors that are added to the inflation.
CAUTION = 0.25
# Of a normal distribution, what lies below the mean by more than a standard deviation.
FAST_SIDE = 0.159
# More ranks, and more residuals, do not make the noise better known.
ENOUGH_RANKS, ENOUGH_RESIDUALS = 128, 200_000
# A part of a window in which a level is looked at, and what is far more than most ranks' changes: as a multiple of their usual
# square, which chance does not reach (a chi-square of 3 degrees of freedom: 4 in 100,000).
STEPS_OF_A_PART, FAR_MORE = 3, 10.0
# A timer's resolution: no noise is believed to be smaller.
SMALLEST_SCALE = 0.002

# How far a healthy rank may lie from the others for good, in standard deviations, and how likely it is to lie there.
_OFFSETS = np.arange(0, 7.1, 0.5)


def _normal_mass(low: float, high: float) -> float:
    return 0.5 * (math.erfc(low / math.sqrt(2)) - math.erfc(high / math.sqrt(2)))


_OFFSET_MASS = np.array([_normal_mass(u - 0.25 if u else -math.inf, u + 0.25) for u in _OFFSETS])


@dataclass(frozen=True)
class Noise:
    """The noise of a window of steps.

    scale: standard deviation by region, in the unit of the deviations (logarithms of ratios). inflation: by how much the
    variance of a mean exceeds that of independent steps. freedom: degrees of freedom with which the two are known
    together. between: standard deviation of what healthy ranks differ by for good. All but inflation have shape (regions,).
    """

    scale: Floats
    inflation: float
    freedom: Floats
    between: Floats
    shape: Shape

    def chance(
        self, region: NDArray[np.intp], location: Floats, lowest: Floats, steps: NDArray[np.int64], scale: Floats
    ) -> Floats:
        """Probability that a healthy rank shows such a location, or such a smallest deviation. All of one shape.

        region: place of the series. location: Huber's estimate over the steps. lowest: the smallest deviation of any step.
        scale: the rank's own noise where it is noisier than most. The better of the two tests, corrected for both: the
        first is strong with many steps, the second with three to six. Both are averaged over what a healthy rank may differ
        by for good (normal with standard deviation `between`).
        """
        count = np.maximum(steps / self.inflation, 1.0)
        by_location, by_lowest = np.zeros_like(location), np.zeros_like(location)
        per_step = self.freedom[region] / count
        for offset, mass in zip(_OFFSETS, _OFFSET_MASS, strict=True):
            shift = offset * self.between[region]
            by_location += mass * self.shape.reaching(_level((location - shift) / scale, per_step), count)
            by_lowest += mass * self.shape.exceeding(_level((lowest - shift) / scale, per_step)) ** count
        # Two tests, of which the number of steps alone says how much of the allowed chance each may spend.
        spent = np.where(steps >= MANY_STEPS, SPENT_ON_LOCATION, 0.5)
        found: Floats = np.minimum(1.0, np.minimum(by_location / spent, by_lowest / (1 - spent)))
        return found

    def of_usual_series(self) -> Noise:
        """The noise of one series as noisy as most."""
        middle = [np.array([float(np.median(values))]) for values in (self.scale, self.freedom, self.between)]
        return Noise(middle[0], self.inflation, middle[1], middle[2], self.shape)


def _level(level: Floats, per_step: Floats) -> Floats:
    """A level in units of the scale, made smaller as far as the scale may be larger than it seems.

    As Student's t is turned into a normal value of about the same chance: z**2 = f log(1 + t**2 / f), t of all steps.
    per_step: degrees of freedom per step.
    """
    smaller: Floats = np.sign(level) * np.sqrt(per_step * np.log1p(level**2 / per_step))
    return smaller


def learn_noise(deviations: Floats, usual_difference: float = USUAL_DIFFERENCE, shape: Shape | None = None) -> Noise:
    """The noise of a window. deviations: shape (regions, ranks, steps), from the other ranks' median of the step.

    The residual of a step is taken from the median of the rank's other steps, which makes it larger than the noise by a
    known factor and never 0 by construction. Of more than 128 ranks, as many at even distances are asked. shape: that of
    finer series, to be taken where they tell more; sums of them are distributed more evenly, not less.
    """
    if not deviations.size:
        nothing = np.zeros(len(deviations))
        unknown = shape or Shape(np.zeros(1), 1)
        return Noise(nothing + SMALLEST_SCALE, 1.0, nothing + 1, nothing + usual_difference, unknown)
    ranks = (~np.isnan(deviations)).any(axis=2).sum(axis=1)
    deviations = deviations[:, :: max(1, deviations.shape[1] // ENOUGH_RANKS)]
    first = _learn(deviations, ranks, usual_difference)
    quiet = _quiet(deviations, first)
    noise = first if quiet.all() else _learn(deviations[:, quiet], ranks, usual_difference)
    return replace(noise, shape=shape) if shape and shape.independent > noise.shape.independent else noise


def _quiet(deviations: Floats, noise: Noise) -> NDArray[np.bool_]:
    """The ranks from which the noise may be learnt: not those that change their level, which would look like noise.

    A quarter of the ranks at the most are left out, and only of 4 to 32: among more, few make no difference. Shape (ranks,).
    """
    if not FEW_RANKS <= deviations.shape[1] <= MANY_RANKS:
        return np.ones(deviations.shape[1], dtype=np.bool_)
    residuals = (deviations - medians_of_others(deviations)) / noise.scale[:, None, None]
    there = ~np.isnan(residuals)
    count = there.sum(axis=(0, 2))
    power = np.where(there, np.clip(residuals, -3, 3), 0.0)
    power = (power**2).sum(axis=(0, 2)) / np.maximum(count, 1)
    usual = float(np.median(power[count > 0])) if (count > 0).any() else 0.0
    # Of a mean of squares by chance, four standard deviations. Squares depend on each other less than values do, by the square
    # of the correlation. A rank that changes its level makes all noise look lasting, and must not hide behind that.
    carry = ((noise.inflation - 1) / (noise.inflation + 1)) ** 2
    limit = usual * (1 + 4 * np.sqrt(2 * (1 + carry) / (1 - carry) / np.maximum(count, 1)))
    power = np.where(_changes(residuals), np.inf, power)
    return np.asarray((power <= limit) | (power < np.quantile(power, 0.75, method="higher")))


def _changes(residuals: Floats) -> NDArray[np.bool_]:
    """The ranks whose level differs between parts of the window far more than on most ranks; shape (ranks,).

    Medians of up to four parts, so that single steps do not count. Of lasting noise, which moves them too, all ranks have some.
    """
    parts = min(residuals.shape[2] // STEPS_OF_A_PART, 4)
    if parts < 2:
        return np.zeros(residuals.shape[1], dtype=np.bool_)
    levels = np.concatenate([medians(part) for part in np.array_split(residuals, parts, axis=2)], axis=2)
    there = ~np.isnan(levels)
    power = np.where(there, levels**2, 0.0).sum(axis=(0, 2)) / np.maximum(there.sum(axis=(0, 2)), 1)
    known = power[there.any(axis=(0, 2))]
    return np.asarray(power > FAR_MORE * np.median(known)) if len(known) else np.zeros(len(power), dtype=np.bool_)


def _learn(deviations: Floats, ranks: NDArray[np.int64], usual_difference: float) -> Noise:
    count = (~np.isnan(deviations)).sum(axis=2)
    steps = int(np.median(count[count > 1])) if (count > 1).any() else 1
    residuals = deviations - medians_of_others(deviations)
    larger = 1 + variance_of_median(steps - 1)
    seen = scales(residuals.reshape(len(deviations), -1)) / math.sqrt(larger)
    # Deviations from the others' median add up to about 0 in every step, and residuals in every series.
    independent = np.maximum(((count > 0).sum(axis=1) - 1) * (steps - 1), 1)
    pooled, uncertain = _pooled(np.maximum(seen, SMALLEST_SCALE), ERROR_OF_SCALE / independent)
    standard = residuals / (pooled[:, None, None] * math.sqrt(larger))
    cut = np.clip(standard, -3, 3)
    series = _series(cut, count)
    inflation = _cautious(variance_inflation(cut.reshape(-1, deviations.shape[2])), series, steps)
    dependence = ERROR_OF_INFLATION * inflation + ERROR_OF_DEPENDENCE * (inflation - 1)
    uncertain += dependence / (series * steps)
    # The own level follows noise that lasts for several steps, and hides that much of it.
    hidden = max((1 - inflation / steps) / (1 - 1 / steps), 0.25) if steps > 1 else 1.0
    sample = standard[~np.isnan(standard)]
    sample = np.sort(sample[:: max(1, len(sample) // ENOUGH_RESIDUALS)]) if len(sample) else np.zeros(1)
    between = _between(deviations, pooled, inflation, steps, ranks, usual_difference)
    shape = Shape(sample, min(int(independent.sum()), len(sample)))
    return Noise(pooled / math.sqrt(hidden), inflation, 1 / (2 * uncertain), between, shape)


def _cautious(inflation: float, series: float, steps: int) -> float:
    """The inflation with a quarter of its standard error added.

    Few steps of few ranks show too little dependence as often as too much, and too little makes a healthy rank look slow. The
    error as of a first-order autoregression: its inflation is (1 + r) / (1 - r), and r is known to sqrt((1 - r**2) / values).
    """
    carry = (inflation - 1) / (inflation + 1)
    error = 2 / (1 - carry) ** 2 * math.sqrt((1 - carry**2) / max(series * steps, 1))
    return min(inflation + CAUTION * error, max(steps / 2, 1.0))


def scales(residuals: Floats) -> Floats:
    """Their scale along the last axis, robust; 0 where there are none."""
    size = np.abs(residuals)
    cut = np.minimum(size, CUT * MAD_TO_SIGMA * medians(size))
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = np.sqrt(np.nansum(cut**2, axis=-1) / np.sum(~np.isnan(cut), axis=-1)) / CUT_SCALE
    return np.nan_to_num(found)


def _pooled(seen: Floats, error: Floats) -> tuple[Floats, Floats]:
    """Scales drawn to their median as far as chance explains that they differ (empirical Bayes, Efron & Morris 1975), and
    the square of their relative errors.

    seen: scale by region. error: square of its relative error.
    """
    logarithms = np.log(seen)
    middle = float(np.median(logarithms))
    spread = float(np.mean((logarithms - middle) ** 2)) * len(seen) / max(len(seen) - 1, 1)
    differ = max(spread - float(np.mean(error)), 0.0)
    weight = differ / (differ + error)
    common = (math.pi / 2 if len(seen) > 2 else 1.0) * float(np.mean(error)) / len(seen)
    return np.exp(middle + weight * (logarithms - middle)), weight * error + common


def _series(standard: Floats, count: NDArray[np.int64]) -> float:
    """How many independent series the regions and ranks amount to; noise that regions share counts once.

    standard: residuals of scale 1, shape (regions, ranks, steps). count: steps by region and rank.
    """
    there = ~np.isnan(standard)
    regions = there.sum(axis=0)
    power = float(np.nanmean(standard**2)) if there.any() else 0.0
    if power == 0:
        return 1.0
    mean = np.where(there, standard, 0.0).sum(axis=0)[regions > 0] / regions[regions > 0]
    typical = float(np.median(regions[regions > 0]))
    shared = (typical * float((mean**2).mean()) / power - 1) / max(typical - 1, 1)
    ranks = float(np.median((count > 0).sum(axis=1)))
    return max(ranks - 1, 1) * len(standard) / (1 + (len(standard) - 1) * min(max(shared, 0.0), 1.0))


def variance_of_median(count: int) -> float:
    """Variance of the median of `count` independent normal values of variance 1 (exact to 3, then asymptotic)."""
    exact = {0: 0.0, 1: 1.0, 2: 0.5, 3: 0.449, 4: 0.298, 5: 0.287}
    return exact.get(max(count, 0), math.pi / 2 / (max(count, 0) + 0.57))


def _between(
    deviations: Floats, scale: Floats, inflation: float, steps: int, ranks: NDArray[np.int64], usual: float
) -> Floats:
    """What healthy ranks differ by for good: the usual difference with few ranks, the measured one with many.

    Measured on the fast side, where slow ranks do not count: from the ranks' median to their 16th percentile.
    """
    share = np.clip((ranks - FEW_RANKS) / (MANY_RANKS - FEW_RANKS), 0, 1)
    measured = 0.0
    if (share > 0).any():
        levels = medians(deviations[share > 0])[..., 0]
        spread = medians(levels)[:, 0] - quantiles(levels, FAST_SIDE)
        chance = scale[share > 0] ** 2 * inflation * variance_of_median(steps)
        measured = float(np.median(np.maximum(spread**2 - chance, 0)))
    variance = share * measured + (1 - share) * usual**2
    few = np.array([1 + variance_of_median(int(count) - 1) for count in ranks])
    found: Floats = np.sqrt(np.where(share > 0, variance, usual**2 * few))
    return np.maximum(found, LEAST_DIFFERENCE * usual)
