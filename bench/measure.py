"""Runs a command and says how long it took and how much memory it and its children held.

Imports nothing heavy: Linux counts the parent's memory at the moment of exec to the child's peak.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

# Adding up the pages of a process holds it up for milliseconds: often enough to see a peak, seldom enough not to be one.
SAMPLE_SECONDS = 0.2


@dataclass(frozen=True)
class Run:
    """One run: wall seconds, peak resident bytes of the process tree, what it printed."""

    seconds: float
    peak_bytes: int
    stdout: str


def run(command: list[str | Path], environment: dict[str, str] | None = None, sample: bool = True) -> Run:
    """Run `command` to its end. Raises RuntimeError with what it wrote to stderr when it fails.

    sample: add up the memory of the process tree meanwhile, which slows it down; without it peak_bytes is that of the
    largest process.
    """
    start = time.perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    tree_peak = TreePeak(process.pid)
    if sample:
        tree_peak.start()
    stdout, stderr, usage = finish(process)
    seconds = time.perf_counter() - start
    if sample:
        tree_peak.stop()
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode} of {process.args}:\n{stderr[-2000:]}")
    return Run(seconds, max(usage * 1024, tree_peak.bytes), stdout)


def finish(process: subprocess.Popen[str]) -> tuple[str, str, int]:
    """stdout, stderr and the peak in KiB, by wait4: the kernel's own count misses no short peak."""
    assert process.stdout and process.stderr
    stderr: list[str] = []
    reader = threading.Thread(target=lambda stream: stderr.append(stream.read()), args=(process.stderr,))
    reader.start()
    stdout = process.stdout.read()
    reader.join()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return stdout, stderr[0], usage.ru_maxrss


class TreePeak(threading.Thread):
    """Samples the memory of a process and all its descendants: what wait4 does not add up."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.bytes = 0
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self.bytes = max(self.bytes, resident_bytes(self.pid))

    def stop(self) -> None:
        self._ended.set()
        self.join()


def resident_bytes(pid: int) -> int:
    """Memory of `pid` and its descendants; a page that several of them share counts once in all (PSS)."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        children = "".join((task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()).split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    own = sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return own + sum(resident_bytes(int(child)) for child in children)


def spread(values: list[float], digits: int = 2) -> str:
    """The median of `values` and, behind it, the smallest and the largest."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
