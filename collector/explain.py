"""Sentences for people: what a finding, or its absence, means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median

from annotq.collector.evidence import against_others
from annotq.collector.findings import IMBALANCES, STRAGGLERS, Finding, RegionFinding
from annotq.collector.receipt import ranges
from annotq.collector.report import Report
from annotq.collector.waits import RankWait

# How many ranks a sentence lists by name.
RANKS_NAMED = 8


def duration_text(nanoseconds: float) -> str:
    """A duration with a readable unit: "16.3 ms", "10 us", "7.03 ms"."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(nanoseconds) >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def patterns(names: Iterable[str]) -> list[str]:
    """Region names with their numbers folded where several differ in nothing else: layers.0.mlp, layers.1.mlp -> layers.*.mlp."""
    folded: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        folded.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    return [pattern if len(members) > 1 else members[0] for pattern, members in folded.items()]


def explain_finding(finding: Finding) -> str:
    """One sentence: who, where, how much, how sure, at what cost, since when."""
    match finding.cause:
        case "slow_region" | "slow_gpu":
            text = _slow_rank(finding)
        case "late_launch":
            text = (
                f"{_who(finding)} {_tense(finding, 'starts', 'started')} its steps late: before the first work its GPU has "
                f"nothing to do for {duration_text(finding.cost_ns_per_step)} a step longer than the others' "
                f"({finding.effect - 1:.0%} of a step)"
            )
        case "slow_link":
            text = _slow_link(finding)
        case "imbalance":
            shares = _listed(
                [f"rank {rank} in {steps}" for rank, steps in zip(finding.ranks, finding.slowest, strict=True)]
            )
            text = (
                f"The ranks are uneven from step to step: in each, another one computes about {finding.effect:.2f} times as "
                f"long as the rest ({shares} of {finding.steps} steps), which costs "
                f"{duration_text(finding.cost_ns_per_step)} a step"
            )
        case "stage":
            text = (
                f"Pipeline stage {finding.detail} (rank{'s' if len(finding.ranks) > 1 else ''} {ranges(finding.ranks)}) "
                f"{_tense(finding, 'computes', 'computed')} {finding.effect:.2f} times as long per step as the other stages; "
                f"it costs {duration_text(finding.cost_ns_per_step)} a step"
            )
        case "global":
            text = (
                f"Everybody {_tense(finding, 'is', 'was')} slower than before: the ranks "
                f"{_tense(finding, 'compute', 'computed')} {finding.effect:.2f} times as long per step; "
                f"it {_tense(finding, 'costs', 'cost')} {duration_text(finding.cost_ns_per_step)} a step"
            )
    return text + _caused(finding) + _when(finding) + "."


def _slow_rank(finding: Finding) -> str:
    names = ", ".join(patterns(row.evidence.region for row in finding.regions))
    phases = " and ".join(sorted({row.evidence.phase for row in finding.regions}, reverse=True))
    usual = median(row.typical_ratio for row in finding.regions)
    steps = max(len(row.evidence.steps) for row in finding.regions)
    share = min(row.evidence.slowest_share for row in finding.regions)
    ranks = min(row.evidence.ranks for row in finding.regions)
    other = f" ({against_others(usual, ranks):.2f} times the other rank)" if ranks == 2 else ""
    where = (
        f"in nearly all that it computes ({names}, {phases})"
        if finding.cause == "slow_gpu"
        else f"in {names}, {phases}"
    )
    text = (
        f"{_who(finding)} {_tense(finding, 'is', 'was')} slow {where}: {usual:.2f} times the ranks' median{other}, "
        f"slowest in {_share_text(share, steps, len(finding.regions))} steps; "
        f"it {_tense(finding, 'costs', 'cost')} {duration_text(finding.cost_ns_per_step)} a step"
    )
    if finding.single_kernels_matter and finding.typical_cost_ns_per_step is not None:
        text += f" ({duration_text(finding.typical_cost_ns_per_step)} without single kernels that were held up)"
    return text


def _slow_link(finding: Finding) -> str:
    host = f" (host {finding.host})" if finding.host else ""
    if finding.rank is not None:
        link = f"The link of rank {finding.rank}{host}"
    elif host and len(finding.ranks) > 1:
        link = f"The link of host {finding.host} (ranks {ranges(finding.ranks)})"
    else:
        link = f"The link of one of the ranks {ranges(finding.ranks)}"
    return (
        f"{link} {_tense(finding, 'is', 'was')} slow: transfers in {finding.detail} through it take {finding.effect:.2f} times "
        f"as long as in the groups beside them; it {_tense(finding, 'costs', 'cost')} "
        f"{duration_text(finding.cost_ns_per_step)} a step"
    )


def _who(finding: Finding) -> str:
    return f"Rank {finding.rank}" + (f" (host {finding.host})" if finding.host else "")


def _tense(finding: Finding, now: str, past: str) -> str:
    return now if finding.holds_at_end else past


def _caused(finding: Finding) -> str:
    caused = finding.caused_wait
    if caused is None or caused.wait_ns <= 0:
        return ""
    text = f", and the others wait {duration_text(caused.wait_ns)} a step for it"
    if caused.steps < finding.steps:
        text += f" in the {caused.steps} of {finding.steps} steps in which it arrives last"
    return text


