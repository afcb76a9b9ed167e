"""Runs the benchmarks and writes bench/results.md. `make bench` calls it; see bench/README.md."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import collector_load
import ingest
import memory
import perfetto_file
import questions
import recorder
import stragglers
import top_refresh
from section import Section

HERE = Path(__file__).parent
DATA = HERE / "data"
RESULTS = HERE / "results.md"
PARTS = ("ingest", "memory", "query", "stragglers", "perfetto", "recorder", "collector", "top")

# Repetitions of the small trace: 370,000 events in 160 MB, and 2 GB.
LARGE_REPEATS = 29
HUGE_REPEATS = 371


def sections(options: argparse.Namespace) -> Iterator[Section]:
    if "ingest" in options.only:
        for trace in [generated("large/rank0.pt.trace.json.gz", LARGE_REPEATS), *options.trace]:
            yield ingest.measure(trace, options.repeats)
    if "memory" in options.only:
        yield memory.measure(generated("huge/rank0.pt.trace.json", HUGE_REPEATS))
    if "query" in options.only:
        store = DATA / "kernels50m.duckdb"
        make("make_store.py", store)
        yield questions.measure(store, options.repeats)
    if "stragglers" in options.only:
        store = DATA / "large_job.duckdb"
        make("make_large_job.py", store)
        yield stragglers.measure(store, options.repeats)
    if "perfetto" in options.only:
        store = DATA / "large_job.duckdb"
        make("make_large_job.py", store)
        yield perfetto_file.measure(store, options.repeats)
    if "recorder" in options.only:
        yield recorder.measure(options.repeats)
    if "collector" in options.only:
        yield collector_load.measure(options.repeats)
    if "top" in options.only:
        yield top_refresh.measure(options.repeats)


def generated(name: str, repeats: int) -> Path:
    """A generated trace, made on first use."""
    path = DATA / name
    if not path.exists():
        print(f"making {path.relative_to(HERE.parent)}", file=sys.stderr)
        make("make_trace.py", path, "--repeats", str(repeats))
    return path


def make(script: str, *arguments: str | Path) -> None:
    """Run a generator in a process of its own: see measure.py on why this one stays small."""
    subprocess.run([sys.executable, HERE / script, *arguments], check=True)


def conditions(command: str) -> str:
    """When, on what and how the numbers came about."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("annotq", "duckdb", "pyarrow", "msgspec", "isal"))
    return (
        "# Benchmark results\n\nWritten by `make bench`; what is measured and how: [README.md](README.md).\n\n"
        f"{datetime.now(UTC):%Y-%m-%d}; {processor()}, {os.cpu_count()} CPUs; Python {platform.python_version()}; "
        f"{packages}. Command: `{command}`.\n"
    )


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--trace", type=Path, action="append", default=[], help="a real trace, beside the generated one"
    )
    parser.add_argument("--repeats", type=int, default=5, help="rounds of every comparison")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="print these parts and write no file")
    options = parser.parse_args()
    DATA.mkdir(exist_ok=True)
    # A given trace is named, not located: the path means nothing on another machine.
    traces = "".join(f" --trace {trace.parent.name}/{trace.name}" for trace in options.trace)
    text = conditions(f"bench/run.py --repeats {options.repeats}{traces}")
    for section in sections(options):
        print(section.markdown(), flush=True)
        text += f"\n{section.markdown()}"
    if options.only == PARTS:
        RESULTS.write_text(text)
        print(f"wrote {RESULTS.relative_to(HERE.parent)}", file=sys.stderr)


if __name__ == "__main__":
    main()
