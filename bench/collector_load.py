"""The collector under load: 256 ranks ship traces at once, while questions are asked."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import TreePeak
from section import Section, megabytes

HERE = Path(__file__).parent
ANNOTQ = Path(sys.executable).with_name("annotq")
RANKS = 256
HELD_UP_SECONDS = 10.0
SMALL_QUEUE_BYTES = 64 << 20  # less than all ranks have to send


def measure(repeats: int) -> Section:
    """Rows per second from the first batch sent to the last acknowledged, beside DuckDB alone with the same batches."""
    free = [shipped() for _ in range(repeats)]
    held_up = shipped(held_up=True)
    alone = [float(client("insert")["rows_per_second"]) for _ in range(repeats)]
    best = max(free, key=lambda run: run["rows_per_second"])
    latencies = sorted(seconds for run in free for seconds in run["query_seconds"])
    rows = [
        ("what", "rows/s until committed: median (min to max)", "peak memory of the collector"),
        (
            f"{RANKS} ranks through gRPC",
            speeds([run["rows_per_second"] for run in free]),
            megabytes(best["peak_bytes"]),
        ),
        (
            f"the same, writer held up for {HELD_UP_SECONDS:g} s, --queue-bytes {SMALL_QUEUE_BYTES}",
            f"{held_up['rows_per_second']:,.0f}",
            f"{megabytes(held_up['peak_bytes'])}, queue at most {megabytes(held_up['most_queued_bytes'])}",
        ),
        ("DuckDB alone: Arrow batches inserted by one process", speeds(alone), ""),
        (
            f"{len(latencies)} questions meanwhile",
            f"median {1e3 * statistics.median(latencies):.0f} ms, "
            f"99th percentile {1e3 * latencies[int(0.99 * (len(latencies) - 1))]:.0f} ms",
            "",
        ),
    ]
    count = int(best["rows"])
    what = (
        f"{repeats} rounds of {count:,} rows in batches of 100,000, each rank with a stream of its own and at most 16 "
        f"batches unacknowledged; collector, ranks and questions share {os.cpu_count()} CPUs. The question: kernels and "
        "median duration by name of one rank."
    )
    return Section("Collector under load", what, rows)


def speeds(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def shipped(held_up: bool = False) -> dict[str, float]:
    """One run against a collector of its own. held_up: its files cannot grow for a while, so that nothing commits."""
    with tempfile.TemporaryDirectory(dir=HERE / "data") as folder:
        port_file = Path(folder, "port")
        command = [
            ANNOTQ,
            "serve",
            "--db",
            f"{folder}/load.duckdb",
            "--listen",
            "127.0.0.1:0",
            "--port-file",
            port_file,
        ]
        command += ["--queue-bytes", str(SMALL_QUEUE_BYTES)] if held_up else []
        collector = subprocess.Popen([str(part) for part in command], stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while not port_file.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            peak = TreePeak(collector.pid)
            peak.start()
            found = client("ship", port_file.read_text(), str(RANKS), collector.pid if held_up else 0)
            peak.stop()
            return {**found, "peak_bytes": peak.bytes}
        finally:
            collector.send_signal(signal.SIGTERM)
            collector.wait(60)


def client(*arguments: object) -> dict[str, float]:
    """Run collector_client.py, which prints what it found as JSON."""
    command = [sys.executable, HERE / "collector_client.py", *arguments]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True, text=True, timeout=600)
    return json.loads(done.stdout)  # type: ignore[no-any-return]