def _when(finding: Finding) -> str:
    if finding.since_step is not None and finding.until_step is not None:
        return f", from step {finding.since_step} to step {finding.until_step}"
    if finding.since_step is not None:
        return f", since step {finding.since_step}"
    return f", until step {finding.until_step}" if finding.until_step is not None else ""


def _share_text(share: float, steps: int, regions: int) -> str:
    """How many of the steps, for the region with the smallest share."""
    if share == 1:
        return f"all {steps}"
    return f"{'at least ' if regions > 1 else ''}{round(share * steps)} of {steps}"


def _listed(parts: list[str]) -> str:
    if len(parts) > RANKS_NAMED:
        parts = [*parts[:RANKS_NAMED], f"and {len(parts) - RANKS_NAMED} other ranks"]
    return ", ".join(parts)


def explain_single_kernels(row: RegionFinding) -> str:
    """What single kernels did to a region, next to what its code costs."""
    nodes = row.nodes
    reads = (
        f"{row.evidence.region} {row.evidence.phase} on rank {row.evidence.rank} reads {row.evidence.ratio:.1f} times"
    )
    if nodes is None or nodes.held_ns is None or nodes.held_median_ns is None:
        return f"{reads}: other kernels last longer in every step; by each node's own median it is {row.typical_ratio:.2f} times."
    return (
        f"{reads}: in {nodes.held_steps} of {nodes.steps} steps single kernels ({nodes.held_kernels} in all) lasted about "
        f"{duration_text(nodes.held_ns)} instead of {duration_text(nodes.held_median_ns)}; "
        f"by each node's own median it is {row.typical_ratio:.2f} times."
    )


def explain_verdict(report: Report) -> str:
    """The costliest finding that the verdict rests on, or why there is none."""
    if report.verdict in ("none", "inconclusive"):
        return explain_absence(report)
    causes = STRAGGLERS if report.verdict == "straggler" else IMBALANCES
    return explain_finding(next(finding for finding in report.findings if finding.cause in causes))


def explain_absence(report: Report) -> str:
    """Why no rank is named: what was compared, what came closest and what would have shown, or what is missing."""
    if report.verdict == "inconclusive":
        return f"No verdict: {report.reason}."
    of_those = " of those that could be compared" if report.not_judged else ""
    count = report.comparison.comparisons
    text = f"No rank{of_those} is slower than the others: {count} comparisons over {report.steps} steps"
    closest = report.closest
    if report.held_up:
        text = (
            f"No rank{of_those} runs slower code than the others: {count} comparisons over {report.steps} "
            f"steps; {len(report.held_up)} of them read slower through single kernels only"
        )
    elif closest:
        text += (
            f", the largest ratio is {closest.ratio:.2f} (rank {closest.rank}, {closest.region} {closest.phase}, "
            f"slowest in {closest.slowest_share:.0%} of the steps)"
        )
    if report.detectable:
        text += f". A rank slower by a factor of {report.detectable:.2f} or more would have shown"
    if report.not_judged:
        text += f". Not judged, too few steps in common with the others: rank {ranges(report.not_judged)}"
    return text + "."


def explain_waits(waits: Iterable[RankWait]) -> list[str]:
    """One sentence per kind of collective: how long ranks wait, who is last, how long the transfer takes."""
    kinds: dict[tuple[str | int | None, ...], list[RankWait]] = {}
    for row in waits:
        kinds.setdefault(row.kind, []).append(row)
    judged = [rows for rows in kinds.values() if any(row.judged for row in rows)]
    several = len({rows[0].group for rows in judged}) > 1
    sentences = [_wait_sentence(rows, f" of group {rows[0].group}" if several else "") for rows in judged]
    return [*sentences, *_left_out(waits)]


def _left_out(waits: Iterable[RankWait]) -> list[str]:
    """What could not be judged and why; kinds that do not make every rank wait apart."""
    reasons: dict[str, dict[str, int]] = {}
    for row in waits:
        other = row.collectives - row.judged - row.rank_missing - row.replay_cut
        counts = {
            "Kinds that do not make every rank wait": 0 if row.synchronizing else row.collectives,
            "Not judged, a rank lacks them": row.rank_missing if row.synchronizing else 0,
            "Not judged, the profiler's window cut their replay": row.replay_cut if row.synchronizing else 0,
            "Not judged (annotq collectives says why)": other if row.synchronizing else 0,
        }
        for reason, count in counts.items():
            if count:
                of_reason = reasons.setdefault(reason, {})
                of_reason[row.title] = max(of_reason.get(row.title, 0), count)
    return [
        f"{reason}: {', '.join(f'{count} {title}' for title, count in titles.items())}."
        for reason, titles in reasons.items()
    ]


def _wait_sentence(rows: list[RankWait], group: str) -> str:
    kind = f"{rows[0].title}{group}"
    waits = [row.wait_ns for row in rows if row.wait_ns is not None]
    judged = max(row.judged for row in rows)
    often = [row for row in sorted(rows, key=lambda row: -row.last) if row.last]
    last = _listed([f"rank {row.rank} in {row.last}" for row in often])
    return (
        f"{kind}: {judged} collectives, waits of {duration_text(min(waits))} to {duration_text(max(waits))} "
        f"(median by rank); last to arrive: {last}."
    )
