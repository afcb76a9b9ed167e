"""How every region of every rank compares with the same region on the other ranks, step by step.

The comparison is paired: a step counts for a region when the ranks that run the region ran it in that step. Ranks whose
windows overlap the others' by a few steps would leave no step complete, so the number of ranks asked of a step is the one
that keeps the most rows. The unit is compute time, communication kernels left out, because those contain the wait for others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from annotq.collector.noise import Noise, variance_of_median
from annotq.collector.statistics import Floats, median_interval, medians, medians_of_others
from annotq.collector.work import Ask as Ask
from annotq.collector.work import Work

# Fewer steps than these are no window of their own, and give no interval.
SHORTEST_WINDOW = 3


@dataclass(frozen=True)
class RegionEvidence:
    """One (region, phase) of one rank against the median of the ranks.

    ranks: the fewest ranks of any step that counts. ratio: median over the steps of compute time over the ranks' median.
    ratio_low, ratio_high: 95 % interval of that median, None with fewer than 3 steps. slowest_share: share of steps in
    which the rank alone was the slowest. above_share: share of steps in which it was above the ranks' median. q_value:
    chance of such a difference if the rank were like the others, corrected for all comparisons made. excess_ns: per step,
    compute time minus the ranks' median; shape (steps,). usual_ns: median of the ranks'
    median. relative_score: the fastest rank's median time over this rank's; individual_score: the rank's best quarter of
    the steps over its last; both as in NVIDIA's resiliency extension.

    The median includes the rank itself, which draws the ratio to 1: two ranks of which one takes r times as long read
    2r / (1 + r), see `against_others`; with 4 ranks and 5 % noise 1.30 reads 1.27, with 8 ranks 1.29.
    """

    region: str
    phase: str
    rank: int
    ranks: int
    steps: NDArray[np.int64]
    ratio: float
    ratio_low: float | None
    ratio_high: float | None
    slowest_share: float
    above_share: float
    q_value: float
    excess_ns: Floats
    usual_ns: float
    relative_score: float
    individual_score: float

    @property
    def median_excess_ns(self) -> float:
        return float(np.median(self.excess_ns))

    @property
    def against_others(self) -> float:
        """The ratio to the other ranks' time."""
        return against_others(self.ratio, self.ranks)


def against_others(ratio: float, ranks: int) -> float:
    """The ratio to the other rank when there are only two, whose median is the mean of both; else the ratio as it is."""
    if ranks != 2:
        return ratio
    return ratio / (2 - ratio) if ratio < 2 else math.inf


