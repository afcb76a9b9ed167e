"""The real traces give exactly their known counts and nanoseconds."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from annotq.agent.kineto import file_sha256, read_trace

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("trace", "gpu_events", "graph_events", "nodes"),
    [(f"control4/rank{rank}", 3552, 3060, 255) for rank in range(4)]
    + [(f"slow4/rank{rank}", 3552, 3060, 255) for rank in (0, 1, 3)]
    + [("slow4/rank2", 7152, 5940, 495)],
)
def test_real_traces_have_their_known_counts(trace: str, gpu_events: int, graph_events: int, nodes: int) -> None:
    path = DATA / f"{trace}.pt.trace.json.gz"
    with read_trace(path) as read:
        info = read.info
        assert (info.gpu_events, info.graph_events) == (gpu_events, graph_events)
        assert sum(batch.num_rows for batch in read.gpu_events()) == gpu_events
        assert read.observed_nodes().num_rows == nodes
        assert (info.encoding, info.step_source, info.status, info.problems) == ("packed", "profiler", "complete", ())
        assert (info.rank, info.world_size, info.gpu) == (int(trace[-1]), 4, "NVIDIA H200")
        assert info.sha256 == file_sha256(path)


def test_times_are_exact() -> None:
    path = DATA / "control4" / "rank0.pt.trace.json.gz"
    with gzip.open(path) as file:
        trace = json.load(file, parse_float=Decimal)
    base = trace["baseTimeNanoseconds"]
    expected = sorted(
        (base + int(event["ts"] * 1000), int(event["dur"] * 1000), event["name"])
        for event in trace["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    with read_trace(path) as read:
        table = pa.Table.from_batches(read.gpu_events()).select(["start_ns", "duration_ns", "name"])
        assert sorted(tuple(row.values()) for row in table.to_pylist()) == expected


def test_each_step_of_the_real_trace_has_one_replay_and_eager_work_its_region() -> None:
    with read_trace(DATA / "control4" / "rank1.pt.trace.json.gz") as read:
        rows = pa.Table.from_batches(read.gpu_events()).select(["in_graph", "step", "region"]).to_pylist()
    counts = Counter((row["in_graph"], row["step"], row["region"]) for row in rows)
    # The eager forward was launched between two ProfilerSteps.
    assert counts == {(True, number, None): 255 for number in range(12)} | {(False, None, "eager.eval"): 492}
