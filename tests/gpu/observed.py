"""What a trace file says of graph work, read independently of annotq's own reader: for checking it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORK = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}


def graph_work(path: Path | str) -> list[tuple[int, str, str]]:
    """(packed node id, kind, name) of every GPU event of a replay."""
    data = Path(path).read_bytes()
    trace = json.loads(gzip.decompress(data) if str(path).endswith(".gz") else data)
    return [
        (event["args"]["graph node id"], WORK[event["cat"]], event["name"])
        for event in trace["traceEvents"]
        if event.get("cat") in WORK and event.get("args", {}).get("graph node id")
    ]


def named(entries: Any) -> Mapping[str, Any]:
    """One dictionary from torch's list of a node."""
    merged: dict[str, Any] = {}
    for entry in entries or ():
        merged |= entry if isinstance(entry, dict) else {"name": entry}
    return merged
