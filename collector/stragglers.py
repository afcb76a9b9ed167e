"""From evidence to a verdict: which rank is slow, where, what it costs, or that nobody is.

A finding needs all of: an effect of at least 5 %, a 95 % interval of the ratio above 1, being the slowest, or above the
median, more often than chance explains after correction for all comparisons, and more time per step, its regions together,
than the clocks can be wrong by. Several ranks may be slow in the same region. The verdict is "inconclusive" with too few
steps for an interval or to tell from chance, and where the steps of the ranks prove not to belong together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from annotq.collector.evidence import Ask, RegionEvidence, against_others, region_evidence, step_evidence
from annotq.collector.receipt import Receipt, receipt
from annotq.collector.single_kernels import NodeMedians, node_medians
from annotq.collector.statistics import binomial_tail
from annotq.collector.waits import CausedWait, RankWait, caused_waits, rank_waits

MINIMAL_EFFECT = 1.05
MINIMAL_SHARE = 0.5
FALSE_DISCOVERY_RATE = 0.01
MINIMAL_STEPS = 6
NEGLIGIBLE_SHARE = 0.01


@dataclass(frozen=True)
class RegionFinding:
    """A region in which a rank is slow, with what its nodes' own medians say (None when they could not be taken)."""

    evidence: RegionEvidence
    nodes: NodeMedians | None

    @property
    def excess_ns(self) -> float:
        """Median over the steps of the time beyond the ranks' median."""
        return self.evidence.median_excess_ns

    @property
    def typical_ratio(self) -> float:
        """The ratio without single kernels that lasted far too long."""
        return self.nodes.ratio if self.nodes and self.nodes.ratio is not None else self.evidence.ratio

    @property
    def is_slow_code(self) -> bool:
        """Whether the effect remains without such kernels."""
        return against_others(self.typical_ratio, self.evidence.ranks) >= MINIMAL_EFFECT

    @property
    def single_kernels_matter(self) -> bool:
        """Whether single kernels move the measured ratio by more than a fifth."""
        held = self.nodes is not None and self.nodes.held_kernels > 0
        return held and abs(self.evidence.ratio - self.typical_ratio) > 0.2 * self.typical_ratio


@dataclass(frozen=True)
class Finding:
    """One rank that is slow for one cause.

    cost_ns_per_step: median over the steps of the time its regions take beyond the ranks' median.
    typical_cost_ns_per_step: the same by node medians, without single kernels that lasted far too long.
    caused_wait: how long the others wait for it at collectives; None when it never arrives last.
    """

    rank: int
    host: str | None
    cause: str
    regions: tuple[RegionFinding, ...]
    cost_ns_per_step: float
    typical_cost_ns_per_step: float
    caused_wait: CausedWait | None

    @property
    def single_kernels_matter(self) -> bool:
        return any(row.single_kernels_matter for row in self.regions)


@dataclass(frozen=True)
class Report:
    """The answer for one job attempt: verdict is straggler, none or inconclusive.

    evidence: every comparison made, one per (region, phase, rank). closest: the one that came nearest to a finding, None
    when nothing could be compared. held_up: regions that are slower on a rank only because single kernels lasted too
    long; real time, but not slow code. not_judged: ranks that have too few steps in common with the others.
    """

    job: str
    attempt: int
    verdict: str
    reason: str
    findings: tuple[Finding, ...]
    held_up: tuple[RegionFinding, ...]
    closest: RegionEvidence | None
    not_judged: tuple[int, ...]
    evidence: tuple[RegionEvidence, ...]
    steps: int
    waits: tuple[RankWait, ...]
    receipt: Receipt


def straggler_report(ask: Ask, job: str, attempt: int) -> Report:
    """Judge one job attempt. `ask` runs SQL over the views; nothing else of the store is touched."""
    facts = receipt(ask, job, attempt)
    evidence = region_evidence(ask, job, attempt)
    steps = max((len(row.steps) for row in evidence), default=0)
    suspects = [row for row in evidence if _is_slow(row)]
    nodes = node_medians(ask, job, attempt, sorted({(row.region, row.phase) for row in suspects}))
    judged = [RegionFinding(row, nodes.get((row.rank, row.region, row.phase))) for row in suspects]
    slow = [row for row in judged if row.is_slow_code]
    comparable = [row for row in evidence if row.ratio_low is not None]
    waits = rank_waits(ask, job, attempt)
    # Where the steps of the ranks do not belong together nothing that was paired by them counts.
    findings = () if _mispaired(waits) else _findings(slow, caused_waits(ask, job, attempt), facts)
    verdict, reason = _verdict(findings, evidence, steps, facts, waits)
    if verdict == "none":
        known = {row.evidence.rank for row in judged}
        whole = [row for row in step_evidence(ask, job, attempt) if row.rank not in known]
        verdict, reason = _whole_steps(whole, facts.clock_error_ns or 0)
    return Report(
        job=job,
        attempt=attempt,
        verdict=verdict,
        reason=reason,
        findings=findings,
        held_up=tuple(row for row in judged if not row.is_slow_code and row.excess_ns > (facts.clock_error_ns or 0)),
        closest=max(comparable or evidence, key=lambda row: row.ratio, default=None),
        not_judged=tuple(sorted(set(facts.ranks_seen) - {row.rank for row in comparable})),
        evidence=tuple(evidence),
        steps=steps,
        waits=tuple(waits),
        receipt=facts,
    )


def _is_slow(row: RegionEvidence) -> bool:
    return _stands_out(row) and row.q_value <= FALSE_DISCOVERY_RATE


