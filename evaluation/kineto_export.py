"""Writes a simulated job as torch.profiler would have: one Kineto trace per rank, on the true clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from simulated_events import FIRST_STEP, Clocks, event_table
from simulated_job import SimulatedJob

HOST_THREAD = 1000
HOST_US = 4.0


def export(job: SimulatedJob, folder: Path) -> Path:
    """Write rankN.json for every rank; returns the folder. Collectives are called as NCCL did before 2.18: "ncclKernel_..."."""
    folder.mkdir(parents=True, exist_ok=True)
    clocks = Clocks(job)
    tables = [event_table(job, clocks, range(rank, rank + 1)) for rank in range(job.plan.layout.size)]
    # Some time before the first event: a trace has no times below 0.
    first = min(int(table.column("start_ns").to_numpy().min()) for table in tables) - 1_000_000
    for rank, table in enumerate(tables):
        here = np.full(job.plan.steps, rank)
        begin, launch = (clocks.shown(times[rank], here) - first for times in (job.begin_ns, job.launch_ns))
        events = _steps(np.minimum(begin, launch - 2_000 * HOST_US))
        events += [_launch(at / 1000, 1 + step) for step, at in enumerate(launch.tolist())]
        events += [_kernel(row, (row["start_ns"] - first) / 1000) for row in table.to_pylist()]
        header = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": job.plan.layout.size}}
        text = json.dumps({**header, "traceEvents": sorted(events, key=lambda event: float(event["ts"]))})
        (folder / f"rank{rank}.json").write_text(text)
    return folder


def _steps(begin: NDArray[np.float64]) -> list[dict[str, Any]]:
    """The profiler's steps on the host, each to shortly before the next; begin in ns."""
    begins = begin / 1000
    ends = np.append(begins[1:], begins[-1] + 1000.0)
    return [
        _host("user_annotation", f"ProfilerStep#{FIRST_STEP + number}", start, end - start - 1, {})
        for number, (start, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True))
    ]


def _launch(at_us: float, correlation: int) -> dict[str, Any]:
    return _host("cuda_runtime", "cudaGraphLaunch", at_us - HOST_US, 1.0, {"correlation": correlation})


def _host(category: str, name: str, start_us: float, duration_us: float, args: dict[str, Any]) -> dict[str, Any]:
    place = {"pid": HOST_THREAD, "tid": HOST_THREAD}
    return {"ph": "X", "cat": category, "name": name, **place, "ts": start_us, "dur": duration_us, "args": args}


def _kernel(row: dict[str, Any], start_us: float) -> dict[str, Any]:
    args = {"device": 0, "stream": row["stream"], "correlation": row["correlation_id"]}
    args |= {"graph id": row["graph_id"], "graph node id": row["graph_id"] << 32 | row["node_index"]}
    place = {"pid": 0, "tid": row["stream"], "ts": start_us, "dur": row["duration_ns"] / 1000}
    name = row["name"].replace("ncclDevKernel", "ncclKernel")
    return {"ph": "X", "cat": "kernel", "name": name, **place, "args": args}
