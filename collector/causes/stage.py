"""A pipeline stage whose ranks all compute longer per step than those of the other stages (`stage`).

The stages are the ranks' pp coordinate; without coordinates, sets of ranks that have no region in common with each other.
Within a stage its ranks are compared as usual, so a single slow rank does not make its stage slow.
"""

from __future__ import annotations

import json
import math

import numpy as np

from annotq.collector.findings import MINIMAL_EFFECT, Finding
from annotq.collector.onset import span_of_effect
from annotq.collector.screen import screen, windows
from annotq.collector.statistics import Floats, median_interval, medians, medians_of_others
from annotq.collector.work import Ask, Work

COORDINATES = "SELECT rank, coordinates FROM process WHERE job = ? AND attempt = ? ORDER BY rank ASC NULLS LAST"
FALSE_ALARMS = 0.001
# Without coordinates, a stage of one rank could as well be a rank with work of its own.
FEWEST_RANKS = 2

Stages = list[tuple[str, list[int]]]


def stages(ask: Ask, job: str, attempt: int, work: Work) -> Stages:
    """(name, places of its ranks) of every pipeline stage, in order; fewer than two when there is no pipeline."""
    named: dict[int, list[int]] = {}
    for row in ask(COORDINATES, [job, attempt]).to_pylist():
        place = np.flatnonzero(work.ranks == row["rank"])
        coordinate = _pipeline(row["coordinates"])
        if len(place) and coordinate is not None:
            named.setdefault(coordinate, []).append(int(place[0]))
    if sum(map(len, named.values())) == len(work.ranks):
        return [(str(number), named[number]) for number in sorted(named)]
    return _by_regions(work)


def _pipeline(coordinates: str | None) -> int | None:
    try:
        found = json.loads(coordinates or "{}").get("pp")
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, int) else None


def _by_regions(work: Work) -> Stages:
    ran = np.asarray((~np.isnan(work.compute_ns)).any(axis=2))
    kinds: dict[bytes, list[int]] = {}
    for rank in range(len(work.ranks)):
        kinds.setdefault(ran[:, rank].tobytes(), []).append(rank)
    groups = list(kinds.values())
    together = ran[:, [group[0] for group in groups]].sum(axis=1)
    if together.max(initial=0) > 1 or any(len(group) < FEWEST_RANKS for group in groups):
        return []
    return [(str(number), group) for number, group in enumerate(groups)]


def slow_stages(work: Work, pipeline: Stages, inflation: float) -> list[Finding]:
    """inflation: of the variance by dependence between the steps, as the ranks show it."""
    if len(pipeline) < 2:
        return []
    times = np.concatenate([medians(work.total_ns[ranks], axis=0) for _, ranks in pipeline])
    others = medians_of_others(times, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = np.log(np.maximum(times, 1) / np.maximum(others, 1))
    found = []
    for look in [screen(deviations[None], window) for window in windows(deviations.shape[1])]:
        large = np.nan_to_num(look.location) >= math.log(MINIMAL_EFFECT)
        slow = look.chance(large)[0] * look.tests / look.window.share <= FALSE_ALARMS
        found += [stage for stage in np.flatnonzero(slow).tolist() if stage not in found]
    return [
        _finding(work, pipeline[stage], times[stage], others[stage], deviations[stage], inflation) for stage in found
    ]


def _finding(
    work: Work, stage: tuple[str, list[int]], times: Floats, others: Floats, deviations: Floats, inflation: float
) -> Finding:
    span = span_of_effect(deviations, math.log(MINIMAL_EFFECT) / 2, inflation)
    valid = np.flatnonzero(~np.isnan(deviations[span.steps])) + span.first
    interval = median_interval(deviations[valid], inflation)
    name, ranks = stage
    return Finding(
        cause="stage",
        rank=None,
        ranks=tuple(int(work.ranks[place]) for place in ranks),
        host=None,
        effect=math.exp(float(np.median(deviations[valid]))),
        effect_low=math.exp(interval[0]) if interval else None,
        effect_high=math.exp(interval[1]) if interval else None,
        cost_ns_per_step=float(np.median(times[valid] - others[valid])),
        steps=len(valid),
        since_step=int(work.steps[span.first]) if span.first else None,
        until_step=int(work.steps[span.end - 1]) if span.end < len(work.steps) else None,
        detail=name,
    )
