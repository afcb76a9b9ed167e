"""Jobs with a known truth: seeded compute times of every (rank, step, node), written into a real store.

A node is one kernel of a graph that every rank replays once per step. The truth is what `slow` says and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from annotq.collector.store import Store

BEGIN_NS = 1_790_857_026_000_000_000
STEP_NS = 1_000_000_000
GRAPH = 7

Node = tuple[str, str]  # region, phase


@dataclass(frozen=True)
class Job:
    """What ran. durations_ns, shape (ranks, steps, nodes): 0 where the kernel did not run. delays_ns, shape
    (ranks, steps): how late the graph starts in a step. The nodes of a step run one after the other, with `reduces` the
    last one is an all_reduce, before which a rank does nothing for idles_ns[rank].
    """

    nodes: tuple[Node, ...]
    durations_ns: NDArray[np.int64]
    delays_ns: NDArray[np.int64]
    reduces: bool = False
    idles_ns: tuple[int, ...] = ()

    def but(self, duration_ns: int, *places: tuple[Any, ...]) -> Job:
        """A copy in which durations_ns[place] is another one; a place is what indexes an array, as np.s_ writes it."""
        durations = self.durations_ns.copy()
        for place in places:
            durations[place] = duration_ns
        return replace(self, durations_ns=durations)

    def late(self, ranks: NDArray[np.int64] | int, delay_ns: int) -> Job:
        """A copy in which one rank (or one per step) starts every step later than the others."""
        delays = self.delays_ns.copy()
        delays[ranks, np.arange(delays.shape[1])] += delay_ns
        return replace(self, delays_ns=delays)

    def nodes_of(self, region: str) -> list[int]:
        return [index for index, node in enumerate(self.nodes) if node[0] == region]

    def with_all_reduce(
        self, region: str = "grads.all_reduce", transfer_ns: int = 300_000, idle_ns: Mapping[int, int] | None = None
    ) -> Job:
        """A copy that ends every step with an all_reduce: whoever arrives early waits in it for the last rank.

        idle_ns: by rank, how long it does nothing before the all_reduce.
        """
        idles = tuple((idle_ns or {}).get(rank, 0) for rank in range(len(self.durations_ns)))
        arrive = self.delays_ns + self.durations_ns.sum(axis=2) + np.array(idles)[:, None]
        duration = arrive.max(axis=0, keepdims=True) + transfer_ns - arrive
        return replace(
            self,
            nodes=(*self.nodes, (region, "backward")),
            durations_ns=np.concatenate([self.durations_ns, duration[:, :, None]], axis=2),
            reduces=True,
            idles_ns=idles,
        )


def synthetic_job(
    seed: int,
    ranks: int,
    steps: int,
    regions: int | Sequence[str] = 8,
    slow: Mapping[tuple[int, str], float] | None = None,
    noise: str = "independent",
) -> Job:
    """Every region runs forward and backward, each 0.1 to 2 ms with 5 % noise, the same on all ranks.

    slow: (rank, region) to the factor by which that rank's kernels of the region last longer.
    noise: "independent" log-normal; "heavy" Student t with 2 degrees of freedom in the exponent; "drifting": half a rank's
    noise of one step carries over to the next (AR(1), 0.5), for all its regions.
    """
    generator = np.random.default_rng(seed)
    names = [f"layers.{layer}.mlp" for layer in range(regions)] if isinstance(regions, int) else list(regions)
    nodes = tuple((name, phase) for phase in ("forward", "backward") for name in names)
    usual = generator.uniform(100_000, 2_000_000, size=len(nodes))
    factor = np.ones((ranks, 1, len(nodes)))
    for (rank, name), ratio in (slow or {}).items():
        factor[rank, 0, [index for index, (region, _) in enumerate(nodes) if region == name]] = ratio
    exponent = 0.05 * _noise(generator, noise, (ranks, steps, len(nodes)))
    durations = np.maximum(1, np.rint(usual * factor * np.exp(exponent))).astype(np.int64)
    return Job(nodes, durations, np.zeros((ranks, steps), dtype=np.int64))


def _noise(generator: np.random.Generator, kind: str, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    if kind == "heavy":
        return np.clip(generator.standard_t(2, size=shape), -40, 40)
    values = generator.normal(size=shape)
    if kind == "drifting":
        shared = generator.normal(size=shape[:2])
        for step in range(1, shape[1]):
            shared[:, step] = 0.5 * shared[:, step - 1] + np.sqrt(0.75) * shared[:, step]
        values = shared[:, :, None] + 0.2 * values
    return values


def store_of(path: Path, *jobs: Job, clock_error_ns: int = 0) -> Path:
    """A store with the jobs "job0", "job1", ..., their ranks all on one host."""
    with Store(path) as store:
        for number, job in enumerate(jobs):
            _insert(store, f"job{number}", 1000 * (number + 1), job, clock_error_ns)
    return path


def _insert(store: Store, name: str, first_id: int, job: Job, clock_error_ns: int) -> None:
    ranks = pa.table({"rank": np.arange(len(job.durations_ns))})
    nodes = pa.table(
        {
            "node_index": np.arange(len(job.nodes)),
            "region": [region for region, _ in job.nodes],
            "phase": [phase for _, phase in job.nodes],
            "communication": [job.reduces and index == len(job.nodes) - 1 for index in range(len(job.nodes))],
        }
    )
    store.connection.register("ranks", ranks)
    store.connection.register("nodes", nodes)
    store.connection.register("events", _events(job))
    about = {"id": first_id, "job": name, "ranks": len(ranks), "graph": GRAPH, "error": clock_error_ns}
    for statement in _STATEMENTS:
        used = {key: value for key, value in about.items() if f"${key}" in statement}
        store.connection.execute(statement, used)


def _events(job: Job) -> pa.Table:
    rank, step, node = np.nonzero(job.durations_ns)
    ends = np.cumsum(job.durations_ns, axis=2) + job.delays_ns[:, :, None] + BEGIN_NS
    if job.idles_ns:
        ends[:, :, -1] += np.array(job.idles_ns)[:, None]
    durations = job.durations_ns[rank, step, node]
    return pa.table(
        {
            "rank": rank,
            "step": step,
            "node_index": node,
            "duration_ns": durations,
            "start_ns": ends[rank, step, node] - durations + step * STEP_NS,
        }
    )


_STATEMENTS = (
    """INSERT INTO process BY NAME
       SELECT $id + rank AS process_id, $job AS job, 0 AS attempt, rank, $ranks AS world_size, 'node-a' AS host,
           'file' AS annotation_source
       FROM ranks""",
    """INSERT INTO clock BY NAME
       SELECT $job AS job, 0 AS attempt, 'node-a' AS host, 0 AS offset_ns, 0 AS drift_ppb, 0 AS reference_ns,
           $error AS error_ns, 'same_host' AS method""",
    """INSERT INTO graph BY NAME
       SELECT $id + rank AS process_id, $graph AS graph_id, true AS reported, false AS nodes_complete FROM ranks""",
    """INSERT INTO annotation BY NAME
       SELECT $id + rank AS process_id, $graph AS graph_id, node_index, region, region AS region_path, phase,
           '{}' AS attributes
       FROM ranks CROSS JOIN nodes""",
    """INSERT INTO trace BY NAME
       SELECT $id + rank AS trace_id, $id + rank AS process_id, $job AS job, 0 AS attempt, rank,
           concat('rank', rank, '.json') AS path, concat('sha', $id + rank) AS sha256, 0 AS base_ns,
           'packed' AS encoding, false AS inferred, 'profiler' AS step_source, 0 AS step_offset, 'complete' AS status,
           count(*) AS gpu_events, count(*) AS graph_events, 0 AS dropped_events, 0 AS overrun_events
       FROM events GROUP BY rank""",
    """INSERT INTO gpu_event BY NAME
       SELECT $id + e.rank AS trace_id, $id + e.rank AS process_id, e.rank, e.start_ns, e.duration_ns,
           'kernel' AS kind, CASE WHEN n.communication THEN 'ncclDevKernel_AllReduce_Sum_f32' ELSE 'gemm' END AS name,
           0 AS device, 7 AS stream, e.step AS correlation_id, true AS in_graph, $graph AS graph_id, e.node_index,
           e.step, false AS overrun, n.communication, 'default' AS group_name
       FROM events AS e JOIN nodes AS n ON n.node_index = e.node_index
       ORDER BY e.rank, e.start_ns""",
)
