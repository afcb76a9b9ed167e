"""From evidence to a verdict: which rank is slow, where, what it costs, or that nobody is.

A finding needs all of: an effect of at least 5 %, a 95 % interval of the ratio above 1, being the slowest in at least half
of the steps, more often than chance explains after correction for all comparisons, and more time per step than the
clocks can be wrong by. With too few steps for an interval the verdict is "inconclusive".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from annotq.collector.evidence import Ask, RegionEvidence, region_evidence
from annotq.collector.receipt import Receipt, receipt
from annotq.collector.single_kernels import NodeMedians, node_medians
from annotq.collector.statistics import binomial_tail
from annotq.collector.waits import CausedWait, RankWait, caused_waits, rank_waits

MINIMAL_EFFECT = 1.05
MINIMAL_SHARE = 0.5
FALSE_DISCOVERY_RATE = 0.01
MINIMAL_STEPS = 6


@dataclass(frozen=True)
class RegionFinding:
    """A region in which a rank is slow, with what its nodes' own medians say (None when they could not be taken)."""

    evidence: RegionEvidence
    nodes: NodeMedians | None

    @property
    def typical_ratio(self) -> float:
        """The ratio without single kernels that lasted far too long."""
        return self.nodes.ratio if self.nodes and self.nodes.ratio is not None else self.evidence.ratio

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

    closest: the comparison that came nearest to a finding, None when nothing could be compared. held_up: regions that are
    slower on a rank only because single kernels lasted too long; real time, but not slow code.
    """

    job: str
    attempt: int
    verdict: str
    reason: str
    findings: tuple[Finding, ...]
    held_up: tuple[RegionFinding, ...]
    closest: RegionEvidence | None
    comparisons: int
    steps: int
    waits: tuple[RankWait, ...]
    receipt: Receipt


def straggler_report(ask: Ask, job: str, attempt: int) -> Report:
    """Judge one job attempt. `ask` runs SQL over the views; nothing else of the store is touched."""
    facts = receipt(ask, job, attempt)
    evidence = region_evidence(ask, job, attempt)
    steps = max((len(row.steps) for row in evidence), default=0)
    suspects = [row for row in evidence if _is_slow(row, facts.clock_error_ns or 0)]
    nodes = node_medians(ask, job, attempt, sorted({(row.region, row.phase) for row in suspects}))
    judged = [RegionFinding(row, nodes.get((row.rank, row.region, row.phase))) for row in suspects]
    slow = [row for row in judged if row.typical_ratio >= MINIMAL_EFFECT]
    findings = _findings(slow, caused_waits(ask, job, attempt), facts)
    waits = rank_waits(ask, job, attempt)
    verdict, reason = _verdict(findings, evidence, steps, facts, waits)
    return Report(
        job=job,
        attempt=attempt,
        verdict=verdict,
        reason=reason,
        findings=findings,
        held_up=tuple(row for row in judged if row.typical_ratio < MINIMAL_EFFECT),
        closest=max(evidence, key=lambda row: row.ratio, default=None),
        comparisons=len(evidence),
        steps=steps,
        waits=tuple(waits),
        receipt=facts,
    )


def _is_slow(row: RegionEvidence, clock_error_ns: int) -> bool:
    return (
        row.ratio >= MINIMAL_EFFECT
        and row.ratio_low is not None
        and row.ratio_low > 1
        and row.slowest_share >= MINIMAL_SHARE
        and row.q_value <= FALSE_DISCOVERY_RATE
        and float(np.median(row.excess_ns)) > clock_error_ns
    )


def _findings(slow: list[RegionFinding], caused: dict[int, CausedWait], facts: Receipt) -> tuple[Finding, ...]:
    by_rank: dict[int, list[RegionFinding]] = {}
    for row in slow:
        by_rank.setdefault(row.evidence.rank, []).append(row)
    found = [
        Finding(
            rank, facts.hosts.get(rank), "slow_region", tuple(rows), _cost(rows), _typical_cost(rows), caused.get(rank)
        )
        for rank, rows in by_rank.items()
    ]
    return tuple(sorted(found, key=lambda finding: -finding.cost_ns_per_step))


def _cost(rows: list[RegionFinding]) -> float:
    """Median over the steps of the excess of all regions together; a region that lacks a step adds nothing to it."""
    steps = np.unique(np.concatenate([row.evidence.steps for row in rows]))
    total = np.zeros(len(steps))
    for row in rows:
        total[np.searchsorted(steps, row.evidence.steps)] += row.evidence.excess_ns
    return float(np.median(total))


def _typical_cost(rows: list[RegionFinding]) -> float:
    return sum(row.nodes.excess_ns if row.nodes else float(np.median(row.evidence.excess_ns)) for row in rows)


def _verdict(
    findings: tuple[Finding, ...], evidence: list[RegionEvidence], steps: int, facts: Receipt, waits: list[RankWait]
) -> tuple[str, str]:
    if findings:
        return "straggler", ""
    if len(facts.ranks_seen) < 2:
        return "inconclusive", f"only {len(facts.ranks_seen)} rank has data, there is nothing to compare it with"
    if not evidence:
        return "inconclusive", "no region ran in the same step on two ranks"
    if steps < MINIMAL_STEPS:
        return "inconclusive", f"{steps} steps are too few to judge, at least {MINIMAL_STEPS} are needed"
    late = next((row for row in waits if _always_late(row, waits)), None)
    if late:
        where = f"{late.name} in {late.region}" if late.region else late.name
        return "inconclusive", (
            f"rank {late.rank} is the last to arrive at {late.last} of {late.judged} {where}, but no region explains it "
            "(a late launch, or work outside of regions)"
        )
    return "none", ""


def _always_late(row: RankWait, waits: list[RankWait]) -> bool:
    """Last so often that chance does not explain it, and the others wait long enough for it to matter."""
    same = [other for other in waits if (other.name, other.region, other.phase) == (row.name, row.region, row.phase)]
    others = [other.wait_ns for other in same if other.rank != row.rank and other.wait_ns is not None]
    if row.judged < MINIMAL_STEPS or not others or row.transfer_ns is None:
        return False
    chance = binomial_tail(row.last, row.judged, 1 / len(same)) * len(waits)
    matters = float(np.median(others)) > (MINIMAL_EFFECT - 1) * row.transfer_ns
    return row.last > MINIMAL_SHARE * row.judged and chance < FALSE_DISCOVERY_RATE and matters
