"""Jobs with a known truth: a model cut over ranks, its collectives, noise, clocks and what is wrong, from one seed.

A rank runs the operations of its pipeline stage in order, on a GPU that begins a step when its last one is over and the
host has launched the graph. A collective begins on a rank when it arrives, and ends for all ranks of the group at the last
arrival plus the transfer. Loops go over operations and steps; what happens to the ranks is arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from simulated_causes import Cause, compute_factors, launch_delays, slowest_ranks, transfer_factors
from simulated_layout import Layout
from simulated_noise import GAP_SIGMA, SILENT, Noise, exponents, held_up, shared_exponents
from simulated_program import COMMUNICATION_STREAM, COMPUTE_STREAM, Operation, Workload, program

Times = NDArray[np.int64]


@dataclass(frozen=True)
class HostClocks:
    """How far the hosts' clocks are off: up to offset_ns either way at the job's start, drifting up to drift_ppb.

    Host 0 is right. known: the store says so (else it knows nothing, as with files of several hosts). error_ns: what the
    store then gives as the bound.
    """

    offset_ns: int = 0
    drift_ppb: int = 0
    known: bool = True
    error_ns: int = 1_000

    def drawn(self, seed: int, hosts: int) -> tuple[Times, Times]:
        """(offsets in ns, drifts in ppb) by host."""
        generator = np.random.default_rng([seed, 5])
        offsets = generator.integers(-self.offset_ns, self.offset_ns + 1, hosts)
        drifts = generator.integers(-self.drift_ppb, self.drift_ppb + 1, hosts)
        offsets[0] = drifts[0] = 0
        return offsets, drifts


@dataclass(frozen=True)
class Plan:
    """All that determines a job. missing: by rank, the steps that its profiler window lacks."""

    seed: int = 0
    layout: Layout = field(default_factory=lambda: Layout(dp=4))
    steps: int = 20
    workload: Workload = field(default_factory=Workload)
    noise: Noise = field(default_factory=Noise)
    causes: tuple[Cause, ...] = ()
    clocks: HostClocks = field(default_factory=HostClocks)
    missing: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def generator(self, purpose: int) -> np.random.Generator:
        """A stream of its own per purpose: a cause put in leaves the noise as it was."""
        return np.random.default_rng([self.seed, purpose])


@dataclass(frozen=True)
class Ran:
    """An operation as it ran, in ns of true time since the job's start.

    start_ns: by kernel, rank of the operation, step; shape (kernels, ranks, steps). duration_ns: the same.
    """

    operation: Operation
    start_ns: Times
    duration_ns: Times

    @property
    def end_ns(self) -> Times:
        return self.start_ns + self.duration_ns

    @property
    def time_ns(self) -> Times:
        """Of all its kernels; shape (ranks, steps)."""
        total: Times = self.duration_ns.sum(axis=0)
        return total


@dataclass(frozen=True)
class SimulatedJob:
    """What happened. begin_ns, launch_ns: when the host began each step and when its graph began on the GPU, which was idle
    since; shape (ranks, steps). usual_step_ns: how long a step takes without noise or cause (0 where nobody needs it)."""

    plan: Plan
    ran: tuple[Ran, ...]
    begin_ns: Times
    launch_ns: Times
    usual_step_ns: int

    def of(self, region: str, phase: str) -> list[Ran]:
        return [ran for ran in self.ran if (ran.operation.region, ran.operation.phase) == (region, phase)]


def simulate(plan: Plan) -> SimulatedJob:
    """Run the job. Equal plans give equal jobs."""
    operations = program(plan.layout, plan.workload, plan.generator(0))
    usual = 0
    if any(cause.name == "late_launch" for cause in plan.causes):
        usual = _usual_step_ns(plan, operations)
    return _run(plan, operations, usual)


def compute_times(plan: Plan) -> dict[tuple[str, str], Times]:
    """By (region, phase), its compute time in every step; shape (ranks of the layout, steps), 0 where it does not run.

    What `simulate` would say, without running the job: for more steps than one would want to run.
    """
    operations = program(plan.layout, plan.workload, plan.generator(0))
    found: dict[tuple[str, str], Times] = {}
    for operation, kernels in zip(operations, _kernel_times(plan, operations), strict=True):
        if kernels is not None:
            empty = np.zeros((plan.layout.size, plan.steps), dtype=np.int64)
            times = found.setdefault((operation.region, operation.phase), empty)
            times[operation.ranks] += kernels.sum(axis=0)
    return found


def _usual_step_ns(plan: Plan, operations: list[Operation]) -> int:
    quiet = _run(replace(plan, noise=SILENT, causes=(), steps=2), operations, 0)
    ends = np.array([ran.end_ns.max(axis=(0, 1)) for ran in quiet.ran]).max(axis=0)
    return int(ends[1] - ends[0])


def _run(plan: Plan, operations: list[Operation], usual_step_ns: int) -> SimulatedJob:
    shape = (plan.layout.size, plan.steps)
    kernels = _kernel_times(plan, operations)
    transfers = [_transfer_times(plan, operation, number) for number, operation in enumerate(operations)]
    waits = plan.generator(2)
    delays = np.rint(launch_delays(plan.causes, *shape) * usual_step_ns)
    gaps = np.rint(plan.noise.gap_ns * np.exp(min(GAP_SIGMA, 20 * plan.noise.sigma) * waits.normal(size=shape)))
    starts = [np.zeros((len(operation.ranks), plan.steps), dtype=np.int64) for operation in operations]
    ends = [np.zeros_like(start) for start in starts]
    begins, launches = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    # When each stream of each rank is free.
    free = np.zeros((2, plan.layout.size), dtype=np.int64)
    own = [times.sum(axis=0) if times is not None else None for times in kernels]
    for step in range(plan.steps):
        begins[:, step] = free.max(axis=0)
        free[:] = begins[:, step] + (gaps[:, step] + delays[:, step]).astype(np.int64)
        launches[:, step] = free[COMPUTE_STREAM]
        for number, operation in enumerate(operations):
            ranks = operation.ranks
            arrive = free[operation.stream, ranks]
            if operation.stream == COMMUNICATION_STREAM:
                arrive = np.maximum(arrive, free[COMPUTE_STREAM, ranks])
            if (compute := own[number]) is not None:
                end = arrive + compute[:, step]
            elif operation.kind == "recv":
                # Its peer's send was the operation before.
                end = np.maximum(arrive, starts[number - 1][:, step]) + transfers[number][:, step]
            elif operation.kind == "send":
                end = arrive + transfers[number][:, step]
            else:
                end = _together(operation, arrive, transfers[number][:, step])
                end = end + np.rint(waits.exponential(plan.noise.jitter_ns, len(end))).astype(np.int64)
            starts[number][:, step], ends[number][:, step] = arrive, end
            free[operation.stream, ranks] = end
    ran = [_ran(*parts) for parts in zip(operations, starts, ends, kernels, strict=True)]
    return SimulatedJob(plan, tuple(ran), begins, launches, usual_step_ns)


def groups_of(operation: Operation) -> Times:
    """The ranks of the groups that take part, shape (groups, ranks of a group); of send and recv, the pairs."""
    if operation.peers is not None:
        return np.stack([operation.ranks, operation.peers], axis=1)
    assert operation.family is not None
    members = operation.family.ranks
    return members[np.isin(members[:, 0], operation.ranks)]


def _together(operation: Operation, arrive: Times, transfer: Times) -> Times:
    """When each rank of a synchronizing collective is done; arrive by rank of the operation, transfer by group."""
    places = np.searchsorted(operation.ranks, groups_of(operation))
    end = np.empty_like(arrive)
    end[places] = (arrive[places].max(axis=1) + transfer)[:, None]
    return end


def _kernel_times(plan: Plan, operations: list[Operation]) -> list[Times | None]:
    """By operation, shape (kernels, ranks, steps); None for communication."""
    generator = plan.generator(1)
    # Apart from the rest, so that they do not depend on the number of steps.
    differences = plan.generator(6)
    shared = shared_exponents(plan.noise, generator, plan.layout.size, plan.steps)
    constant = plan.noise.between * np.sqrt(0.5) * differences.normal(size=plan.layout.size)
    slowest = slowest_ranks(plan.generator(3), plan.layout.size, plan.steps)
    found: list[Times | None] = []
    for operation in operations:
        if not operation.computes:
            found.append(None)
            continue
        size = (len(operation.ranks), plan.steps)
        own = plan.noise.between * np.sqrt(0.5) * differences.normal(size=size[0])
        exponent = exponents(plan.noise, generator, size) + shared[operation.ranks]
        exponent += (constant[operation.ranks] + own)[:, None]
        factor = np.exp(exponent) * compute_factors(plan.causes, operation, slowest, plan.steps)
        times = operation.usual_ns[:, None, None] * factor
        times *= held_up(plan.noise, generator, times.shape)
        found.append(np.maximum(1, np.rint(times)).astype(np.int64))
    return found


def _transfer_times(plan: Plan, operation: Operation, number: int) -> Times:
    """By group and step; empty for compute."""
    if operation.computes:
        return np.zeros((0, plan.steps), dtype=np.int64)
    members = groups_of(operation)
    # Of a send and its recv the transfer is the same.
    generator = np.random.default_rng([plan.seed, 4, number - (operation.kind == "recv")])
    scatter = np.exp(plan.noise.transfer * generator.normal(size=(len(members), plan.steps)))
    scatter *= transfer_factors(plan.causes, members, plan.steps)
    times: Times = np.rint(operation.usual_ns[0] * scatter).astype(np.int64)
    return times


def _ran(operation: Operation, start: Times, end: Times, kernels: Times | None) -> Ran:
    if kernels is None:
        return Ran(operation, start[None], (end - start)[None])
    before = np.cumsum(kernels, axis=0) - kernels
    return Ran(operation, start[None] + before, kernels)
