"""Builds spools for tests, with the recorder's own writer, and trainers that hold them open."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from annotq.agent.process_info import ProcessInfo
from annotq.agent.spool import SpoolWriter, folder_name

START_NS = 1_790_857_026_000_000_000
_LIMIT_BYTES = 1 << 30


def identity(rank: int = 0, **fields: Any) -> ProcessInfo:
    """A rank of job "tiny" on host node-a."""
    known: dict[str, Any] = {"job": "tiny", "attempt": 0, "host": "node-a", "pid": 4000 + rank, "start_ns": START_NS}
    return ProcessInfo(rank=rank, **{**known, **fields})


def writer(root: Path, rank: int = 0, limit_bytes: int = _LIMIT_BYTES, **fields: Any) -> SpoolWriter:
    """The folder of a new process. A lock is not seen by the process that holds it: to a shipper in the same process the
    trainer is gone from the beginning."""
    return SpoolWriter(root, identity(rank, **fields), limit_bytes)


def snapshot(graph_id: int = 2, regions: tuple[str, ...] = ("mlp",)) -> dict[str, Any]:
    """The content of a snapshot file: one kernel per region."""
    nodes = list(range(len(regions)))
    return {
        "format": 1,
        "exec_graph_id": graph_id,
        "generation": 0,
        "fingerprint": "f" * 16,
        "time_ns": START_NS + 1,
        "nodes": {"index": nodes, "kind": [0] * len(nodes), "name": nodes, "kinds": ["kernel"],
                  "names": [f"kernel_{node}" for node in nodes]},
        "annotations": {"node": nodes, "code": nodes, "distinct": [{"name": region} for region in regions]},
    }  # fmt: skip


def add_trace(spool: SpoolWriter, trace: Path) -> None:
    """Put a copy of a trace file into the spool."""
    temporary = spool.temporary("trace.json")
    temporary.write_bytes(trace.read_bytes())
    assert spool.put_trace(temporary)


_HOLD = (
    "import sys, fcntl; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
)


def trainer_holding(folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A process that holds the lock of a process folder, until it is killed or the block ends."""
    (folder / "alive.lock").open().close()  # a record lock ends with any descriptor: the writer here gives it up
    return holding(_HOLD, folder / "alive.lock")


@contextmanager
def holding(code: str, lock: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that takes a lock, says so, and lives until it is killed or the block ends."""
    process = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(condition: Any, seconds: float = 20) -> None:
    """Wait until the condition holds; fails when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def left_over(root: Path, info: ProcessInfo, files: Sequence[tuple[str, Path]]) -> Path:
    """The folder of a process that ended: copies of the given files, each with its kind, in this order."""
    folder = root / folder_name(info)
    folder.mkdir(parents=True)
    (folder / "process.json").write_text(info.to_json())
    for number, (kind, path) in enumerate(files, 1):
        suffix = ".json.gz" if path.name.endswith(".gz") else ".json"
        (folder / f"{number:08d}.{kind}{suffix}").write_bytes(path.read_bytes())
    (folder / f"{len(files) + 1:08d}.end.json").write_text('{"time_ns": 99, "how": "stopped"}')
    return folder
