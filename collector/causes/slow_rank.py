"""Ranks that compute longer than the others: in some regions (`slow_region`), or in all of them alike (`slow_gpu`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from annotq.collector.evidence import Evidence, RegionEvidence
from annotq.collector.findings import Cause
from annotq.collector.looks import SMALLEST, Looked, Series, looks_at, series_of
from annotq.collector.onset import Span, span_of_effect
from annotq.collector.screen import Screen, Window, segment_of, windows
from annotq.collector.statistics import Floats

# Jobs without a slow rank in which one is found all the same.
FALSE_ALARMS = 0.005
# Slow ranks of which a region is named that is as fast as elsewhere.
FALSE_REGIONS = 0.01

# All compute is slow: regions that are not take less than a tenth of the time. It is slow alike: most of the time lies near
# the common ratio, and nearly all of it there or above, in regions that are slower still.
SHARE_UNTOUCHED, SHARE_ALIKE, SHARE_ALIKE_OR_SLOWER = 0.1, 0.5, 0.8
REGIONS_FOR_SLOW_GPU = 2


@dataclass(frozen=True)
class SlowRank:
    """A rank, the steps in which it is slow, the places of its slow regions, and by region the chance of it, alone or in its
    kind or with all of the rank's, corrected for all tests made."""

    rank: int
    span: Span
    regions: tuple[int, ...]
    cause: Cause
    chances: tuple[float, ...]


@dataclass(frozen=True)
class Slowness:
    """All slow ranks, and the look at the whole run, which tells what could have been seen."""

    ranks: tuple[SlowRank, ...]
    whole_run: Looked | None
    looks: tuple[Looked, ...]


def slow_ranks(evidence: Evidence) -> Slowness:
    """Every rank that is slow beyond chance, in the order of the ranks; two of one rank when a slow GPU has a slower region."""
    if evidence.comparisons == 0:
        return Slowness((), None, ())
    series = series_of(evidence)
    looks = looks_at(series, windows(evidence.deviations.shape[2]))
    adjusted = np.stack([_adjusted(look) for look in looks])
    best = np.argmin(adjusted, axis=0)
    slow = adjusted.min(axis=0) <= FALSE_ALARMS
    found: list[SlowRank] = []
    for rank in np.flatnonzero(slow | _promising(looks)).tolist():
        if slow[rank]:
            look = looks[int(best[rank])]
            found += _slow_rank(evidence, series, look.of_rank(series, rank, look.window), rank, look.tests)
        elif (segment := _in_its_segment(looks, series, rank)) is not None:
            found += _slow_rank(evidence, series, segment, rank, looks[0].tests)
    return Slowness(tuple(found), looks[0], tuple(looks))


def _promising(looks: list[Looked]) -> NDArray[np.bool_]:
    """The ranks that look slow in all or in a kind of region, in some part of the run; shape (ranks,)."""
    found = [
        (np.nan_to_num(one.location) >= SMALLEST).any(axis=0) for look in looks[1:] for one in (look.kinds, look.whole)
    ]
    return np.any(found, axis=0) if found else np.zeros(looks[0].regions.location.shape[1], dtype=np.bool_)


def _in_its_segment(looks: list[Looked], series: Series, rank: int) -> Looked | None:
    """The look at the steps in which a rank seems to be slow, where it is so beyond chance."""
    whole_run = looks[0]
    paces = [series.whole[0, rank]]
    if len(series.kinds):
        highest = np.max([np.nan_to_num(look.kinds.location[:, rank]) for look in looks], axis=0)
        paces.append(series.kinds[int(np.argmax(highest)), rank])
    for pace in paces:
        window = segment_of(pace, SMALLEST, whole_run.regions.noise.inflation)
        if window is not None:
            look = whole_run.of_rank(series, rank, window)
            if float(_adjusted(look, whole_run.tests)[0]) <= FALSE_ALARMS:
                return look
    return None


def _adjusted(look: Looked, tests: int | None = None) -> Floats:
    """By rank, the chance that any test of any window of a healthy job is as extreme (Bonferroni). tests: of all ranks."""
    by_region, by_kind, whole = look.chances()
    smallest = np.minimum(np.minimum(by_region.min(axis=0), by_kind.min(axis=0, initial=1.0)), whole)
    adjusted: Floats = np.minimum(1.0, smallest * (tests or look.tests) / look.window.share)
    return adjusted


