"""Why a job without a finding cannot be called fine, and how many steps would tell."""

from __future__ import annotations

import numpy as np

from annotq.collector.causes.slow_rank import Slowness
from annotq.collector.detectable import FEWEST_STEPS, bearable, detectable, slow_in_total, steps_to_see
from annotq.collector.evidence import Evidence
from annotq.collector.findings import MINIMAL_EFFECT
from annotq.collector.looks import Looked
from annotq.collector.receipt import Receipt
from annotq.collector.statistics import binomial_tail, medians
from annotq.collector.waits import RankWait, titles

# A job in which a rank slower by this factor could hide is not called fine.
HIDDEN = 1.25
# A difference that chance makes less often than this in a whole job, but too often for a finding, is left open.
SUSPICIOUS = 0.02
FEWEST_WAITS = 6
# Chance that one of the ranks is the last to arrive so often.
LATE_BY_CHANCE = 0.01
# Waits shorter than this share of a step matter to nobody.
WAIT_SHARE = 0.05


# Time lost in a step that nobody would act on: as a share of what the rank computes in it, and of all the time it lasts.
NEGLIGIBLE_COST = 0.001
NEGLIGIBLE_OF_STEP = 0.0001


def worth_naming(evidence: Evidence, rank: int, facts: Receipt) -> float:
    """Time per step below which nothing is said about a rank (its place): the clocks' error, or nothing to speak of."""
    computed = NEGLIGIBLE_COST * float(np.nan_to_num(medians(evidence.work.total_ns[rank]))[0])
    return max(facts.clock_error_ns or 0, computed, NEGLIGIBLE_OF_STEP * evidence.work.step_ns)


def undecided(
    evidence: Evidence, slowness: Slowness, explained: set[int], facts: Receipt, waits: tuple[RankWait, ...]
) -> str:
    """A clause that says it; empty when nothing is open. explained: ranks whose slowness single kernels explain."""
    look = slowness.whole_run
    if look is None:
        return "no region ran in the same step on two ranks"
    if look.regions.tests == 0:
        common = f"{evidence.steps} common steps are" if evidence.steps > 1 else "1 common step is"
        return f"{common} too few to judge, at least {FEWEST_STEPS} are needed"
    return (
        _suspicion(evidence, look, explained, facts)
        or _hidden(evidence, slowness)
        or _outside_of_regions(evidence, explained, facts)
        or _unexplained_lateness(evidence, [row for row in waits if row.rank not in explained], waits)
    )


def _suspicion(evidence: Evidence, look: Looked, explained: set[int], facts: Receipt) -> str:
    """A rank that looks slow, in too few steps to exclude chance."""
    chances = look.chances()[0].copy()
    chances[:, np.isin(evidence.work.ranks, list(explained))] = 1.0
    region, rank = np.unravel_index(int(np.argmin(chances)), chances.shape)
    if chances[region, rank] * look.tests > SUSPICIOUS:
        return ""
    row = evidence.row(int(region), int(rank), look.regions.noise)
    if row.median_excess_ns <= worth_naming(evidence, int(rank), facts):
        return ""
    needed = look.regions.steps_needed(int(region), int(rank), bearable(look))
    more = f"about {needed} steps would tell" if needed else "more steps would not tell"
    return (
        f"rank {row.rank} takes {np.exp(look.regions.location[region, rank]):.2f} times as long in {row.region} {row.phase} "
        f"over {len(row.steps)} steps, but that can be chance among {evidence.comparisons} comparisons of {row.ranks} ranks; "
        f"if it stays so, {more}"
    )


def _hidden(evidence: Evidence, slowness: Slowness) -> str:
    """So few steps, or so much noise, that a slow rank would not have been seen."""
    assert slowness.whole_run is not None
    smallest = detectable(slowness)
    if smallest is not None and smallest <= HIDDEN:
        return ""
    needed = steps_to_see(slowness.whole_run, HIDDEN)
    seen = (
        f"only a rank slower by a factor of {smallest:.2f} would have shown"
        if smallest
        else "no slow rank would have shown"
    )
    more = (
        f"about {needed} steps would show one of {HIDDEN:.2f}"
        if needed
        else "the noise is too large for any number of steps"
    )
    return f"in {evidence.steps} steps {seen} against the noise; {more}"


def _outside_of_regions(evidence: Evidence, explained: set[int], facts: Receipt) -> str:
    """A rank computes more in a step than the others, but not in a region that they have, too."""
    found = slow_in_total(evidence)
    if found is None or found.rank in explained or found.excess_ns <= (facts.clock_error_ns or 0):
        return ""
    return (
        f"rank {found.rank} computes {found.ratio:.2f} times as long in a step as the others, but no region shows it: "
        "work outside of regions, or in a region that only it runs"
    )


def _unexplained_lateness(evidence: Evidence, open_to: list[RankWait], waits: tuple[RankWait, ...]) -> str:
    late = next((row for row in open_to if _always_late(row, waits, evidence.work.step_ns)), None)
    if late is None:
        return ""
    group = f" of group {late.group}" if len({row.group for row in waits}) > 1 else ""
    return (
        f"rank {late.rank} is the last to arrive at {late.last} of {late.judged} {titles(waits)[late.kind]}{group}, "
        f"but no region explains it "
        "(work outside of regions, or waiting that the traces do not show)"
    )


def _always_late(row: RankWait, waits: tuple[RankWait, ...], step_ns: float) -> bool:
    """Last so often that chance does not explain it, and the others wait long enough for it to matter."""
    if row.judged < FEWEST_WAITS or row.transfer_ns is None or 2 * row.last <= row.judged:
        return False
    same = [other for other in waits if other.kind == row.kind]
    others = [other.wait_ns for other in same if other.rank != row.rank and other.wait_ns is not None]
    if not others:
        return False
    chance = binomial_tail(row.last, row.judged, 1 / len(same)) * len(waits)
    wait = float(np.median(others))
    return chance < LATE_BY_CHANCE and wait > max((MINIMAL_EFFECT - 1) * row.transfer_ns, WAIT_SHARE * step_ns)
