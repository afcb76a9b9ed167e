"""Sentences for people: what a finding, or its absence, means."""

from __future__ import annotations

import re
from collections.abc import Iterable

from annotq.collector.evidence import against_others
from annotq.collector.findings import IMBALANCES, STRAGGLERS, Finding, RegionFinding, usual_region
from annotq.collector.receipt import ranges
from annotq.collector.report import Report
from annotq.collector.waits import Kind, RankWait, titles

# How many ranks a sentence lists by name.
RANKS_NAMED = 8


def duration_text(nanoseconds: float) -> str:
    """A duration with a readable unit: "16.3 ms", "10 us", "7.03 ms"."""
    rounded = float(f"{nanoseconds:.3g}")  # first: 999.9 us is 1 ms
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(rounded) >= size:
            number = rounded / size
            return f"{number:,.0f} {unit}" if abs(number) >= 1e3 else f"{number:.3g} {unit}"
    return f"{rounded:.3g} ns"


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
                f"long as the rest{f' in {finding.detail}' if finding.detail else ''} ({shares} of {finding.steps} steps), "
                f"which costs "
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
    where = (
        f"in nearly all that it computes ({_regions(finding)})"
        if finding.cause == "slow_gpu"
        else f"in {_regions(finding)}"
    )
    text = (
        f"{_who(finding)} {_tense(finding, 'is', 'was')} slow {where}: {_by_how_much(finding)}; "
        f"it {_tense(finding, 'costs', 'cost')} {duration_text(finding.cost_ns_per_step)} a step"
    )
    if finding.single_kernels_matter and finding.typical_cost_ns_per_step is not None:
        text += f" ({duration_text(finding.typical_cost_ns_per_step)} without single kernels that were held up)"
    return text


def _regions(finding: Finding) -> str:
    """Regions and phases: "layers.*.mlp, forward and backward"."""
    names = ", ".join(patterns(row.evidence.region for row in finding.regions))
    phases = " and ".join(sorted({row.evidence.phase for row in finding.regions}, reverse=True))
    return f"{names}, {phases}"


def _by_how_much(finding: Finding) -> str:
    """Of the region in the middle, by the time that it costs: its ratio, and in how many of its steps."""
    usual = usual_region(finding.regions)
    ratio, row = usual.typical_ratio, usual.evidence
    other = f" ({against_others(ratio, row.ranks):.2f} times the other rank)" if row.ranks == 2 else ""
    # Of several ranks that are slow alike each is the slowest in a few of the steps.
    often, share = ("slowest", row.slowest_share) if row.slowest_share >= 0.5 else ("above it", row.above_share)
    return f"{ratio:.2f} times the ranks' median{other}, {often} in {_share_text(share, len(row.steps))} steps"


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


def _share_text(share: float, steps: int) -> str:
    return f"all {steps}" if share == 1 else f"{round(share * steps)} of {steps}"


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
        small = f" Too small to be called a straggler: {_too_small(report)}." if report.too_small else ""
        return f"No verdict: {report.reason}.{small}"
    of_those = " of those that could be compared" if report.not_judged else ""
    count = report.comparison.comparisons
    text = f"No rank{of_those} is slower than the others: {count} comparisons over {report.steps} steps"
    closest = report.closest
    if report.held_up:
        text = (
            f"No rank{of_those} runs slower code than the others: {count} comparisons over {report.steps} "
            f"steps; {len(report.held_up)} of them read slower through single kernels only"
        )
    elif report.too_small:
        text = (
            f"No rank{of_those} is slower than the others by enough to matter: {count} comparisons over {report.steps} steps. "
            f"Too small to be called a straggler: {_too_small(report)}"
        )
    elif closest:
        text += (
            f", the largest ratio is {closest.ratio:.2f} (rank {closest.rank}, {closest.region} {closest.phase}, "
            f"slowest in {closest.slowest_share:.0%} of the steps)"
        )
    if report.detectable:
        text += f". A rank slower by a factor of {report.detectable:.2f} or more{_condition(report)} would have shown"
    if report.not_judged:
        text += f". Not judged, too few steps in common with the others: rank {ranges(report.not_judged)}"
    return text + "."


def _too_small(report: Report) -> str:
    """The costliest slowness that is no finding, and what it costs."""
    finding = report.too_small[0]
    share = finding.cost_ns_per_step / report.comparison.work.step_ns
    others = len({rank for found in report.too_small for rank in found.ranks}) - 1
    more = f", and {others} other {'ranks cost' if others > 1 else 'rank costs'} less" if others else ""
    return (
        f"rank {finding.rank} in {_regions(finding)} ({_by_how_much(finding)}), which costs "
        f"{duration_text(finding.cost_ns_per_step)} a step, {100 * share:.2g} % of it{more}"
    )


def _condition(report: Report) -> str:
    """What else a slow rank must show, said where the report itself holds a larger difference."""
    if report.too_small:
        return f", at a cost of more than {duration_text(report.smallest_cost_ns)} a step,"
    noisy = report.closest is not None and report.closest.against_others >= (report.detectable or 0)
    return ", in a region of usual noise," if noisy and not report.held_up else ""


def explain_waits(waits: Iterable[RankWait]) -> list[str]:
    """One sentence per kind of collective: how long ranks wait, who is last, how long the transfer takes."""
    kinds: dict[tuple[str | int | None, ...], list[RankWait]] = {}
    for row in waits:
        kinds.setdefault(row.kind, []).append(row)
    judged = [rows for rows in kinds.values() if any(row.judged for row in rows)]
    several = len({rows[0].group for rows in judged}) > 1
    names = titles(waits)
    sentences = [
        _wait_sentence(rows, names[rows[0].kind] + (f" of group {rows[0].group}" if several else "")) for rows in judged
    ]
    return [*sentences, *_left_out(waits, names)]


def _left_out(waits: Iterable[RankWait], names: dict[Kind, str]) -> list[str]:
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
                title = names[row.kind]
                of_reason[title] = max(of_reason.get(title, 0), count)
    return [
        f"{reason}: {', '.join(f'{count} {title}' for title, count in titles.items())}."
        for reason, titles in reasons.items()
    ]


def _wait_sentence(rows: list[RankWait], kind: str) -> str:
    waits = [row.wait_ns for row in rows if row.wait_ns is not None]
    judged = max(row.judged for row in rows)
    often = [row for row in sorted(rows, key=lambda row: -row.last) if row.last]
    shortest, longest = duration_text(min(waits)), duration_text(max(waits))
    last = _listed([f"rank {row.rank} in {row.last}" for row in often])
    span = shortest if shortest == longest else f"{shortest} to {longest}"
    return f"{kind}: {judged} collective{'s' if judged > 1 else ''}, waits of {span} (median by rank); last to arrive: {last}."
