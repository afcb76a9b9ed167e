"""From evidence to a verdict: which rank is slow, where, what it costs, or that nobody is.

A finding needs an effect of at least 5 %, beyond what chance does among all the comparisons made, and more time per step
than the clocks can be wrong by. Each cause is looked for on its own (causes/); several may be found. The verdict is
"inconclusive" where a slow rank could not have been seen, and where the steps of the ranks do not belong together.
"""

from __future__ import annotations

from annotq.collector.causes.global_slowdown import global_slowdown
from annotq.collector.causes.imbalance import imbalance
from annotq.collector.causes.late_launch import late_launches
from annotq.collector.causes.slow_link import slow_links
from annotq.collector.causes.slow_rank import Slowness, slow_ranks
from annotq.collector.causes.stage import slow_stages, stages
from annotq.collector.evidence import Evidence, compare
from annotq.collector.findings import IMBALANCES, STRAGGLERS, Verdict
from annotq.collector.findings import Finding as Finding
from annotq.collector.findings import RegionFinding as RegionFinding
from annotq.collector.launch_delays import launch_delays
from annotq.collector.receipt import Receipt, receipt
from annotq.collector.region_findings import region_findings
from annotq.collector.report import Report as Report
from annotq.collector.undecided import undecided
from annotq.collector.waits import RankWait, collective_steps
from annotq.collector.work import Ask, read_work


def straggler_report(ask: Ask, job: str, attempt: int) -> Report:
    """Judge one job attempt. `ask` runs SQL over the views; nothing else of the store is touched."""
    facts = receipt(ask, job, attempt)
    work = read_work(ask, job, attempt)
    evidence = compare(work)
    collectives = collective_steps(ask, job, attempt)
    waits = tuple(collectives.rank_waits())
    slowness = slow_ranks(evidence)
    findings: list[Finding] = []
    held_up: list[RegionFinding] = []
    too_small: list[Finding] = []
    # Where the steps of the ranks do not belong together nothing that was paired by them counts.
    if not mispaired(waits):
        caused = collectives.caused_waits()
        by_region = region_findings(ask, job, attempt, evidence, slowness, caused, facts)
        held_up, too_small = by_region.held_up, by_region.too_small
        findings += by_region.findings
        findings += late_launches(evidence, launch_delays(ask, job, attempt, work), caused, facts)
        findings += slow_links(collectives.transfers(), waits, facts)
        inflation = slowness.whole_run.whole.noise.inflation if slowness.whole_run else 1.0
        findings += slow_stages(work, stages(ask, job, attempt, work), inflation)
        named = {rank for finding in by_region.findings for rank in finding.ranks} | {
            row.evidence.rank for row in held_up
        }
        together = (imbalance(evidence, slowness, named), global_slowdown(evidence, slowness))
        findings += [finding for finding in together if finding]
    findings.sort(key=lambda finding: -finding.cost_ns_per_step)
    verdict, reason = _verdict(findings, held_up, evidence, slowness, facts, waits)
    return Report(
        job=job,
        attempt=attempt,
        verdict=verdict,
        reason=reason,
        findings=tuple(findings),
        held_up=tuple(held_up),
        comparison=evidence,
        slowness=slowness,
        waits=waits,
        receipt=facts,
        too_small=tuple(sorted(too_small, key=lambda finding: -finding.cost_ns_per_step)),
    )


def _verdict(
    findings: list[Finding],
    held_up: list[RegionFinding],
    evidence: Evidence,
    slowness: Slowness,
    facts: Receipt,
    waits: tuple[RankWait, ...],
) -> tuple[Verdict, str]:
    if any(finding.cause in STRAGGLERS for finding in findings):
        return "straggler", ""
    if len(facts.ranks_seen) < 2:
        seen = f"only rank {facts.ranks_seen[0]}" if facts.ranks_seen else "no rank"
        return "inconclusive", f"{seen} has data, there is nothing to compare"
    if mispaired(waits):
        return "inconclusive", (
            "the ranks' step numbers do not belong together: most collectives of a step do not overlap between the ranks"
        )
    if any(finding.cause in IMBALANCES for finding in findings):
        return "imbalance", ""
    explained = {row.evidence.rank for row in held_up}
    reason = undecided(evidence, slowness, explained, facts, waits)
    return ("inconclusive", reason) if reason else ("none", "")


def mispaired(waits: tuple[RankWait, ...]) -> bool:
    """Most collectives that should belong together by step and order do not even overlap in time."""
    return sum(row.disjoint for row in waits) > sum(row.judged for row in waits)
