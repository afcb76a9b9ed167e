"""The straggler report as text: verdict first, then the numbers it rests on."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from annotq.collector.evidence import RegionEvidence
    from annotq.collector.findings import Finding
    from annotq.collector.report import Report
    from annotq.collector.waits import RankWait

WIDTH = 100
VERDICTS = {
    "straggler": "STRAGGLER",
    "imbalance": "imbalance, no straggler",
    "none": "no straggler",
    "inconclusive": "inconclusive",
}
# Rows of a table of regions; a slow GPU has hundreds.
REGIONS_SHOWN = 12
# Rows of the table of waits; a job of 1,000 ranks has hundreds of groups.
WAITS_SHOWN = 48


def straggler_text(report: Report, every: bool = False) -> str:
    """Several lines without trailing newline; sentences wrap at 100 columns, tables fit for usual region names.

    every: with all comparisons, largest ratio first.
    """
    from annotq.collector.explain import explain_absence, explain_finding, explain_single_kernels, explain_waits

    blocks = [f"{report.job}: {VERDICTS[report.verdict]}"]
    for finding in report.findings:
        blocks.append(_wrapped(explain_finding(finding)))
        if finding.regions:
            blocks.append(_regions(finding))
        blocks += [_wrapped(explain_single_kernels(row)) for row in finding.regions if row.single_kernels_matter]
    if report.verdict in ("none", "inconclusive"):
        blocks.append(_wrapped(explain_absence(report)))
    if report.held_up:
        held = [_wrapped(explain_single_kernels(row)) for row in report.held_up]
        blocks.append("\n".join(["Slower through single kernels only, not through their code:", *held]))
    if every and report.evidence:
        blocks.append(_every(report.evidence))
    if report.waits:
        shown, left = _longest_waits(report.waits)
        judged = [row for row in shown if row.judged]
        blocks.append(_waits(judged) if judged else "")
        sentences = explain_waits(shown)
        if left:
            sentences.append(f"{left} more groups, whose ranks wait less: annotq collectives.")
        blocks.append("\n".join(map(_wrapped, sentences)))
    blocks += [_wrapped(f"note: {note}") for note in report.receipt.notes]
    blocks.append(_wrapped(report.receipt.sentence()))
    return "\n\n".join(block for block in blocks if block)


def _wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, WIDTH, break_long_words=False, break_on_hyphens=False)


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """Columns padded to their widest cell, two spaces apart; the first `left` columns flush left, the others right."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    padded = (
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    return "\n".join(f"  {line}".rstrip() for line in padded)


def _regions(finding: Finding) -> str:
    header = ["region", "phase", "ratio", "95 % interval", "node medians", "slowest", "excess a step"]
    shown = sorted(finding.regions, key=lambda row: -row.excess_ns)[:REGIONS_SHOWN]
    shown = [row for row in finding.regions if any(row is one for one in shown)]
    rows = [_comparison(row.evidence) for row in shown]
    typical = [f"{row.typical_ratio:.2f}x" for row in shown]
    table = aligned(header, [[*row[:4], ratio, *row[4:]] for row, ratio in zip(rows, typical, strict=True)], left=2)
    left = len(finding.regions) - len(shown)
    return f"{table}\n  and {left} regions that cost less (--format csv lists all)" if left else table


def _every(evidence: Sequence[RegionEvidence]) -> str:
    header = ["rank", "region", "phase", "ratio", "95 % interval", "slowest", "excess a step"]
    rows = sorted(evidence, key=lambda row: -row.ratio)
    return aligned(header, [[str(row.rank), *_comparison(row)] for row in rows], left=3)


def _comparison(row: RegionEvidence) -> list[str]:
    from annotq.collector.explain import duration_text

    low, high = row.ratio_low, row.ratio_high
    steps = len(row.steps)
    return [
        row.region,
        row.phase,
        f"{row.ratio:.2f}x",
        f"{low:.2f} - {high:.2f}" if low is not None and high is not None else "-",
        f"{round(row.slowest_share * steps)} of {steps}",
        duration_text(row.median_excess_ns),
    ]


def _longest_waits(waits: Sequence[RankWait]) -> tuple[list[RankWait], int]:
    """The collectives whose ranks wait longest, in the report's order, and how many groups are left out."""
    groups: dict[object, list[RankWait]] = {}
    for row in waits:
        groups.setdefault(row.kind, []).append(row)
    longest = sorted(groups.values(), key=lambda rows: -max(row.wait_ns or 0 for row in rows))
    kept: set[object] = set()
    for rows in longest:
        if kept and sum(len(groups[kind]) for kind in kept) + len(rows) > WAITS_SHOWN:
            break
        kept.add(rows[0].kind)
    return [row for row in waits if row.kind in kept], len(groups) - len(kept)


def _waits(waits: Sequence[RankWait]) -> str:
    header = ["collective", "group", "rank", "last", "wait", "transfer", "wait by duration", "transfer by duration"]
    from annotq.collector.waits import titles

    names = titles(waits)
    rows = [_wait(row, names[row.kind]) for row in waits]
    if len({row.group for row in waits}) > 1:
        return aligned(header, rows, left=2)
    return aligned([header[0], *header[2:]], [[row[0], *row[2:]] for row in rows], left=1)


def _wait(row: RankWait, title: str) -> list[str]:
    from annotq.collector.explain import duration_text

    def text(value: float | None) -> str:
        return "-" if value is None else duration_text(value)

    return [
        title,
        row.group,
        str(row.rank),
        f"{row.last} of {row.judged}",
        text(row.wait_ns),
        text(row.transfer_ns),
        text(row.wait_duration_ns),
        text(row.transfer_duration_ns),
    ]
