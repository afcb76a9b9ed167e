"""Builds small jobs for tests: trace files of several ranks, loaded through the same path as `annotq ingest`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from traces import Event, graph_launch, kernel, step, write_trace

from annotq.agent.intake import Outcome, take_in
from annotq.agent.sources import find_sources
from annotq.collector.collective_alignment import align_hosts
from annotq.collector.load import Loader
from annotq.collector.query import Door
from annotq.collector.rows import Target
from annotq.collector.store import Store

DATA = Path(__file__).parent / "data"

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def load(store: Path, *paths: Path, job: str | None = None, attempt: int = 0, rank: int | None = None) -> list[Outcome]:
    """Take in files or folders as `annotq ingest` does."""
    with Store(store) as opened:
        sources = find_sources(paths)
        outcomes = list(take_in(sources, lambda folder: Loader(opened, Target(job or folder, attempt)), rank))
        align_hosts(opened.connection)
        return outcomes


def rows(store: Path, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    """The rows of a query through the read-only door."""
    with Door(store) as door:
        return [tuple(row.values()) for row in door.ask(sql, parameters).table.to_pylist()]


def ask_of(door: Door) -> Any:
    def ask(sql: str, parameters: Sequence[object]) -> pa.Table:
        return door.ask(sql, parameters).table

    return ask


def write_annotations(path: Path, names: Mapping[int, str | dict[str, Any]], graph: int = 2) -> Path:
    """An annotation file: node index to region name or dictionary."""
    values = {node: name if isinstance(name, dict) else {"name": name} for node, name in names.items()}
    path.write_text(json.dumps({str(graph << 32 | node): [value] for node, value in values.items()}))
    return path


def replayed_step(number: int, begin_us: float, durations_us: Sequence[float], names: Sequence[str]) -> list[Event]:
    """One profiler step that launches graph 2: its nodes run one after the other, 20 us after the launch."""
    events = [step(number, begin_us, 15), graph_launch(begin_us + 5, correlation=100 + number)]
    start = begin_us + 20
    for node, (duration, name) in enumerate(zip(durations_us, names, strict=True)):
        events.append(kernel(name, start, duration, correlation=100 + number, graph=2, node=node))
        start += duration
    return events


def write_job(folder: Path, durations: Mapping[int, Sequence[Sequence[float]]], regions: Sequence[str | None]) -> Path:
    """A job folder: durations[rank][step][node] in us. Regions of the nodes by position; None: not annotated.

    Steps begin every millisecond on every rank. A node whose region contains "reduce" is an NCCL kernel.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [NCCL if region and "reduce" in region else f"kernel_{i}" for i, region in enumerate(regions)]
    for rank, steps in durations.items():
        events = [
            event
            for number, nodes in enumerate(steps)
            for event in replayed_step(number, 1000.0 * (number + 1), nodes, names)
        ]
        write_trace(folder / f"rank{rank}.json", events, rank=rank, world_size=len(durations), host_name="node-a")
        annotated = {node: region for node, region in enumerate(regions) if region}
        write_annotations(folder / f"rank{rank}.annotations.json", annotated)
    return folder