def _slow_rank(evidence: Evidence, series: Series, look: Looked, rank: int, tests: int) -> list[SlowRank]:
    """look: at this rank alone, of so many tests of all ranks."""
    suspects = np.flatnonzero(_sure(look))
    pace = _mean_deviation(evidence, rank, suspects) if len(suspects) else evidence.whole[0, rank]
    span = span_of_effect(pace, SMALLEST / 2, look.regions.noise.inflation)
    final = look.of_rank(series, rank, Window(span.steps, 1.0))
    alike, slower = _alike(evidence, final.regions)
    named = _sure(final)
    if not named.any():
        named = np.nan_to_num(final.regions.location[:, 0]) >= SMALLEST
    parts: tuple[tuple[NDArray[np.bool_], Cause], ...] = ((named, "slow_region"),)
    if alike.any():
        parts = (alike, "slow_gpu"), (slower, "slow_region")
    chances = _region_chances(final) * tests / look.window.share
    return [
        SlowRank(rank, span, _places(regions), cause, tuple(np.minimum(1.0, chances[regions]).tolist()))
        for regions, cause in parts
        if regions.any()
    ]


def _region_chances(look: Looked) -> Floats:
    """The smallest chance of the looks that a region of the one rank takes part in; shape (regions,)."""
    by_region, by_kind, whole = look.chances()
    found: Floats = np.minimum(by_region[:, 0], whole[0])
    for kind, chance in zip(look.members, by_kind[:, 0], strict=True):
        found[kind] = np.minimum(found[kind], chance)
    return found


def _sure(look: Looked) -> NDArray[np.bool_]:
    """The regions of the one rank that are slow on their own account, or as part of a kind that is; shape (regions,)."""
    by_region, by_kind, _ = look.chances()
    slow = np.nan_to_num(look.regions.location[:, 0]) >= SMALLEST
    found = slow & (by_region[:, 0] * look.regions.tests <= FALSE_REGIONS)
    kinds = by_kind[:, 0] * len(by_kind) <= FALSE_REGIONS
    return np.asarray(found | (slow & look.members[kinds].any(axis=0)))


def _alike(evidence: Evidence, regions: Screen) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The regions of one rank that are slow by a common ratio if nearly all are, and those slower still; else none."""
    location, error = regions.location[:, 0], regions.error[:, 0]
    there = ~np.isnan(location)
    nobody = np.zeros(len(location), dtype=np.bool_)
    time = np.where(there, evidence.usual_ns, 0.0)
    names = {evidence.work.regions[place][0] for place in np.flatnonzero(there)}
    if len(names) < REGIONS_FOR_SLOW_GPU:
        return nobody, nobody
    common = _weighted_median(location[there], time[there])
    if common < SMALLEST / 2:
        return nobody, nobody
    # Of equally slow regions chance, and what healthy ranks differ by for good, keep nearly all this close.
    near = np.maximum(np.maximum(0.25 * common, 0.02), 2.5 * np.hypot(error, regions.noise.between))
    alike = there & (np.abs(location - common) <= near)
    untouched = there & (location < common / 2) & ~alike
    slower = there & (location > common + near) & (location - common >= SMALLEST)
    touched = time[there & ~untouched].sum()
    if (
        time[untouched].sum() > SHARE_UNTOUCHED * time.sum()
        or time[alike].sum() < SHARE_ALIKE * touched
        or time[alike | slower].sum() < SHARE_ALIKE_OR_SLOWER * touched
        or len({evidence.work.regions[place][0] for place in np.flatnonzero(alike)}) < REGIONS_FOR_SLOW_GPU
    ):
        return nobody, nobody
    return alike, slower


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _mean_deviation(evidence: Evidence, rank: int, regions: NDArray[np.intp]) -> Floats:
    """Mean deviation of some regions by step, weighted by their usual time; NaN where the rank ran none of them."""
    own = evidence.deviations[regions, rank]
    weights = np.where(np.isnan(own), 0.0, evidence.usual_ns[regions][:, None])
    total = weights.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, (np.nan_to_num(own) * weights).sum(axis=0) / total, np.nan)


def _places(chosen: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(chosen).tolist())


def rows(evidence: Evidence, found: SlowRank, slowness: Slowness) -> list[RegionEvidence]:
    """The comparisons that a slow rank rests on, over the steps in which it is slow."""
    assert slowness.whole_run is not None
    noise = slowness.whole_run.regions.noise
    return [
        evidence.row(region, found.rank, noise, found.span.steps, chance)
        for region, chance in zip(found.regions, found.chances, strict=True)
    ]
