"""Some rank computes longer in most steps, but not the same one (`imbalance`).

Judged by what a rank's regions have in common in a step, and by regions of one kind (layers.0.attn, layers.1.attn, one phase),
so that a single kernel that is held up does not count. Ranks with a finding of their own are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Set
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from annotq.collector.causes.slow_rank import Slowness
from annotq.collector.evidence import Evidence
from annotq.collector.findings import MINIMAL_EFFECT, Finding
from annotq.collector.looks import REGIONS_FOR_CONTRAST
from annotq.collector.statistics import MAD_TO_SIGMA, Floats, binomial_tail, median_interval, medians

# In how many of the steps somebody has to stand out. Of two ranks one is always ahead of the other, so there all but a
# few have to show it.
SHARE_OF_STEPS, SHARE_OF_TWO = 0.6, 0.8
FEWEST_STEPS = 6
# A rank that stands out in more than this share of those steps is a matter of its own.
SHARE_OF_ONE = 0.7
# By how much the slowest rank is further from the others than the fastest one.
BEYOND_THE_FASTEST = 1.3
# Chance that in a step of independent noise some rank stands out; and what it is at most where the noise is measured too small.
STANDS_OUT_BY_CHANCE, AT_MOST = 0.05, 0.15
# Allowed false alarms of all kinds of regions together.
FALSE_KINDS = 0.001
# A kind's smallest effect, and how far beyond what is unusual it has to be.
EFFECT_IN_KIND, BEYOND_NOISE_IN_KIND = 1.1, 1.5
# Regions from which a kind is looked at: of two the less slow one counts.
REGIONS_OF_A_KIND = 2
# Time lost in a step that nobody would act on, as a share of what a rank computes in it.
NEGLIGIBLE_COST = 0.001


@dataclass(frozen=True)
class Uneven:
    """Ranks that take turns in being slow.

    factors: logarithm of the slowest rank's time over the others', by step. cost_ns: by step. counts: in how many steps each
    rank was the one that stands out; shape (ranks,). where: the kind of region; empty when it is all that a rank computes.
    """

    factors: Floats
    cost_ns: Floats
    counts: NDArray[np.int64]
    where: str = ""

    @property
    def cost_ns_per_step(self) -> float:
        return float(np.median(self.cost_ns))


def imbalance(evidence: Evidence, slowness: Slowness, named: Set[int] = frozenset()) -> Finding | None:
    """The finding, without a rank; None where the steps do not show one. named: ranks that have a finding of their own."""
    apart = np.isin(evidence.work.ranks, list(named))
    found = _in_all(evidence, slowness, apart) or _in_a_kind(evidence, slowness, apart)
    if found is None:
        return None
    order = np.argsort(-found.counts, kind="stable")
    order = order[found.counts[order] > 0]
    inflation = slowness.whole_run.regions.noise.inflation if slowness.whole_run else 1.0
    interval = median_interval(found.factors, inflation)
    return Finding(
        cause="imbalance",
        rank=None,
        ranks=tuple(int(evidence.work.ranks[place]) for place in order),
        host=None,
        effect=math.exp(float(np.median(found.factors))),
        effect_low=math.exp(interval[0]) if interval else None,
        effect_high=math.exp(interval[1]) if interval else None,
        cost_ns_per_step=max(found.cost_ns_per_step, 0.0),
        steps=len(found.factors),
        slowest=tuple(int(found.counts[place]) for place in order),
        detail=found.where,
    )


def _in_all(evidence: Evidence, slowness: Slowness, apart: NDArray[np.bool_]) -> Uneven | None:
    factors, totals = _factors(evidence, apart)
    return _uneven(factors, totals, evidence, slowness)


def _in_a_kind(evidence: Evidence, slowness: Slowness, apart: NDArray[np.bool_]) -> Uneven | None:
    """Of the kinds of regions that show it beyond chance the costliest."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for place, (name, phase) in enumerate(evidence.work.regions):
        kinds.setdefault((re.sub(r"\d+", "*", name), phase), []).append(place)
    several = {kind: places for kind, places in kinds.items() if len(places) >= REGIONS_OF_A_KIND}
    found: list[Uneven] = []
    for (name, phase), places in several.items():
        deviations = evidence.deviations[places]
        # The lower one in the middle: a single region whose kernel was held up does not raise it.
        factors = _lower_medians(deviations)
        own = np.where(np.isnan(deviations), 0.0, evidence.compute_ns[places]).sum(axis=0)
        beyond = own - own / np.exp(evidence.together(_chosen(places, len(evidence.deviations))))
        one = _uneven(_levelled(factors, apart), beyond, evidence, slowness, f"{name} {phase}")
        if one is None or one.cost_ns_per_step <= NEGLIGIBLE_COST * float(
            medians(medians(evidence.work.total_ns), axis=0)[0, 0]
        ):
            continue
        if binomial_tail(int(one.counts.sum()), len(one.factors), AT_MOST) * len(several) <= FALSE_KINDS:
            found.append(one)
    return max(found, key=lambda one: one.cost_ns_per_step, default=None)


