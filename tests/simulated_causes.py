"""What is wrong with a simulated job: the causes put in, and what a report should therefore say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from simulated_layout import Layout
from simulated_program import Operation

CauseName = Literal["slow_region", "slow_gpu", "late_launch", "imbalance", "slow_link", "stage", "global"]
# A rank, or the ranks of a host, are to be named for these; for the others nobody is.
BLAMING: tuple[CauseName, ...] = ("slow_region", "slow_gpu", "late_launch", "slow_link")


@dataclass(frozen=True)
class Cause:
    """size: 0.1 makes what it concerns last 1.1 times as long; of late_launch, share of a usual step.

    ranks: the slow rank, or all ranks of a host with a slow link, or of a slow stage; empty for imbalance and global.
    regions: of slow_region. first, end: steps during which it holds; end None: to the last. extra_nodes: slow_region runs
    its kernels again (size must be a whole number) instead of running them slower.
    """

    name: CauseName
    size: float
    ranks: tuple[int, ...] = ()
    regions: tuple[str, ...] = ()
    first: int = 0
    end: int | None = None
    extra_nodes: bool = False

    def active(self, steps: int) -> NDArray[np.bool_]:
        """By step, whether it holds."""
        number = np.arange(steps)
        return (number >= self.first) & (number < (steps if self.end is None else self.end))

    def holds_at_end(self, steps: int) -> bool:
        return bool(self.active(steps)[-1])

    def concerns(self, operation: Operation) -> bool:
        """Whether some rank takes longer to compute the operation for this cause."""
        if not operation.computes or self.name not in ("slow_region", "slow_gpu", "imbalance", "stage", "global"):
            return False
        return self.name != "slow_region" or operation.region in self.regions


def compute_factors(
    causes: tuple[Cause, ...], operation: Operation, slowest: NDArray[np.int64], steps: int
) -> NDArray[np.float64]:
    """By what each pass of the operation is longer; shape (ranks of the operation, steps).

    slowest: by step, the rank that imbalance has chosen.
    """
    factors = np.ones((len(operation.ranks), steps))
    for cause in causes:
        if not cause.concerns(operation):
            continue
        if cause.name == "imbalance":
            chosen = operation.ranks[:, None] == slowest[None, :]
        elif cause.name == "global":
            chosen = np.ones((len(operation.ranks), 1), dtype=np.bool_)
        else:
            chosen = np.isin(operation.ranks, cause.ranks)[:, None]
        factors *= np.where(chosen & cause.active(steps), 1 + cause.size, 1.0)
    return factors


def transfer_factors(causes: tuple[Cause, ...], members: NDArray[np.int64], steps: int) -> NDArray[np.float64]:
    """By what each transfer is longer, for a slow link of one of its ranks; shape (groups, steps)."""
    factors = np.ones((len(members), steps))
    for cause in causes:
        if cause.name == "slow_link":
            through: NDArray[np.bool_] = np.any(np.isin(members, cause.ranks), axis=1, keepdims=True)
            factors *= np.where(through & cause.active(steps), 1 + cause.size, 1.0)
    return factors


def launch_delays(causes: tuple[Cause, ...], ranks: int, steps: int) -> NDArray[np.float64]:
    """How much later than usual each graph is launched, in usual steps; shape (ranks, steps)."""
    delays = np.zeros((ranks, steps))
    for cause in causes:
        if cause.name == "late_launch":
            delays[list(cause.ranks)] += cause.size * cause.active(steps)
    return delays


def slowest_ranks(generator: np.random.Generator, ranks: int, steps: int) -> NDArray[np.int64]:
    """By step, a rank: every one as often as the others, never the same twice in a row when there are more than two."""
    if ranks == 2:
        return generator.permutation(np.arange(steps) % 2)
    drawn: list[int] = []
    while len(drawn) < steps:
        turn = generator.permutation(ranks)
        if drawn and turn[0] == drawn[-1]:
            turn = np.roll(turn, 1)
        drawn.extend(turn.tolist())
    return np.array(drawn[:steps], dtype=np.int64)


def slow_layers(layout: Layout, rank: int, layers: int, part: str = "mlp") -> tuple[str, ...]:
    """The regions of a kind in the layers that the rank runs."""
    stage = layout.stage_of(rank)
    return tuple(f"layers.{layer}.{part}" for layer in range(stage * layers, (stage + 1) * layers))


def blamed_ranks(causes: tuple[Cause, ...]) -> Iterator[int]:
    """The ranks that a report may name."""
    for cause in causes:
        if cause.name in BLAMING:
            yield from cause.ranks
