"""A job as a shipper tells a collector about it: ranks that beat, and send profiler windows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from collectors import Collector, batch, process, trace_batches
from jobs import replayed_step
from spools import snapshot
from traces import write_trace

from annotq.agent.batches import ANNOTATION, GRAPH_NODE
from annotq.agent.snapshots import read_snapshot
from annotq.agent.wire import encode, sequence_of
from annotq.v1 import collector_pb2 as pb

MS = 1_000_000
SECOND = 1_000 * MS
REGIONS = ("attn", "mlp", "grads.all_reduce")
KERNELS = ("softmax", "gemm", "ncclDevKernel_AllReduce_Sum_f32")


class BeatingJob:
    """Ranks of one job on one host, in order, registered at a collector, with the names of their graph's nodes."""

    def __init__(self, collector: Collector, folder: Path, ranks: int, world_size: int, job: str = "live") -> None:
        self._collector = collector
        self._folder = folder
        self._world_size = world_size
        infos = [process(rank, job=job, world_size=world_size) for rank in range(ranks)]
        self.processes = [collector.register(info).process_id for info in infos]
        self._files = dict.fromkeys(range(ranks), 1)
        (folder / "graph.json").write_text(json.dumps(snapshot(regions=REGIONS)))
        read = read_snapshot(folder / "graph.json")
        nodes, names = encode([read.nodes], GRAPH_NODE), encode([read.annotations], ANNOTATION)
        for key in self.processes:
            first = batch(key, sequence_of(1, 0), pb.KIND_SNAPSHOT, asdict(read.info), nodes)
            second = batch(
                key, sequence_of(1, 1), pb.KIND_SNAPSHOT_ANNOTATIONS, {"graph_id": read.info.graph_id}, names
            )
            collector.ship([first, second])

    def beat(
        self, steps: Mapping[int, int], step_ns: Mapping[int, int], age_ns: Mapping[int, int] | None = None
    ) -> None:
        """A beat of the shipper: of these ranks the last step, how long it took, and how long ago that was."""
        beats = [
            pb.ProcessBeat(
                process_id=self.processes[rank],
                alive=True,
                step=step,
                step_ns=step_ns[rank],
                seen_age_ns=(age_ns or {}).get(rank, 0),
            )
            for rank, step in steps.items()
        ]
        self._collector.stub.Beat(pb.BeatRequest(host="node-a", processes=beats), timeout=10)

    def window(self, rank: int, first_step: int, steps: int, durations_us: tuple[float, float, float]) -> None:
        """A profiler window: in each step, one millisecond apart, so long in attn, mlp and the all_reduce."""
        events = [
            event
            for step in range(first_step, first_step + steps)
            for event in replayed_step(step, 1000.0 * (step + 1), durations_us, KERNELS)
        ]
        number = self._file(rank)
        path = self._folder / f"rank{rank}.w{number}.json"
        group = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": self._world_size}]
        write_trace(path, events, rank=rank, world_size=self._world_size, host_name="node-a", pg_config=group)
        self._collector.ship(trace_batches(self.processes[rank], path, rank, number))

    def end(self, rank: int, how: str) -> None:
        """The process is over: stopped or gone."""
        header = {"time_ns": 9, "how": how}
        self._collector.ship(
            [batch(self.processes[rank], sequence_of(self._file(rank), 0), pb.KIND_PROCESS_END, header)]
        )

    def _file(self, rank: int) -> int:
        self._files[rank] += 1
        return self._files[rank]