def _chosen(places: list[int], count: int) -> NDArray[np.bool_]:
    found = np.zeros(count, dtype=np.bool_)
    found[places] = True
    return found


def _lower_medians(values: Floats) -> Floats:
    """Along the first axis, of an even number the lower of the two in the middle; NaN where there are fewer than two."""
    there = (~np.isnan(values)).sum(axis=0)
    ordered = np.sort(values, axis=0)
    middle = np.take_along_axis(ordered, (np.maximum(there - 1, 0) // 2)[None], axis=0)[0]
    return np.where(there >= REGIONS_OF_A_KIND, middle, np.nan)


def _levelled(factors: Floats, apart: NDArray[np.bool_]) -> Floats:
    """Less each rank's lasting difference, which is no imbalance from step to step; NaN for the ranks that are left out."""
    factors = factors - np.clip(np.nan_to_num(medians(factors)), -0.05, 0.05)
    return np.where(apart[:, None], np.nan, factors)


def _uneven(factors: Floats, totals: Floats, evidence: Evidence, slowness: Slowness, where: str = "") -> Uneven | None:
    """factors: logarithms by which ranks are slower, totals: the time of it; both of shape (ranks, steps)."""
    compared = (~np.isnan(factors)).sum(axis=0)
    steps = np.flatnonzero(compared >= 2)
    if len(steps) < FEWEST_STEPS:
        return None
    factors, totals = factors[:, steps], totals[:, steps]
    ranks = int(np.median(compared[steps]))
    slowest = np.nanargmax(factors, axis=0)
    largest = np.take_along_axis(factors, slowest[None], axis=0)[0]
    unusual = NormalDist().inv_cdf(1 - STANDS_OUT_BY_CHANCE / ranks) * _scale(evidence, factors, slowness, ranks)
    # In a kind of region few kernels are asked, and there are many kinds: only what is far beyond the noise counts.
    limit = (
        max(math.log(EFFECT_IN_KIND), BEYOND_NOISE_IN_KIND * unusual)
        if where
        else max(math.log(MINIMAL_EFFECT), unusual)
    )
    out = largest >= limit
    if ranks > 2:
        # Tails of the noise reach as far down as up; a rank that holds up the others does so only upwards.
        out &= largest > BEYOND_THE_FASTEST * -np.nanmin(factors, axis=0)
    counts = np.bincount(slowest[out], minlength=len(factors))
    if out.mean() < (SHARE_OF_TWO if ranks == 2 else SHARE_OF_STEPS) or counts.max() > SHARE_OF_ONE * out.sum():
        return None
    cost = np.take_along_axis(totals, slowest[None], axis=0)[0]
    return Uneven(largest, cost, counts, where)


def _factors(evidence: Evidence, apart: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """What a rank's regions have in common, as a logarithm, and its time beyond the others'; shape (ranks, steps)."""
    deviations = evidence.deviations
    there = ~np.isnan(deviations)
    enough = there.sum(axis=0).max(initial=0) >= REGIONS_FOR_CONTRAST
    common = evidence.common[0] if enough else evidence.whole[0]
    own = np.where(there, evidence.compute_ns, 0.0).sum(axis=0)
    beyond = own - own / np.exp(evidence.whole[0])
    return _levelled(common, apart), beyond


def _scale(evidence: Evidence, factors: Floats, slowness: Slowness, ranks: int) -> float:
    """How far a healthy rank's factor lies from 0: measured without the slowest rank of each step. Where nobody is slow that is a
    little too small, and somebody stands out in 15 % of the steps of 3 ranks and 11 % of 4 to 8; 60 % are asked for.

    Of two ranks both move when one is slow; there it is what independent noise of the regions explains.
    """
    if ranks > 2:
        others = np.where(factors == np.nanmax(factors, axis=0), np.nan, np.abs(factors))
        sizes = others[~np.isnan(others)]
        return MAD_TO_SIGMA * float(np.median(sizes)) if len(sizes) else math.inf
    look = slowness.whole_run
    if look is None or look.regions_apart.tests == 0:
        return math.inf
    regions = int((~np.isnan(evidence.deviations)).any(axis=(1, 2)).sum())
    return float(np.nanmedian(look.regions_apart.noise.scale)) * math.sqrt(math.pi / 2 / regions)
