"""The GPU events of a simulated job as an Arrow table, in the order and on the clocks of its ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from simulated_job import Ran, SimulatedJob
from simulated_program import COMMUNICATION_STREAM, NODE_STRIDE, Operation

Column = NDArray[np.int64]

BEGIN_NS = 1_790_857_026_000_000_000
GRAPH = 7
FIRST_STEP = 10
STREAMS = {0: 7, COMMUNICATION_STREAM: 23}
KERNELS = {
    "compute": "void gemm<float, 4>(float*, int)",
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}


class Clocks:
    """What the clocks of a job's hosts show."""

    def __init__(self, job: SimulatedJob) -> None:
        layout = job.plan.layout
        self.offsets_ns, self.drifts_ppb = job.plan.clocks.drawn(job.plan.seed, layout.hosts)
        self._host = np.array([layout.host_of(rank) for rank in range(layout.size)])

    def shown(self, true_ns: Column, rank: Column) -> Column:
        """The time on the clock of the rank's host, since the epoch; true_ns counts from the job's start."""
        host = self._host[rank]
        drifted: Column = np.rint(true_ns * (self.drifts_ppb[host] * 1e-9)).astype(np.int64)
        shown: Column = BEGIN_NS + true_ns + self.offsets_ns[host] + drifted
        return shown


def event_table(job: SimulatedJob, clocks: Clocks, ranks: range) -> pa.Table:
    """GPU events of some ranks, in the order in which ingest leaves them: by rank, then by start."""
    columns = _events(job, ranks)
    columns = _take(columns, np.argsort(columns["rank"] * (1 << 45) + columns["start"], kind="stable"))
    start, end = (clocks.shown(columns[edge], columns["rank"]) for edge in ("start", "end"))
    described = _described(job, columns)
    return pa.table(described | {"start_ns": start, "duration_ns": end - start})


def _take(columns: dict[str, Column], rows: NDArray[np.generic]) -> dict[str, Column]:
    return {key: values[rows] for key, values in columns.items()}


def _events(job: SimulatedJob, ranks: range) -> dict[str, Column]:
    """Rank, step, node_index, start and end in true time, and the number of the operation, of all events; unsorted."""
    parts = [_rows(number, ran, job, ranks) for number, ran in enumerate(job.ran)]
    columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    if not job.plan.missing:
        return columns
    there = np.ones((job.plan.layout.size, job.plan.steps), dtype=np.bool_)
    for rank, steps in job.plan.missing.items():
        there[rank, list(steps)] = False
    return _take(columns, there[columns["rank"], columns["step"]])


def _rows(number: int, ran: Ran, job: SimulatedJob, ranks: range) -> dict[str, Column]:
    operation = ran.operation
    wanted = slice(*np.searchsorted(operation.ranks, [ranks.start, ranks.stop]))
    start, end = ran.start_ns[:, wanted], ran.end_ns[:, wanted]
    kernels, count, steps = start.shape
    columns: dict[str, Column] = {
        "rank": np.tile(np.repeat(operation.ranks[wanted], steps), kernels),
        "step": np.tile(np.arange(steps), kernels * count),
        "node_index": np.repeat(operation.first_node + NODE_STRIDE * np.arange(kernels), count * steps),
        "start": start.ravel(),
        "end": end.ravel(),
        "operation": np.full(start.size, number),
    }
    for cause in job.plan.causes:
        if cause.extra_nodes and cause.concerns(operation):
            columns = _repeated(columns, cause.ranks, round(1 + cause.size))
    return columns


def _repeated(columns: dict[str, Column], ranks: tuple[int, ...], times: int) -> dict[str, Column]:
    """Every kernel of these ranks cut into `times` nodes of its graph."""
    pieces = np.where(np.isin(columns["rank"], ranks), times, 1)
    copied = {key: np.repeat(values, pieces) for key, values in columns.items()}
    which = np.arange(len(copied["rank"])) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    count, lasted = np.repeat(pieces, pieces), copied["end"] - copied["start"]
    return copied | {
        "node_index": copied["node_index"] + which,
        "start": copied["start"] + lasted * which // count,
        "end": copied["start"] + lasted * (which + 1) // count,
    }


def _described(job: SimulatedJob, columns: dict[str, Column]) -> dict[str, Column | pa.Array]:
    """Everything about the events but their times."""
    operations, operation = [ran.operation for ran in job.ran], columns["operation"]
    eager = np.array([one.eager for one in operations])[operation]
    launches = 1_000_000_000 + columns["step"] * 1_000_000 + columns["node_index"]
    described: dict[str, Column | pa.Array] = {
        "rank": columns["rank"],
        "step": columns["step"] + FIRST_STEP,
        "kind": _coded(["kernel"] * len(operations), operation),
        "name": _coded([KERNELS[one.kind] for one in operations], operation),
        "device": np.zeros(len(operation), dtype=np.int64),
        "stream": np.array([STREAMS[one.stream] for one in operations])[operation],
        "correlation_id": np.where(eager, launches, 1 + columns["step"]),
        "in_graph": pa.array(~eager),
        "graph_id": pa.array(np.full(len(operation), GRAPH), mask=eager),
        "node_index": pa.array(columns["node_index"], mask=eager),
        "overrun": pa.array(np.zeros(len(operation), dtype=np.bool_)),
        "communication": pa.array(np.array([not one.computes for one in operations])[operation]),
    }
    if eager.any():
        described |= _eager_columns(operations, operation, columns["step"])
    return described


def _eager_columns(operations: list[Operation], operation: Column, step: Column) -> dict[str, Column | pa.Array]:
    """What the trace itself says of eager work; the group of an eager collective is always that of all ranks."""

    def texts(of: dict[int, str]) -> pa.Array:
        return _coded([of.get(number) for number in range(len(operations))], operation)

    eager = {number: one for number, one in enumerate(operations) if one.eager}
    reduces = {number: one.family for number, one in eager.items() if one.family}
    of_group = np.isin(operation, list(reduces))
    sizes = np.full(len(operation), next(iter(reduces.values())).ranks.shape[1] if reduces else 0)
    return {
        "region": texts({number: one.region for number, one in eager.items()}),
        "region_path": texts({number: one.region for number, one in eager.items()}),
        "region_instance": pa.array(step, mask=~np.isin(operation, list(eager))),
        "collective": texts(dict.fromkeys(reduces, "allreduce")),
        "group_name": texts({number: family.name(0) for number, family in reduces.items()}),
        "group_description": texts({number: family.description for number, family in reduces.items()}),
        "group_ranks": texts({number: family.ranks_text(0) for number, family in reduces.items()}),
        "group_size": pa.array(sizes, mask=~of_group),
        "sequence": pa.array(step + 1, mask=~of_group),
    }


def _coded(values: Sequence[str | None], index: Column) -> pa.Array:
    known = sorted({value for value in values if value is not None})
    codes = pa.array([None if value is None else known.index(value) for value in values], pa.int32())
    return pa.DictionaryArray.from_arrays(codes.take(pa.array(index)), pa.array(known, pa.string()))
