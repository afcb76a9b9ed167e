"""The files that a page's example begins with, made of the bundled traces."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
RANKS = range(4)


def torchtitan_outputs(work: Path) -> None:
    """outputs/profiling/traces as torchtitan's profiler lays it out: no annotation files, module_fqn in the kernels."""
    folder = work / "outputs/profiling/traces/iteration_20"
    folder.mkdir(parents=True)
    for rank in RANKS:
        with gzip.open(ROOT / f"tests/data/slow4/rank{rank}.pt.trace.json.gz") as file:
            trace = json.load(file)
        annotations = json.loads((ROOT / f"tests/data/slow4/rank{rank}.annotations.json").read_text())
        for event in trace["traceEvents"]:
            for fields in annotations.get(str(event.get("args", {}).get("graph node id")), []):
                event["args"]["module_fqn"] = fields["name"]
        with gzip.open(folder / f"rank{rank}_trace.json.gz", "wt", compresslevel=1) as out:
            json.dump(trace, out)


def two_commits(work: Path) -> None:
    """traces/base and traces/new: the four equal ranks, and those of which one is slow."""
    (work / "traces").mkdir()
    for side, job in {"base": "control4", "new": "slow4"}.items():
        (work / "traces" / side).symlink_to(ROOT / "tests/data" / job)


GIVEN: dict[str, Callable[[Path], None]] = {
    "docs/how-to/torchtitan.md": torchtitan_outputs,
    "docs/how-to/ci-gate.md": two_commits,
}
