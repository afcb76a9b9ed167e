"""Findings about ranks that compute longer, and what single kernels have to do with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from annotq.collector.causes.slow_rank import Slowness, SlowRank, rows
from annotq.collector.evidence import Evidence, RegionEvidence, against_others
from annotq.collector.findings import MINIMAL_EFFECT, Finding, RegionFinding, usual_region
from annotq.collector.receipt import Receipt
from annotq.collector.single_kernels import NodeMedians, node_medians
from annotq.collector.undecided import worth_naming
from annotq.collector.waits import CausedWait
from annotq.collector.work import Ask

NEGLIGIBLE_SHARE, SMALL_SHARE = 0.01, 0.05
# Against the effect in the rank's usual slow region.
HARDLY_SLOW = 0.25

# Node medians need every kernel of a region: of the costliest regions of the costliest findings, and of the ranks with
# the slow one only as many others as give a median.
REGIONS_BY_NODE, FINDINGS_BY_NODE, PEERS_BY_NODE = 32, 8, 15


@dataclass(frozen=True)
class RegionFindings:
    """findings: ranks that are slow. too_small: the same, but nobody would act on what it costs (undecided.worth_naming).
    held_up: regions that are slower only through single kernels that were held up."""

    findings: list[Finding]
    too_small: list[Finding]
    held_up: list[RegionFinding]


def region_findings(
    ask: Ask,
    job: str,
    attempt: int,
    evidence: Evidence,
    slowness: Slowness,
    caused: dict[int, CausedWait],
    facts: Receipt,
) -> RegionFindings:
    """What is found about the ranks of `slowness`. caused: by rank, how long the others wait for it."""
    error = facts.clock_error_ns or 0
    compared = [(found, rows(evidence, found, slowness)) for found in slowness.ranks]
    compared.sort(key=lambda pair: -_cost(pair[1]))
    findings: list[Finding] = []
    too_small: list[Finding] = []
    held_up: list[RegionFinding] = []
    for number, (found, regions) in enumerate(compared):
        nodes = _nodes(ask, job, attempt, evidence, found, regions) if number < FINDINGS_BY_NODE else {}
        judged = [RegionFinding(row, nodes.get((row.rank, row.region, row.phase))) for row in regions]
        slow = [row for row in judged if row.is_slow_code]
        held_up += [row for row in judged if not row.is_slow_code and row.excess_ns > error]
        if slow:
            finding = _finding(evidence, found, _that_matter(slow, error), caused, facts)
            if finding.cost_ns_per_step > worth_naming(evidence, found.rank, facts):
                findings.append(finding)
            elif finding.effect >= MINIMAL_EFFECT:
                too_small.append(finding)
    return RegionFindings(findings, too_small, held_up)


def _nodes(
    ask: Ask, job: str, attempt: int, evidence: Evidence, found: SlowRank, regions: list[RegionEvidence]
) -> dict[tuple[int, str, str], NodeMedians]:
    costliest = sorted(regions, key=lambda row: -row.median_excess_ns)[:REGIONS_BY_NODE]
    places = [evidence.work.regions.index((row.region, row.phase)) for row in costliest]
    others = np.flatnonzero(evidence.compared[places].all(axis=0))
    others = others[others != found.rank]
    # The most usual ones: nearest to the others' median over the whole run.
    usual = np.nanmedian(np.abs(evidence.whole[0, others]), axis=1)
    peers = others[np.argsort(usual, kind="stable")][:PEERS_BY_NODE]
    ranks = sorted(int(evidence.work.ranks[place]) for place in [found.rank, *peers.tolist()])
    steps = evidence.work.steps[found.span.steps]
    window = (int(steps[0]), int(steps[-1]))
    return node_medians(ask, job, attempt, [(row.region, row.phase) for row in costliest], ranks, window)


def _finding(
    evidence: Evidence, found: SlowRank, slow: list[RegionFinding], caused: dict[int, CausedWait], facts: Receipt
) -> Finding:
    regions = [row.evidence for row in slow]
    rank = regions[0].rank
    steps = evidence.work.steps
    usual = usual_region(slow)
    low, high = _interval(usual)
    return Finding(
        cause=found.cause,
        rank=rank,
        ranks=(rank,),
        host=facts.hosts.get(rank),
        effect=against_others(usual.typical_ratio, usual.evidence.ranks),
        effect_low=low,
        effect_high=high,
        cost_ns_per_step=_cost(regions),
        typical_cost_ns_per_step=sum(row.typical_excess_ns for row in slow),
        steps=max(len(row.steps) for row in regions),
        regions=tuple(slow),
        caused_wait=caused.get(rank),
        since_step=int(steps[found.span.first]) if found.span.first else None,
        until_step=int(steps[found.span.end - 1]) if found.span.end < len(steps) else None,
    )


def _interval(row: RegionFinding) -> tuple[float, float] | tuple[None, None]:
    """Of the effect in a region; None where it is not known: of node medians beside which single kernels moved the ratio."""
    low, high, ranks = row.evidence.ratio_low, row.evidence.ratio_high, row.evidence.ranks
    if low is None or high is None or row.single_kernels_matter:
        return None, None
    # The node medians' ratio may lie a little beside the measured one.
    return against_others(min(low, row.typical_ratio), ranks), against_others(max(high, row.typical_ratio), ranks)


def _that_matter(rows: list[RegionFinding], clock_error_ns: int) -> list[RegionFinding]:
    """Leave out regions that add less than a hundredth to what the rank loses and whose excess is below the clock error, and
    those that add less than a twentieth and are hardly slow beside the others."""
    cost = _cost([row.evidence for row in rows])
    usual = usual_region(rows).typical_ratio - 1
    return [
        row
        for row in rows
        if row.excess_ns > min(clock_error_ns, NEGLIGIBLE_SHARE * cost)
        and (row.excess_ns > SMALL_SHARE * cost or row.typical_ratio - 1 > HARDLY_SLOW * usual)
    ] or rows


def _cost(rows: list[RegionEvidence]) -> float:
    """Median over the steps of the excess of all regions together; a region that lacks a step adds nothing to it."""
    steps = np.unique(np.concatenate([row.steps for row in rows]))
    total = np.zeros(len(steps))
    for row in rows:
        total[np.searchsorted(steps, row.steps)] += row.excess_ns
    return float(np.median(total))