def _is_undecided(row: RegionEvidence) -> bool:
    """Slowest, or above the median, in every step there is, and even that could be chance."""
    always = row.slowest_share == 1 or row.above_share == 1
    return _stands_out(row) and always and row.q_value > FALSE_DISCOVERY_RATE


def _stands_out(row: RegionEvidence) -> bool:
    return row.against_others >= MINIMAL_EFFECT and row.ratio_low is not None and row.ratio_low > 1


def _findings(slow: list[RegionFinding], caused: dict[int, CausedWait], facts: Receipt) -> tuple[Finding, ...]:
    by_rank: dict[int, list[RegionFinding]] = {}
    for row in slow:
        by_rank.setdefault(row.evidence.rank, []).append(row)
    error = facts.clock_error_ns or 0
    found = [_finding(rank, _that_matter(rows, error), caused, facts) for rank, rows in by_rank.items()]
    found = [finding for finding in found if finding.cost_ns_per_step > error]
    return tuple(sorted(found, key=lambda finding: -finding.cost_ns_per_step))


def _finding(rank: int, rows: list[RegionFinding], caused: dict[int, CausedWait], facts: Receipt) -> Finding:
    cost, typical = _cost(rows), _typical_cost(rows)
    return Finding(rank, facts.hosts.get(rank), "slow_region", tuple(rows), cost, typical, caused.get(rank))


def _that_matter(rows: list[RegionFinding], clock_error_ns: int) -> list[RegionFinding]:
    """Leave out regions whose excess is below the clock error and below a hundredth of what the rank loses in all."""
    floor = min(clock_error_ns, NEGLIGIBLE_SHARE * _cost(rows))
    return [row for row in rows if row.excess_ns > floor] or rows


def _cost(rows: list[RegionFinding]) -> float:
    """Median over the steps of the excess of all regions together; a region that lacks a step adds nothing to it."""
    steps = np.unique(np.concatenate([row.evidence.steps for row in rows]))
    total = np.zeros(len(steps))
    for row in rows:
        total[np.searchsorted(steps, row.evidence.steps)] += row.evidence.excess_ns
    return float(np.median(total))


def _typical_cost(rows: list[RegionFinding]) -> float:
    return sum(row.nodes.excess_ns if row.nodes else row.excess_ns for row in rows)


def _verdict(
    findings: tuple[Finding, ...], evidence: list[RegionEvidence], steps: int, facts: Receipt, waits: list[RankWait]
) -> tuple[str, str]:
    if findings:
        return "straggler", ""
    if len(facts.ranks_seen) < 2:
        seen = f"only rank {facts.ranks_seen[0]}" if facts.ranks_seen else "no rank"
        return "inconclusive", f"{seen} has data, there is nothing to compare"
    if _mispaired(waits):
        return "inconclusive", (
            "the ranks' step numbers do not belong together: most collectives of a step do not overlap between the ranks"
        )
    if not evidence:
        return "inconclusive", "no region ran in the same step on two ranks"
    if steps < MINIMAL_STEPS:
        common = f"{steps} common steps are" if steps > 1 else "1 common step is"
        return "inconclusive", f"{common} too few to judge, at least {MINIMAL_STEPS} are needed"
    undecided = max(filter(_is_undecided, evidence), key=lambda row: row.ratio, default=None)
    if undecided:
        return "inconclusive", (
            f"rank {undecided.rank} takes {undecided.against_others:.2f} times as long in {undecided.region} "
            f"{undecided.phase} in all {len(undecided.steps)} steps, but that can be chance among "
            f"{len(evidence)} comparisons of {undecided.ranks} ranks; more steps would tell"
        )
    late = next((row for row in waits if _always_late(row, waits)), None)
    if late:
        return "inconclusive", (
            f"rank {late.rank} is the last to arrive at {late.last} of {late.judged} {late.title}, but no region explains it "
            "(a late launch, or work outside of regions)"
        )
    return "none", ""


def _whole_steps(evidence: list[RegionEvidence], clock_error_ns: int) -> tuple[str, str]:
    """No region is slow; is a rank slow all the same, by work that no other rank has or that lies in no region?"""
    found = [row for row in evidence if _is_slow(row) and row.median_excess_ns > clock_error_ns]
    slow = max(found, key=lambda row: row.ratio, default=None)
    if slow is None:
        return "none", ""
    return "inconclusive", (
        f"rank {slow.rank} computes {slow.against_others:.2f} times as long in a step as the others, but no region shows it: "
        "work outside of regions, or in a region that only it runs"
    )


def _mispaired(waits: list[RankWait]) -> bool:
    """Most collectives that should belong together by step and order do not even overlap in time."""
    return sum(row.disjoint for row in waits) > sum(row.judged for row in waits)


def _always_late(row: RankWait, waits: list[RankWait]) -> bool:
    """Last so often that chance does not explain it, and the others wait long enough for it to matter."""
    same = [other for other in waits if other.kind == row.kind]
    others = [other.wait_ns for other in same if other.rank != row.rank and other.wait_ns is not None]
    if row.judged < MINIMAL_STEPS or not others or row.transfer_ns is None:
        return False
    chance = binomial_tail(row.last, row.judged, 1 / len(same)) * len(waits)
    matters = float(np.median(others)) > (MINIMAL_EFFECT - 1) * row.transfer_ns
    return row.last > MINIMAL_SHARE * row.judged and chance < FALSE_DISCOVERY_RATE and matters
