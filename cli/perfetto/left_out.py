"""What the picture does not show, in sentences with counts."""

from __future__ import annotations

from collections.abc import Iterator

from annotq.cli.perfetto.export import Summary
from annotq.collector.receipt import ranges


def sentences(summary: Summary) -> Iterator[str]:
    """One sentence per thing that a reader could take for absent."""
    if summary.shift_ns:
        yield (
            f"All times are {summary.shift_ns // 1_000_000_000:,} s later than in the store: "
            "it holds times before 1970, which a Perfetto file cannot."
        )
    if summary.unaligned:
        yield (
            f"No clock offset is known for rank {ranges(tuple(summary.unaligned))}: they are where their own clock puts them, "
            "and what happened first on which host cannot be told."
        )
    if summary.without_work:
        yield f"Nothing to draw on rank {ranges(tuple(summary.without_work))}: no work in this selection."
    if summary.unknown:
        yield f"{counted(summary.unknown, 'kernel')} of unknown duration: drawn as instants."
    if summary.outside_steps:
        yield f"{counted(summary.outside_steps, 'kernel')} launched outside of every step: no step slice belongs to them."
    if summary.in_no_region:
        yield f"{counted(summary.in_no_region, 'kernel')} in no region."
    if summary.not_judged:
        reasons: dict[str, list[str]] = {}
        for (why, name), calls in sorted(summary.not_judged.items()):
            reasons.setdefault(why, []).append(f"{calls:,} {name}")
        said = "; ".join(f"{why}: {', '.join(what)}" for why, what in reasons.items())
        yield f"Calls without wait, transfer and flow, because they are not judged: {said}."
    if summary.calls_without_kernel:
        yield f"{counted(summary.calls_without_kernel, 'call')} of collectives without a kernel in the picture: flows lack them."


def counted(number: int, noun: str) -> str:
    """1 kernel, 2,000 kernels."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"
