"""The collector under load with and without people who reload its page: what they cost the ranks and those who ask.

python bench/page_reload.py [RANKS] [ROUNDS]
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import nullcontext
from pathlib import Path

from collector_load import ANNOTQ, HERE, client

READERS = 4
PAUSE_SECONDS = 1.0
PATHS = ("/", "/jobs/load", "/metrics")


class Readers:
    """People at the page, each reloading all of it every second. A context manager. seconds: of each answer, by path;
    refused: the others."""

    def __init__(self, port: str) -> None:
        self.seconds: dict[str, list[float]] = {path: [] for path in PATHS}
        self.refused: list[str] = []
        self._port = port
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._read) for _ in range(READERS)]

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(60)

    def _read(self) -> None:
        while not self._done.wait(PAUSE_SECONDS):
            for path in PATHS:
                started = time.perf_counter()
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=60) as reply:
                        reply.read()
                except urllib.error.HTTPError as error:
                    error.close()
                    if error.code != 404:  # until the first rank has registered
                        self.refused.append(f"{error.code} {path}")
                    continue
                self.seconds[path].append(time.perf_counter() - started)


def shipped(ranks: int, read: bool) -> tuple[dict[str, float], Readers]:
    """One run against a collector of its own."""
    with tempfile.TemporaryDirectory(dir=HERE / "data") as folder:
        port_file = Path(folder, "ports")
        command = [ANNOTQ, "serve", "--db", f"{folder}/load.duckdb", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        command += ["--port-file", port_file]
        collector = subprocess.Popen([str(part) for part in command], stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while not port_file.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            port, page = port_file.read_text().split()
            readers = Readers(page)
            with readers if read else nullcontext():
                found = client("ship", port, str(ranks), 0)
            return found, readers
        finally:
            collector.send_signal(signal.SIGTERM)
            collector.wait(60)


def main() -> None:
    ranks, rounds = (int(text) for text in (*sys.argv[1:], *("64", "3")[len(sys.argv) - 1 :]))
    (HERE / "data").mkdir(exist_ok=True)
    speeds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for read in (False, True):
            found, readers = shipped(ranks, read)
            speeds[read].append(found["rows_per_second"])
            latencies: list[float] = found["query_seconds"]  # type: ignore[assignment]
            told = [f"{found['rows_per_second']:,.0f} rows/s", f"questions {_spread(latencies)}"]
            told += [f"{path} {_spread(seconds)}" for path, seconds in readers.seconds.items() if seconds]
            told += [f"refused: {', '.join(readers.refused)}"] if readers.refused else []
            print("with readers:" if read else "alone:", ", ".join(told), flush=True)
    ratio = statistics.median(speeds[True]) / statistics.median(speeds[False])
    print(f"{READERS} readers leave {ratio:.0%} of the rows per second")


def _spread(seconds: list[float]) -> str:
    return f"{len(seconds)} x median {1e3 * statistics.median(seconds):.0f} ms, at most {1e3 * max(seconds):.0f} ms"


if __name__ == "__main__":
    main()
