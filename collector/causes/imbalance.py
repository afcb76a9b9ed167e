"""Some rank computes longer in most steps, but not the same one (`imbalance`).

Judged by what a rank's regions have in common in a step, so that a single kernel that is held up does not count. Ranks
with a finding of their own are left out.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from annotq.collector.causes.slow_rank import Slowness
from annotq.collector.evidence import Evidence
from annotq.collector.findings import MINIMAL_EFFECT, Finding
from annotq.collector.looks import REGIONS_FOR_CONTRAST
from annotq.collector.statistics import MAD_TO_SIGMA, Floats, median_interval, medians

# In how many of the steps somebody has to stand out. Of two ranks one is always ahead of the other, so there all but a
# few have to show it.
SHARE_OF_STEPS, SHARE_OF_TWO = 0.6, 0.8
FEWEST_STEPS = 6
# A rank that stands out in more than this share of those steps is a matter of its own.
SHARE_OF_ONE = 0.7
# By how much the slowest rank is further from the others than the fastest one.
BEYOND_THE_FASTEST = 1.3
# Chance that in a step of independent noise some rank stands out.
STANDS_OUT_BY_CHANCE = 0.05


def imbalance(evidence: Evidence, slowness: Slowness) -> Finding | None:
    """The finding, without a rank; None where the steps do not show one."""
    factors, totals = _factors(evidence, slowness)
    compared = (~np.isnan(factors)).sum(axis=0)
    steps = np.flatnonzero(compared >= 2)
    if len(steps) < FEWEST_STEPS:
        return None
    factors, totals = factors[:, steps], totals[:, steps]
    ranks = int(np.median(compared[steps]))
    slowest = np.nanargmax(factors, axis=0)
    largest = np.take_along_axis(factors, slowest[None], axis=0)[0]
    unusual = NormalDist().inv_cdf(1 - STANDS_OUT_BY_CHANCE / ranks) * _scale(evidence, factors, slowness, ranks)
    limit = max(math.log(MINIMAL_EFFECT), unusual)
    out = largest >= limit
    if ranks > 2:
        # Tails of the noise reach as far down as up; a rank that holds up the others does so only upwards.
        out &= largest > BEYOND_THE_FASTEST * -np.nanmin(factors, axis=0)
    counts = np.bincount(slowest[out], minlength=len(factors))
    if out.mean() < (SHARE_OF_TWO if ranks == 2 else SHARE_OF_STEPS) or counts.max() > SHARE_OF_ONE * out.sum():
        return None
    cost = np.take_along_axis(totals, slowest[None], axis=0)[0]
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] > 0]
    inflation = slowness.whole_run.regions.noise.inflation if slowness.whole_run else 1.0
    interval = median_interval(largest, inflation)
    return Finding(
        cause="imbalance",
        rank=None,
        ranks=tuple(int(evidence.work.ranks[place]) for place in order),
        host=None,
        effect=math.exp(float(np.median(largest))),
        effect_low=math.exp(interval[0]) if interval else None,
        effect_high=math.exp(interval[1]) if interval else None,
        cost_ns_per_step=max(float(np.nanmedian(cost)), 0.0),
        steps=len(steps),
        slowest=tuple(int(counts[place]) for place in order),
    )


def _factors(evidence: Evidence, slowness: Slowness) -> tuple[Floats, Floats]:
    """What a rank's regions have in common, as a logarithm, and its time beyond the others'; shape (ranks, steps)."""
    deviations = evidence.deviations
    there = ~np.isnan(deviations)
    enough = there.sum(axis=0).max(initial=0) >= REGIONS_FOR_CONTRAST
    common = evidence.common[0] if enough else evidence.whole[0]
    own = np.where(there, evidence.compute_ns, 0.0).sum(axis=0)
    beyond = own - own / np.exp(evidence.whole[0])
    # A rank's lasting difference is no imbalance from step to step.
    common = common - np.clip(medians(common), -0.05, 0.05)
    for found in slowness.ranks:
        common[found.rank] = np.nan
    return common, beyond


def _scale(evidence: Evidence, factors: Floats, slowness: Slowness, ranks: int) -> float:
    """How far a healthy rank's factor lies from 0: measured without the slowest rank of each step. Where nobody is slow that is a
    little too small, and somebody stands out in 15 % of the steps of 3 ranks and 11 % of 4 to 8; 60 % are asked for.

    Of two ranks both move when one is slow; there it is what independent noise of the regions explains.
    """
    if ranks > 2:
        others = np.where(factors == np.nanmax(factors, axis=0), np.nan, np.abs(factors))
        return MAD_TO_SIGMA * float(np.nanmedian(others))
    look = slowness.whole_run
    if look is None or look.regions_apart.tests == 0:
        return math.inf
    regions = int((~np.isnan(evidence.deviations)).any(axis=(1, 2)).sum())
    return float(np.nanmedian(look.regions_apart.noise.scale)) * math.sqrt(math.pi / 2 / regions)
