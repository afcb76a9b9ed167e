"""Ranks whose GPU has nothing to do at the start of a step, because the host launches late (`late_launch`).

The gap from the end of all earlier work of the rank to the first work of the step needs no other rank's clock. A rank that
is late because a collective of another group ended late has no such gap: its GPU was busy, waiting. A gap counts as far
as the host launched late after the beginning of its own step (launch_delays.py), where the trace shows that.
"""

from __future__ import annotations

import numpy as np

from annotq.collector.evidence import Evidence
from annotq.collector.findings import MINIMAL_EFFECT, Finding
from annotq.collector.onset import span_of_effect
from annotq.collector.receipt import Receipt
from annotq.collector.screen import Screen, screen, segment_of, windows
from annotq.collector.statistics import Floats, median_interval, medians_of_others
from annotq.collector.waits import CausedWait
from annotq.collector.work import Work

FALSE_ALARMS = 0.001
# What the gaps of healthy ranks differ by for good, in steps.
USUAL_DIFFERENCE = 0.005
SMALLEST = MINIMAL_EFFECT - 1


def launch_gaps(work: Work) -> Floats:
    """Time before the first work of each step in which the rank's GPU was idle, in ns; shape (ranks, steps).

    NaN for a rank's first step, of which nothing is known, and where it did not run.
    """
    before = np.full_like(work.end_ns, np.nan)
    if work.end_ns.shape[1] > 1:
        before[:, 1:] = np.fmax.accumulate(work.end_ns, axis=1)[:, :-1]
    return np.maximum(work.start_ns - before, 0)


def lateness(evidence: Evidence, delays: Floats) -> Floats:
    """By how much a rank's gap, its gap and its computing together, and its delay of the launch where it is known, exceed
    the other ranks': the smallest of the three; in ns. delays: shape (ranks, steps)."""
    gaps = launch_gaps(evidence.work)
    longer = gaps - medians_of_others(gaps, axis=0)
    computed = np.where(np.isnan(evidence.deviations), 0.0, evidence.compute_ns).sum(axis=0)
    # NaN for a rank without peers: of a short stage nobody knows whether its gap is the others' doing.
    more = computed - computed / np.exp(evidence.whole[0])
    late = np.where(np.isnan(more), np.nan, np.minimum(longer, longer + more))
    later = delays - medians_of_others(delays, axis=0)
    return np.where(np.isnan(later), late, np.minimum(late, later))


def late_launches(evidence: Evidence, delays: Floats, caused: dict[int, CausedWait], facts: Receipt) -> list[Finding]:
    """Ranks whose gap is longer than the other ranks' by at least a twentieth of a step, beyond chance."""
    work, step_ns = evidence.work, evidence.work.step_ns
    if evidence.comparisons == 0 or len(work.steps) < 2 or step_ns <= 0:
        return []
    excess = lateness(evidence, delays)
    shares = (excess / step_ns)[None]
    looks = [screen(shares, window, USUAL_DIFFERENCE) for window in windows(shares.shape[2])]
    adjusted = np.stack([_adjusted(look) for look in looks]).min(axis=0)
    late = np.stack([np.nan_to_num(look.location[0]) for look in looks]).max(axis=0) >= SMALLEST
    for rank in np.flatnonzero(late & (adjusted > FALSE_ALARMS)).tolist():
        adjusted[rank] = _in_its_segment(looks[0], shares, rank)
    found = np.flatnonzero(adjusted <= FALSE_ALARMS).tolist()
    made = [_finding(work, rank, excess[rank], step_ns, looks[0], caused, facts) for rank in found]
    return [finding for finding in made if finding.cost_ns_per_step > SMALLEST * step_ns]


def _adjusted(look: Screen) -> Floats:
    late = np.nan_to_num(look.location) >= SMALLEST
    adjusted: Floats = np.minimum(1.0, look.chance(late)[0] * look.tests / look.window.share)
    return adjusted


def _in_its_segment(whole_run: Screen, shares: Floats, rank: int) -> float:
    """The same for one rank in the steps in which it seems to be late."""
    window = segment_of(shares[0, rank], SMALLEST, whole_run.noise.inflation)
    if window is None:
        return 1.0
    look = whole_run.of_rank(shares, rank, window)
    late = np.nan_to_num(look.location) >= SMALLEST
    return float(look.chance(late)[0, 0]) * whole_run.tests / window.share


def _finding(
    work: Work, rank: int, excess: Floats, step_ns: float, look: Screen, caused: dict[int, CausedWait], facts: Receipt
) -> Finding:
    span = span_of_effect(excess / step_ns, SMALLEST / 2, look.noise.inflation)
    held = excess[span.steps]
    held = held[~np.isnan(held)]
    interval = median_interval(held, look.noise.inflation)
    number = int(work.ranks[rank])
    cost = float(np.median(held))
    return Finding(
        cause="late_launch",
        rank=number,
        ranks=(number,),
        host=facts.hosts.get(number),
        effect=1 + cost / step_ns,
        effect_low=1 + interval[0] / step_ns if interval else None,
        effect_high=1 + interval[1] / step_ns if interval else None,
        cost_ns_per_step=cost,
        steps=len(held),
        caused_wait=caused.get(number),
        # The first step has no gap, so an effect that begins with the second held from the start.
        since_step=int(work.steps[span.first]) if span.first > 1 else None,
        until_step=int(work.steps[span.end - 1]) if span.end < len(work.steps) else None,
    )
