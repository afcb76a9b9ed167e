"""What the recorder costs in one training process: prints {what: seconds} as JSON. bench/recorder.py runs it several times."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function

NODES = 100_000
REGIONS = 2_000
CALLS = 20_000
PROFILED_CALLS = 60_000


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
        os.environ |= {"ANNOTQ_SPOOL": folder, "ANNOTQ_JOB": "bench"}
        print(json.dumps(costs(Path(folder))))


def costs(folder: Path) -> dict[str, float]:
    found = {"start()": once(start)}
    import annotq.agent

    found |= snapshot()
    found["step()"] = per_call(annotq.agent.step)
    found["region()"] = per_call(lambda: within(annotq.agent.region("layers.0.mlp")))
    found["record_function"] = per_call(lambda: within(record_function("layers.0.mlp")))
    found |= exports(folder)
    annotq.agent.stop()
    return found


def start() -> None:
    """From nothing but torch being imported: annotq's own modules are charged."""
    import annotq.agent

    annotq.agent.start()


def once(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def per_call(work: Callable[[], Any]) -> float:
    for _ in range(CALLS // 10):
        work()
    return once(lambda: [work() for _ in range(CALLS)]) / CALLS


def within(context: Any) -> None:
    with context:
        pass


def snapshot() -> dict[str, float]:
    """A graph like that of a large model: a chain of kernels, nested regions, so that every node has its own dictionary."""
    from annotq.agent.graph_snapshots import graph_snapshot
    from annotq.agent.recorder import current

    recorder = current()
    assert recorder is not None
    data = graph_data()
    annotations = {
        node["tools_id"]: [
            {"name": f"op{place % REGIONS}", "region_path": f"layers.{place % REGIONS} > op", "layer": 3}
        ]
        for place, node in enumerate(data["nodes"])
    }

    def write() -> None:
        content = graph_snapshot(data, annotations, capture_graph_id=1, generation=0, time_ns=time.time_ns())
        recorder.spool.put("snapshot", content)

    return {"snapshot": once(write), "json.dumps of get_graph_data()": once(lambda: json.dumps(data))}


def graph_data() -> dict[str, Any]:
    nodes = [
        {
            "index": place,
            "node_type": "kernel",
            "tools_id": 2 << 32 | place,
            "graph_id": 2,
            "node_id": place,
            "kernel_name": f"void at::native::vectorized_elementwise_kernel_{place % 300}<4, float>(int, float)",
            "event_ptr": 0,
            "host_fn_addr": 0,
            "host_fn_name": None,
            "dependencies": [place - 1] if place else [],
            "dependents": [place + 1] if place + 1 < NODES else [],
        }
        for place in range(NODES)
    ]
    return {"exec_graph_id": 2, "nodes": nodes}


def exports(folder: Path) -> dict[str, float]:
    """How long a training loop is held at the end of a profiler window: by the handler, by torch's export, by gzip."""
    import annotq.agent

    handler = annotq.agent.trace_handler()
    found: dict[str, float] = {}
    one = torch.ones(1)

    def window(what: str, export: Callable[[Any], None]) -> None:
        with profile() as profiler:
            for _ in range(PROFILED_CALLS):
                one.add(1)
        found[what] = once(lambda: export(profiler))

    window("trace_handler()", handler)
    window("export_chrome_trace", lambda profiler: profiler.export_chrome_trace(str(folder / "plain.json")))
    window("export_chrome_trace, gzip", lambda profiler: profiler.export_chrome_trace(str(folder / "packed.json.gz")))
    found["bytes"] = (folder / "plain.json").stat().st_size
    return found


if __name__ == "__main__":
    main()
