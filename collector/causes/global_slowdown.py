"""Everybody computes longer than earlier in the same job (`global`): change points in what the ranks have in common.

Whether a job is slower than another job or attempt is not asked here; `annotq diff` does.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from annotq.collector.causes.slow_rank import Slowness
from annotq.collector.evidence import Evidence
from annotq.collector.findings import MINIMAL_EFFECT, Finding
from annotq.collector.onset import Asked, Segment, Span, best_segment
from annotq.collector.statistics import Floats, medians, variance_inflation

# Before the rise, and after it.
FEWEST_STEPS = 3
FEW_RANKS = 64
# Nothing but the segment itself says that anything changed, so it has to explain more than the span of a finding; then noise
# of 20 steps shows one in about 1 of 500 series (onset.EDGE).
EDGE = 4.0


def global_slowdown(evidence: Evidence, slowness: Slowness) -> Finding | None:
    """The finding, without a rank; None where the job was never slower than before."""
    series = usual_pace(evidence, slowness)
    known = np.flatnonzero(~np.isnan(series))
    if len(known) < 2 * FEWEST_STEPS or slowness.whole_run is None:
        return None
    segment = _rise(series[known], slowness.whole_run.whole.noise.inflation)
    if segment is None:
        return None
    first, end = segment.span.first, segment.span.end
    steps, ranks = evidence.work.steps, evidence.work.ranks
    rise = segment.inside - segment.outside
    before_ns = float(np.nanmedian(evidence.work.total_ns[:, known[:first]]))
    return Finding(
        cause="global",
        rank=None,
        ranks=tuple(int(rank) for rank in ranks),
        host=None,
        effect=math.exp(rise),
        cost_ns_per_step=before_ns * (math.exp(rise) - 1),
        steps=end - first,
        since_step=int(steps[known[first]]),
        until_step=int(steps[known[end - 1]]) if end < len(known) else None,
    )


def _rise(values: Floats, inflation: float) -> Segment | None:
    """The segment that is slower than the steps before it, beyond what noise does; inflation: as the ranks show it."""
    asked = Asked(math.log(MINIMAL_EFFECT), inflation, edge=EDGE)
    segment = best_segment(values, asked)
    if segment and segment.span.first == 0:
        # A slow beginning hides what comes after it.
        return _later(_rise(values[segment.span.end :], inflation), segment.span.end)
    if segment is None:
        return None
    # As the steps themselves depend on each other around their two levels.
    levels = np.full(len(values), segment.outside)
    levels[segment.span.steps] = segment.inside
    own = variance_inflation((values - levels)[None])
    if own > inflation:
        segment = best_segment(values, replace(asked, inflation=own))
    if segment is None or min(segment.span.first, segment.span.end - segment.span.first) < FEWEST_STEPS:
        return None
    return segment


def _later(segment: Segment | None, steps: int) -> Segment | None:
    """The same segment in a series that has so many more steps before it."""
    if segment is None:
        return None
    return replace(segment, span=Span(segment.span.first + steps, segment.span.end + steps))


def usual_pace(evidence: Evidence, slowness: Slowness) -> Floats:
    """How long a step's regions take on the ranks that are not slow, as a logarithm, 0 at its usual level; by step.

    The median over the regions, each against its own median over the steps.
    """
    usual = evidence.median_ns[:, 0]
    if slowness.ranks and len(evidence.work.ranks) <= FEW_RANKS:
        # Among many, a few slow ranks do not move the median.
        times = evidence.compute_ns.copy()
        times[:, [found.rank for found in slowness.ranks]] = np.nan
        usual = medians(times, axis=1)[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.log(usual / medians(usual))
    there = (~np.isnan(pace)).sum(axis=1) >= 2 * FEWEST_STEPS
    if not there.any():
        return np.full(usual.shape[1], np.nan)
    return np.asarray(medians(pace[there], axis=0)[0])
