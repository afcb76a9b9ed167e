"""What recording costs a training process on the CPU, beside what torch or the standard library take for the like."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

from measure import run, spread
from section import Section, megabytes

HERE = Path(__file__).parent
MILLISECONDS, MICROSECONDS = (1e3, "ms"), (1e6, "us")

# What, the unit, and how it is called in the table.
ROWS = [
    ("start()", MILLISECONDS, "`start()`, annotq's imports included"),
    ("snapshot", MILLISECONDS, "snapshot of a graph of 100,000 nodes in 2,000 regions, on disk"),
    ("json.dumps of get_graph_data()", MILLISECONDS, "json.dumps of `get_graph_data()` of that graph, not on disk"),
    ("step()", MICROSECONDS, "`step()`"),
    ("region()", MICROSECONDS, "`region()`, no profiler running"),
    ("record_function", MICROSECONDS, "`torch.profiler.record_function`, no profiler running"),
    ("trace_handler()", MILLISECONDS, "`trace_handler()` at the end of a profiler window"),
    ("export_chrome_trace", MILLISECONDS, "torch's export of such a window, plain"),
    ("export_chrome_trace, gzip", MILLISECONDS, "torch's export of such a window, gzip"),
]


def measure(repeats: int) -> Section:
    """Each round is a process of its own; the contestants follow each other within it."""
    if find_spec("torch") is None:
        return Section("Recording", "Not measured: torch is not installed here.", [("what", "time")])
    command = [sys.executable, HERE / "record_costs.py", HERE / "data"]
    rounds = [json.loads(run(command, sample=False).stdout) for _ in range(repeats)]
    rows = [("what", "time: median (min to max)")]
    for what, (factor, unit), name in ROWS:
        rows.append((name, f"{spread([one[what] * factor for one in rounds])} {unit}"))
    window = megabytes(rounds[0]["bytes"])
    what = f"{repeats} rounds, each a process with torch loaded and no GPU; the profiler window is {window} of JSON."
    return Section("Recording", what, rows)
