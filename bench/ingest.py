"""`annotq ingest` and its reader against HolisticTraceAnalysis and json.load: the same file, in turns."""

from __future__ import annotations

import gzip
import statistics
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from measure import Run, run, spread
from section import Section, megabytes

HERE = Path(__file__).parent
ANNOTQ = Path(sys.executable).with_name("annotq")
PEER_PYTHON = HERE / ".venv-peers/bin/python"


@dataclass
class Rounds:
    """Seconds and peak bytes of one contestant, one entry per round."""

    seconds: list[float]
    peak_bytes: list[float]

    def row(self, name: str, counted: str) -> tuple[str, ...]:
        return (name, counted, spread(self.seconds), megabytes(max(self.peak_bytes)))


def measure(trace: Path, repeats: int) -> Section:
    """Every contestant once per round, so that a slow moment of the machine hits all of them alike."""
    contestants = {
        "annotq ingest": partial(ingest, trace),
        "annotq reader": partial(timed, sys.executable, HERE / "read_trace.py", trace),
        "HolisticTraceAnalysis 0.5.0": partial(timed, PEER_PYTHON, HERE / "peers/hta_load.py", trace),
        "json.load": partial(timed, sys.executable, HERE / "peers/json_load.py", trace),
    }
    # The first round compiles modules, warms the page cache and measures memory, which takes time; the others time.
    rounds = {name: Rounds([], [contestant(sample=True).peak_bytes]) for name, contestant in contestants.items()}
    for _ in range(repeats):
        for name, contestant in contestants.items():
            rounds[name].seconds.append(contestant(sample=False).seconds)
    counted = {"annotq ingest": "the whole command, start to exit, into a new store"}
    rows = [("what", "time counted", "seconds: median (min to max)", "peak memory")]
    rows += [rounds[name].row(name, counted.get(name, "the load, without start and imports")) for name in contestants]
    rows += [
        ratio(rounds, "HolisticTraceAnalysis 0.5.0", "annotq ingest"),
        ratio(rounds, "json.load", "annotq ingest"),
        ratio(rounds, "json.load", "annotq reader"),
    ]
    title = f"Reading {trace.parent.name}/{trace.name}, {megabytes(json_bytes(trace))} of JSON"
    return Section(title, f"{repeats} rounds.", rows)


def ingest(trace: Path, sample: bool) -> Run:
    """Ingest `trace` and the annotations beside it into a new store."""
    annotations = trace.with_name(f"{trace.name.split('.')[0]}.annotations.json")
    with tempfile.TemporaryDirectory(dir=HERE / "data") as folder:
        files = [trace, *([annotations] if annotations.exists() else [])]
        command = [ANNOTQ, "ingest", *files, "--job", "bench", "--db", f"{folder}/bench.duckdb"]
        return run(command, sample=sample)


def timed(*command: str | Path, sample: bool = True) -> Run:
    """A run that printed its own seconds: those count, not the wall time."""
    one = run(list(command), sample=sample)
    return Run(float(one.stdout.split()[-1]), one.peak_bytes, one.stdout)


def ratio(rounds: dict[str, Rounds], slow: str, fast: str) -> tuple[str, ...]:
    """How many times faster `fast` was, round by round."""
    values = [a / b for a, b in zip(rounds[slow].seconds, rounds[fast].seconds, strict=True)]
    return (
        f"{slow} / {fast}",
        "ratio within each round",
        f"**{statistics.median(values):.1f}** ({min(values):.1f} to {max(values):.1f})",
        "",
    )


def json_bytes(trace: Path) -> int:
    """Size of the JSON, uncompressed."""
    if trace.suffix != ".gz":
        return trace.stat().st_size
    size = 0
    with gzip.open(trace) as file:
        while block := file.read(1 << 20):
            size += len(block)
    return size
