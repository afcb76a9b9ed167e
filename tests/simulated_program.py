"""What a simulated rank runs in a step: the operations of its pipeline stage, in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from simulated_layout import Family, Layout

# Kernels are numbered in steps of this, which leaves room for the extra nodes of one rank between them.
NODE_STRIDE = 8
COMPUTE_STREAM, COMMUNICATION_STREAM = 0, 1
Kind = Literal["compute", "all_reduce", "reduce_scatter", "all_gather", "send", "recv"]
SYNCHRONIZING = ("all_reduce", "reduce_scatter", "all_gather")


@dataclass(frozen=True)
class Operation:
    """One pass of some ranks through a region, or one collective of theirs.

    ranks: ascending. usual_ns: of each kernel, shape (kernels,); for a collective its one transfer. family: the process
    groups of a collective. peers: of send and recv, the other end of each rank. eager: launched kernel by kernel, outside
    of the graph. stream: COMPUTE_STREAM or COMMUNICATION_STREAM.
    """

    kind: Kind
    region: str
    phase: str
    ranks: NDArray[np.int64]
    usual_ns: NDArray[np.float64]
    first_node: int
    family: Family | None = None
    peers: NDArray[np.int64] | None = None
    eager: bool = False
    stream: int = COMPUTE_STREAM

    @property
    def computes(self) -> bool:
        return self.kind == "compute"

    @property
    def synchronizes(self) -> bool:
        return self.kind in SYNCHRONIZING


@dataclass(frozen=True)
class Workload:
    """What the model is. Durations are drawn once per job, the same on all ranks and in all stages.

    layers: per stage. kernels: of a region and phase. optimizer_kernels: of the last region of a step, 0 for none.
    experts: region "layers.N.experts" of every layer runs on these ranks only. reduce: how gradients come together,
    "all_reduce" or "sharded" (reduce_scatter and all_gather). overlap: on a stream of their own, layer by layer, while
    the backward goes on. eager: a loss outside of the graph, with an all_reduce of all ranks that the process group
    numbers.
    """

    layers: int = 2
    kernels: int = 2
    optimizer_kernels: int = 0
    experts: tuple[int, ...] = ()
    reduce: Literal["all_reduce", "sharded"] = "all_reduce"
    overlap: bool = False
    eager: bool = False
    compute_ns: tuple[float, float] = (200_000.0, 1_000_000.0)
    tp_transfer_ns: float = 40_000.0
    pp_transfer_ns: float = 60_000.0
    dp_transfer_ns: float = 400_000.0


@dataclass
class _Writer:
    """Collects operations and numbers their nodes in the order in which they are captured."""

    layout: Layout
    workload: Workload
    generator: np.random.Generator
    operations: list[Operation] = field(default_factory=list)
    node: int = 0
    usual: dict[tuple[str, str], NDArray[np.float64]] = field(default_factory=dict)

    def compute(self, region: str, phase: str, ranks: NDArray[np.int64], kernels: int, eager: bool = False) -> None:
        work = self._work_of(region, phase)
        if work not in self.usual:
            # A backward does about twice the work of its forward.
            total = self.generator.uniform(*self.workload.compute_ns) * (2 if phase == "backward" else 1)
            self.usual[work] = total * self.generator.dirichlet(np.full(kernels, 20.0))
        usual = self.usual[work]
        self._add(Operation("compute", region, phase, ranks, usual, self._number(kernels), eager=eager))

    def _work_of(self, region: str, phase: str) -> tuple[str, str]:
        """The work is cut evenly: the first layers of all stages do the same, and the second ones, and so on."""
        layer = re.fullmatch(r"layers\.(\d+)\.(\w+)", region)
        place = f"{int(layer[1]) % self.workload.layers}.{layer[2]}" if layer else region
        return place, phase

    def collective(
        self, kind: Kind, region: str, phase: str, family: Family, stage: int, usual_ns: float, **more: bool | int
    ) -> None:
        """Of all groups of the family that lie in the stage. Nothing when they have one rank each."""
        if family.ranks.shape[1] == 1:
            return
        ranks = self.layout.stage(stage) if stage >= 0 else family.ranks.ravel()
        size = np.array([usual_ns])
        node = self._number(1)
        operation = Operation(kind, region, phase, np.sort(ranks), size, node, family, **more)  # type: ignore[arg-type]
        self._add(operation)

    def pass_on(self, region: str, phase: str, source: int, target: int) -> None:
        """From every rank of a stage to the one in its place in the next, or back."""
        size = np.array([self.workload.pp_transfer_ns])
        here, there = self.layout.stage(source), self.layout.stage(target)
        groups = self.layout.pp_groups
        self._add(Operation("send", region, phase, here, size, self._number(1), groups, there))
        self._add(Operation("recv", region, phase, there, size, self._number(1), groups, here))

    def _add(self, operation: Operation) -> None:
        self.operations.append(operation)

    def _number(self, kernels: int) -> int:
        first = self.node
        self.node += kernels * NODE_STRIDE
        return first


def program(layout: Layout, workload: Workload, generator: np.random.Generator) -> list[Operation]:
    """All operations of a step, every one after those that it depends on; one micro-batch goes through the stages."""
    writer = _Writer(layout, workload, generator)
    for stage in range(layout.pp):
        for layer in _layers(workload, stage):
            _pass(writer, layer, "forward", stage)
        if stage + 1 < layout.pp:
            writer.pass_on("pipeline", "forward", stage, stage + 1)
    for stage in reversed(range(layout.pp)):
        for layer in reversed(list(_layers(workload, stage))):
            _pass(writer, layer, "backward", stage)
            if workload.overlap:
                _reduce(writer, f"layers.{layer}.grads", stage, 1 / workload.layers, COMMUNICATION_STREAM)
        if stage > 0:
            writer.pass_on("pipeline", "backward", stage, stage - 1)
    if not workload.overlap:
        for stage in range(layout.pp):
            _reduce(writer, "grads", stage, 1.0, COMPUTE_STREAM)
    if workload.optimizer_kernels:
        writer.compute("optimizer", "forward", np.arange(layout.size), workload.optimizer_kernels)
    if workload.eager:
        writer.compute("loss", "forward", np.arange(layout.size), workload.kernels, eager=True)
        writer.collective("all_reduce", "loss", "forward", layout.world, -1, workload.tp_transfer_ns, eager=True)
    return writer.operations


def _layers(workload: Workload, stage: int) -> Iterator[int]:
    yield from range(stage * workload.layers, (stage + 1) * workload.layers)


def _pass(writer: _Writer, layer: int, phase: str, stage: int) -> None:
    ranks = writer.layout.stage(stage)
    for part in ("attn", "mlp") if phase == "forward" else ("mlp", "attn"):
        writer.compute(f"layers.{layer}.{part}", phase, ranks, writer.workload.kernels)
        transfer = writer.workload.tp_transfer_ns
        writer.collective("all_reduce", f"layers.{layer}.{part}", phase, writer.layout.tp_groups, stage, transfer)
    experts = np.array([rank for rank in writer.workload.experts if rank in set(ranks.tolist())], dtype=np.int64)
    if len(experts):
        writer.compute(f"layers.{layer}.experts", phase, experts, writer.workload.kernels)


def _reduce(writer: _Writer, region: str, stage: int, share: float, stream: int) -> None:
    kinds: tuple[Kind, ...] = ("all_reduce",)
    if writer.workload.reduce == "sharded":
        kinds = ("reduce_scatter", "all_gather")
    for kind in kinds:
        usual = share * writer.workload.dp_transfer_ns / len(kinds)
        writer.collective(kind, region, "backward", writer.layout.dp_groups, stage, usual, stream=stream)
