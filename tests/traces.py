"""Builds small Kineto traces: events as dictionaries, then a file in any of the forms that are found in the field."""

from __future__ import annotations

import gzip as gz
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]

BASE_NS = 1_790_857_026_000_000_000
PID = 1260

_RAW = re.compile(r'"<<(.*?)>>"')


def raw(text: str) -> str:
    """A JSON value written as it stands: `raw("5233697018697.406")`, `raw("NaN")`."""
    return f"<<{text}>>"


def kernel(
    name: str,
    start_us: float | str,
    dur_us: float | str = 10,
    *,
    correlation: int | None = None,
    graph: int = 0,
    node: int | None = None,
    stream: int = 7,
    device: int = 0,
    cat: str = "kernel",
    **args: Any,
) -> Event:
    """A GPU event; graph and node make it graph work (graph 0: eager). `cat` may be gpu_memcpy or gpu_memset."""
    fields: Event = {"device": device, "stream": stream, **args}
    if correlation is not None:
        fields["correlation"] = correlation
    fields |= {"graph id": graph, "graph node id": graph << 32 | (node or 0)}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": device,
        "tid": stream,
        "ts": start_us,
        "dur": dur_us,
        "args": fields,
    }


def launch(
    start_us: float | str,
    *,
    correlation: int,
    name: str = "cudaLaunchKernel",
    tid: int | str = PID,
    dur_us: float | str = 5,
) -> Event:
    """A call of the CUDA API on a host thread."""
    return _host("cuda_runtime", name, start_us, dur_us, tid, {"correlation": correlation})


def graph_launch(start_us: float | str, *, correlation: int, tid: int | str = PID) -> Event:
    """A replay of a graph."""
    return launch(start_us, correlation=correlation, name="cudaGraphLaunch", tid=tid)


def annotation(name: str, start_us: float | str, dur_us: float | str, *, tid: int | str = PID) -> Event:
    """A record_function around host code."""
    return _host("user_annotation", name, start_us, dur_us, tid, {})


def step(number: int, start_us: float | str, dur_us: float | str, *, tid: int | str = PID) -> Event:
    """A profiler step."""
    return annotation(f"ProfilerStep#{number}", start_us, dur_us, tid=tid)


def _host(cat: str, name: str, start_us: float | str, dur_us: float | str, tid: int | str, args: Event) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": tid, "ts": start_us, "dur": dur_us, "args": args}


def write_trace(
    path: Path,
    events: Sequence[Event],
    *,
    rank: int | None = 0,
    world_size: int | None = None,
    base_ns: int | None = BASE_NS,
    style: str = "pretty",
    gzip: bool = False,
    header_last: bool = False,
    encoding: str = "packed",
    **header: Any,
) -> Path:
    """Write a trace. style: pretty (as Kineto), lines, compact, array; encoding of graph ids: packed, split, absent."""
    text = trace_text(
        events,
        rank=rank,
        world_size=world_size,
        base_ns=base_ns,
        style=style,
        header_last=header_last,
        encoding=encoding,
        **header,
    ).encode()
    path.write_bytes(gz.compress(text, 1) if gzip else text)
    return path


def trace_text(
    events: Sequence[Event],
    *,
    rank: int | None = 0,
    world_size: int | None = None,
    base_ns: int | None = BASE_NS,
    style: str = "pretty",
    header_last: bool = False,
    encoding: str = "packed",
    **header: Any,
) -> str:
    """The JSON text that `write_trace` writes."""
    elements = [_dump(_encoded(event, encoding), style) for event in events]
    if style == "array":
        return "[" + ",".join(elements) + "]"
    fields: Event = {"schemaVersion": 1, **header}
    if rank is not None:
        # With a world size, one process group of all ranks, as torchrun's default group.
        world = {"world_size": world_size, "pg_config": [{"pg_name": "0", "pg_size": world_size}]} if world_size else {}
        fields["distributedInfo"] = {"backend": "nccl", "rank": rank} | world
    if base_ns is not None:
        fields["baseTimeNanoseconds"] = base_ns
    around = json.dumps(fields)[1:-1]
    gap, between = {"pretty": ("\n  ", ",\n  "), "lines": ("\n", ",\n"), "compact": ("", ",")}[style]
    array = '"traceEvents": [' + gap + between.join(elements) + gap + "]"
    return "{" + (f"{array}, {around}" if header_last else f'{around}, {array},"traceName": "a.json"') + "}"


def _dump(event: Event, style: str) -> str:
    if style == "pretty":
        text = json.dumps(event, indent=2).replace("\n", "\n  ")
    else:
        text = json.dumps(event, separators=(",", ":") if style == "compact" else None)
    return _RAW.sub(lambda found: json.loads(f'"{found.group(1)}"'), text)


def _encoded(event: Event, encoding: str) -> Event:
    args = dict(event.get("args", {}))
    if encoding == "absent":
        args.pop("graph id", None)
        args.pop("graph node id", None)
    elif encoding == "split" and isinstance(args.get("graph node id"), int):
        args["graph node id"] &= (1 << 32) - 1
    return {**event, "args": args}
