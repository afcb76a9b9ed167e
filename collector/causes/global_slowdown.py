"""Everybody computes longer than earlier in the same job (`global`): a change point in what the ranks have in common.

Whether a job is slower than another job or attempt is not asked here; `annotq diff` does.
"""

from __future__ import annotations

import math

import numpy as np

from annotq.collector.causes.slow_rank import Slowness
from annotq.collector.evidence import Evidence
from annotq.collector.findings import MINIMAL_EFFECT, Finding
from annotq.collector.onset import CLEAR, best_shift
from annotq.collector.statistics import Floats, medians, variance_inflation

FEWEST_BEFORE, FEWEST_AFTER = 3, 3
FEW_RANKS = 64


def global_slowdown(evidence: Evidence, slowness: Slowness) -> Finding | None:
    """The finding, without a rank; None where the job is no slower at its end than before."""
    series = usual_pace(evidence, slowness)
    known = np.flatnonzero(~np.isnan(series))
    values = series[known]
    if len(values) < FEWEST_BEFORE + FEWEST_AFTER or slowness.whole_run is None:
        return None
    shift = best_shift(values)
    if shift is None:
        return None
    residuals = values - np.where(np.arange(len(values)) < shift.at, shift.before, shift.after)
    inflation = max(variance_inflation(residuals[None]), slowness.whole_run.whole.noise.inflation)
    rise = shift.after - shift.before
    clear = shift.strength >= CLEAR * math.sqrt(inflation)
    long_enough = shift.at >= FEWEST_BEFORE and len(values) - shift.at >= FEWEST_AFTER
    if not clear or not long_enough or rise < math.log(MINIMAL_EFFECT) or not _holds(values[shift.at :], shift.before):
        return None
    steps, ranks = evidence.work.steps, evidence.work.ranks
    before_ns = float(np.nanmedian(evidence.work.total_ns[:, known[: shift.at]]))
    return Finding(
        cause="global",
        rank=None,
        ranks=tuple(int(rank) for rank in ranks),
        host=None,
        effect=math.exp(rise),
        cost_ns_per_step=before_ns * (math.exp(rise) - 1),
        steps=len(values) - shift.at,
        since_step=int(steps[known[shift.at]]),
    )


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
    there = (~np.isnan(pace)).sum(axis=1) >= FEWEST_BEFORE + FEWEST_AFTER
    if not there.any():
        return np.full(usual.shape[1], np.nan)
    return np.asarray(medians(pace[there], axis=0)[0])


def _holds(after: Floats, before: float) -> bool:
    """Whether the last steps are still nearer to the new level than to the old one."""
    return float(np.median(after[-FEWEST_AFTER:])) > (before + float(np.median(after))) / 2
