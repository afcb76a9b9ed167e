"""The straggler report as the JSON object that scripts rely on."""

from __future__ import annotations

from dataclasses import asdict

from annotq.collector.evidence import RegionEvidence
from annotq.collector.explain import explain_finding, explain_single_kernels, explain_verdict
from annotq.collector.findings import Finding, RegionFinding
from annotq.collector.report import Report


def report_json(report: Report, every: bool = False) -> dict[str, object]:
    """Plain dictionaries, lists, numbers and strings; times in ns. every: with all comparisons under "evidence"."""
    evidence = {"evidence": [_evidence(row) for row in report.evidence]} if every else {}
    return {
        "job": report.job,
        "attempt": report.attempt,
        "verdict": report.verdict,
        "explanation": explain_verdict(report),
        "findings": [_finding(finding) for finding in report.findings],
        "too_small": [_finding(finding) for finding in report.too_small],
        "held_up": [_region(row) | {"explanation": explain_single_kernels(row)} for row in report.held_up],
        "collectives": [asdict(row) for row in report.waits],
        "coverage": report.receipt.to_json(),
        "clock_error_ns": report.receipt.clock_error_ns,
        "steps": report.steps,
        "comparisons": report.comparison.comparisons,
        "detectable_ratio": report.detectable,
        "ranks_not_judged": list(report.not_judged),
        "ranks_seen": list(report.receipt.ranks_seen),
        "ranks_expected": report.receipt.ranks_expected,
        **evidence,
    }


def _finding(finding: Finding) -> dict[str, object]:
    caused, typical = finding.caused_wait, finding.typical_cost_ns_per_step
    return {
        "rank": finding.rank,
        "ranks": list(finding.ranks),
        "host": finding.host,
        "cause": finding.cause,
        "regions": [_region(row) for row in finding.regions],
        "effect": finding.effect,
        "effect_low": finding.effect_low,
        "effect_high": finding.effect_high,
        "cost_ns_per_step": round(finding.cost_ns_per_step),
        "typical_cost_ns_per_step": None if typical is None else round(typical),
        "caused_wait_ns_per_step": round(caused.wait_ns) if caused else None,
        "caused_wait_steps": caused.steps if caused else 0,
        "steps": finding.steps,
        "since_step": finding.since_step,
        "until_step": finding.until_step,
        "holds_at_end": finding.holds_at_end,
        "slowest_steps": list(finding.slowest),
        "relative_score": finding.relative_score,
        "individual_score": finding.individual_score,
        "explanation": explain_finding(finding),
    }


def _region(row: RegionFinding) -> dict[str, object]:
    nodes = row.nodes
    return {
        **_evidence(row.evidence),
        "typical_ratio": row.typical_ratio,
        "held_up_kernels": nodes.held_kernels if nodes else 0,
        "held_up_steps": nodes.held_steps if nodes else 0,
        "explanation": explain_single_kernels(row) if row.single_kernels_matter else "",
    }


def _evidence(row: RegionEvidence) -> dict[str, object]:
    return {
        "rank": row.rank,
        "region": row.region,
        "phase": row.phase,
        "ratio": row.ratio,
        "ratio_low": row.ratio_low,
        "ratio_high": row.ratio_high,
        "slowest_share": row.slowest_share,
        "q_value": row.q_value,
        "steps": len(row.steps),
        "excess_ns_per_step": round(row.median_excess_ns),
        "relative_score": row.relative_score,
        "individual_score": row.individual_score,
    }