@dataclass(frozen=True)
class Evidence:
    """All comparisons of a job attempt. Arrays have shape (regions, ranks, steps), NaN where the rank is not compared.

    compute_ns: of the steps that count. median_ns: over the ranks, shape (regions, 1, steps). deviations: logarithm of the
    time over the other ranks' median, the rank itself left out.
    """

    work: Work
    compute_ns: Floats
    median_ns: Floats
    deviations: Floats

    @cached_property
    def compared(self) -> NDArray[np.bool_]:
        """Whether the rank is compared in the region at all; shape (regions, ranks)."""
        return np.asarray((~np.isnan(self.deviations)).any(axis=2))

    @cached_property
    def common(self) -> Floats:
        """What a rank's regions have in common in a step: the median of their deviations; shape (1, ranks, steps)."""
        return medians(self.deviations, axis=0) if self.deviations.size else self.deviations[:1]

    @cached_property
    def whole(self) -> Floats:
        """The same deviation for all compared regions of a rank together; shape (1, ranks, steps)."""
        return self.together(np.ones(len(self.deviations), dtype=np.bool_))[None]

    def together(self, regions: NDArray[np.bool_]) -> Floats:
        """The same deviation for some regions together: of the sum of their times; shape (ranks, steps)."""
        deviations = self.deviations[regions]
        there = ~np.isnan(deviations)
        own = np.where(there, self.compute_ns[regions], 0.0)
        # exp(deviation) = own time over the others' median.
        others = np.where(there, own * np.exp(-np.nan_to_num(deviations)), 0.0).sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(there.any(axis=0), np.log(own.sum(axis=0) / others), np.nan)

    @property
    def comparisons(self) -> int:
        return int(self.compared.sum())

    @property
    def steps(self) -> int:
        """Steps of the region that has the most."""
        if not self.deviations.size:
            return 0
        return int((~np.isnan(self.deviations)).sum(axis=2).max())

    @cached_property
    def usual_ns(self) -> Floats:
        """Median over the steps of the ranks' median, by region; shape (regions,)."""
        return medians(self.median_ns)[:, 0, 0]

    def row(
        self, region: int, rank: int, noise: Noise | None, window: slice = slice(None), q_value: float = 1.0
    ) -> RegionEvidence:
        """One comparison, over the window's steps. region and rank are places in the arrays.

        noise: how long noise lasts, for the interval; without it the steps count as independent.
        """
        valid = ~np.isnan(self.deviations[region, rank, window])
        own = self.compute_ns[region, rank, window][valid]
        median = self.median_ns[region, 0, window][valid]
        times = self.compute_ns[region][:, window][:, valid]
        largest = np.nanmax(times, axis=0)
        alone = (own == largest) & ((times == largest).sum(axis=0) == 1)
        ratios = own / median
        name, phase = self.work.regions[region]
        number = int(self.work.ranks[rank])
        ranks = int((~np.isnan(times)).sum(axis=0).min())
        interval = _interval(ratios, noise, float(noise.scale[region]) / (2 if ranks == 2 else 1) if noise else 0)
        return RegionEvidence(
            region=name,
            phase=phase,
            rank=number,
            ranks=ranks,
            steps=self.work.steps[window][valid],
            ratio=float(np.median(ratios)),
            ratio_low=interval[0] if interval else None,
            ratio_high=interval[1] if interval else None,
            slowest_share=float(alone.mean()),
            above_share=float((own > median).mean()),
            q_value=q_value,
            excess_ns=own - median,
            usual_ns=float(np.median(median)),
            relative_score=float(np.nanmin(medians(times)) / np.median(own)),
            individual_score=individual_score(own),
        )


def _interval(ratios: Floats, noise: Noise | None, scale: float) -> tuple[float, float] | None:
    """95 % interval of the median ratio; with 3 to 5 steps as wide as the noise of the whole job says (normal)."""
    found = median_interval(np.log(np.maximum(ratios, 1e-9)), noise.inflation if noise else 1.0)
    if found is None and noise and len(ratios) >= SHORTEST_WINDOW:
        half = 1.96 * scale * math.sqrt(variance_of_median(len(ratios)) * noise.inflation)
        middle = math.log(float(np.median(ratios)))
        found = middle - half, middle + half
    return (math.exp(found[0]), math.exp(found[1])) if found else None


def individual_score(times: Floats) -> float:
    """The best quarter's median over the last quarter's; 1 when it is as fast now as it ever was."""
    quarters = np.array_split(times, 4) if len(times) >= 4 * SHORTEST_WINDOW else [times]
    typical = [float(np.median(quarter)) for quarter in quarters]
    return min(typical) / typical[-1] if typical[-1] > 0 else 1.0


def compare(work: Work) -> Evidence:
    """Everything that at least two ranks can be compared on."""
    present = ~np.isnan(work.compute_ns)
    count = present.sum(axis=1, keepdims=True)
    counts = (count >= _ranks_asked(count[:, 0, :])[:, None, None]) & present
    times = np.where(counts, work.compute_ns, np.nan)
    median = medians(times, axis=1) if times.size else np.full((len(times), 1, times.shape[2]), np.nan)
    # Where the ranks' median is 0 there is no ratio.
    times = np.where(median > 0, times, np.nan)
    others = medians_of_others(times, axis=1) if times.size else times
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = np.log(np.maximum(times, 1) / np.maximum(others, 1))
    return Evidence(work, times, median, deviations)


def _ranks_asked(count: NDArray[np.int64]) -> NDArray[np.int64]:
    """By region, how many ranks a step needs to count: the k, at least 2, with the most steps times k.

    count: ranks that ran the region, shape (regions, steps).
    """
    if not count.size:
        return np.zeros(len(count), dtype=np.int64)
    ordered = np.sort(count, axis=1)[:, ::-1]
    kept = np.where(ordered >= 2, ordered * np.arange(1, count.shape[1] + 1), 0)
    # Of equal products the one with the most ranks, which comes first.
    best = np.argmax(kept, axis=1)
    return np.maximum(np.take_along_axis(ordered, best[:, None], axis=1)[:, 0], 2)
