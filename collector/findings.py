"""What is found: a cause, whom it concerns, and the numbers that it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from annotq.collector.evidence import RegionEvidence, against_others
from annotq.collector.single_kernels import NodeMedians
from annotq.collector.waits import CausedWait

MINIMAL_EFFECT = 1.05

Cause = Literal["slow_region", "slow_gpu", "late_launch", "slow_link", "imbalance", "stage", "global"]
Verdict = Literal["straggler", "imbalance", "none", "inconclusive"]

# Causes that name a rank, the ranks of a host, or a group to act on.
STRAGGLERS: tuple[Cause, ...] = ("slow_region", "slow_gpu", "late_launch", "slow_link")
# Causes that say how the work is spread.
IMBALANCES: tuple[Cause, ...] = ("imbalance", "stage")


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
    def typical_excess_ns(self) -> float:
        """The same without single kernels that lasted far too long."""
        return self.nodes.excess_ns if self.nodes else self.excess_ns

    @property
    def typical_ratio(self) -> float:
        """The ratio without single kernels that lasted far too long."""
        return self.nodes.ratio if self.nodes and self.nodes.ratio is not None else self.evidence.ratio

    @property
    def is_slow_code(self) -> bool:
        """Whether the effect remains without such kernels."""
        return (
            against_others(self.typical_ratio, self.evidence.ranks) >= MINIMAL_EFFECT or not self.single_kernels_matter
        )

    @property
    def single_kernels_matter(self) -> bool:
        """Whether single kernels move the measured ratio by more than a fifth."""
        held = self.nodes is not None and self.nodes.held_kernels > 0
        return held and abs(self.evidence.ratio - self.typical_ratio) > 0.2 * self.typical_ratio


@dataclass(frozen=True)
class Finding:
    """Something that costs time, and where.

    rank: whom it concerns; None when it is no single rank. ranks: all whom it concerns, slowest or costliest first.
    regions: where a rank is slow; empty for causes that are not about regions. effect, effect_low, effect_high: by which
    factor what is slow lasts longer than on the others, with a 95 % interval where there is one (for late_launch: 1 plus
    the share of a usual step). cost_ns_per_step: median over the steps of the time lost. typical_cost_ns_per_step: the
    same by node medians, without single kernels that lasted far too long. caused_wait: how long the others wait for it at
    collectives; None when it never arrives last. since_step: first step in which it holds, None when it held from the
    start. until_step: last step in which it holds, None when it holds at the end. steps: in which it could be seen.
    slowest: how many steps each of `ranks` was the slowest (imbalance). detail: what the cause adds to the sentence.
    """

    cause: Cause
    rank: int | None
    ranks: tuple[int, ...]
    host: str | None
    effect: float
    cost_ns_per_step: float
    steps: int
    effect_low: float | None = None
    effect_high: float | None = None
    regions: tuple[RegionFinding, ...] = ()
    typical_cost_ns_per_step: float | None = None
    caused_wait: CausedWait | None = None
    since_step: int | None = None
    until_step: int | None = None
    slowest: tuple[int, ...] = ()
    detail: str = ""

    @property
    def holds_at_end(self) -> bool:
        return self.until_step is None

    @property
    def single_kernels_matter(self) -> bool:
        return any(row.single_kernels_matter for row in self.regions)

    @property
    def relative_score(self) -> float | None:
        """The fastest rank's time over this rank's, regions weighted by time; None where no region is concerned."""
        return _weighted([(row.evidence.relative_score, row.evidence) for row in self.regions])

    @property
    def individual_score(self) -> float | None:
        """The rank's own best time over its time now, regions weighted by time."""
        return _weighted([(row.evidence.individual_score, row.evidence) for row in self.regions])


def usual_region(rows: Sequence[RegionFinding]) -> RegionFinding:
    """The one in the middle by ratio, regions weighted by the time that they cost: one ratio, interval and share of steps for
    all of them. Regions in which single kernels were held up only where there are no others. rows: at least one."""
    even = [row for row in rows if not row.single_kernels_matter] or rows
    ordered = sorted(even, key=lambda row: row.typical_ratio)
    weights = [max(row.typical_excess_ns, 0.0) for row in ordered]
    if not any(weights):
        return ordered[(len(ordered) - 1) // 2]
    half = sum(weights) / 2
    return next(row for row, reached in zip(ordered, accumulate(weights), strict=True) if reached >= half)


def _weighted(scores: list[tuple[float, RegionEvidence]]) -> float | None:
    total = sum(row.usual_ns for _, row in scores)
    return sum(score * row.usual_ns for score, row in scores) / total if total else None
