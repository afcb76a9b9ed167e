"""The whole live path, each part a process of its own, while parts of it are killed: what trainers published arrives once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jobs import replayed_step, rows
from live_collector import ANNOTQ, LiveCollector
from spools import identity, left_over, snapshot, wait_for
from traces import write_trace

RANKS = range(4)
WINDOWS = 5
TRAINER = Path(__file__).parent / "replaying_trainer.py"

EVENTS = """SELECT t.rank, t.sha256, e.* EXCLUDE (trace_id, process_id) FROM gpu_event e JOIN trace t USING (trace_id)
            ORDER BY ALL"""
NAMED = "SELECT rank, step, region, phase, name, count(*) FROM kernels GROUP BY ALL ORDER BY ALL"


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """windows/rankN/wK.json: 40 steps of a two-kernel graph each, at times and steps of their own."""
    root = tmp_path_factory.mktemp("windows")
    for rank in RANKS:
        (root / f"rank{rank}").mkdir()
        for window in range(WINDOWS):
            numbers = range(40 * window, 40 * window + 40)
            durations = [10 + rank, 20]
            events = [
                e for n in numbers for e in replayed_step(n, 1000.0 * (n + 1), durations, ["kernel_0", "kernel_1"])
            ]
            about = {"rank": rank, "world_size": 4, "host_name": "node-a"}
            write_trace(root / f"rank{rank}" / f"w{window}.json", events, **about)
    return root


@pytest.fixture(scope="module")
def undisturbed(windows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store that the same files give when nothing happens: `annotq ingest` of the whole spool."""
    folder = tmp_path_factory.mktemp("undisturbed")
    about = folder / "graph.json"
    about.write_text(json.dumps(snapshot(regions=("attn", "mlp"))))
    for rank in RANKS:
        files = [("snapshot", about), *(("trace", path) for path in sorted((windows / f"rank{rank}").iterdir()))]
        left_over(folder / "spool", identity(rank, job="live", world_size=4), files)
    command = [*ANNOTQ, "ingest", str(folder / "spool"), "--db", str(folder / "store.duckdb"), "-q"]
    subprocess.run(command, check=True, timeout=60)
    return folder / "store.duckdb"


class Job:
    """Four trainers and the shipper of their node."""

    def __init__(self, spool: Path, windows: Path, endpoint: str, pause: float) -> None:
        self.spool = spool
        self.endpoint = endpoint
        self.published: dict[int, int] = dict.fromkeys(RANKS, 0)
        self.trainers = [self._trainer(rank, windows, pause) for rank in RANKS]
        self._readers = [threading.Thread(target=self._count, args=(rank,)) for rank in RANKS]
        for reader in self._readers:
            reader.start()
        self.shipper = self._ship()

    def _trainer(self, rank: int, windows: Path, pause: float) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            str(TRAINER),
            str(self.spool),
            "live",
            str(rank),
            str(windows / f"rank{rank}"),
            str(pause),
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def _count(self, rank: int) -> None:
        stdout = self.trainers[rank].stdout
        assert stdout is not None
        for _ in stdout:
            self.published[rank] += 1

    def _ship(self) -> subprocess.Popen[bytes]:
        command = [*ANNOTQ, "ship", "--spool", str(self.spool), "--endpoint", self.endpoint, "-q"]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def kill_shipper(self) -> None:
        self.shipper.kill()
        self.shipper.wait()
        self.shipper = self._ship()

    def finish(self) -> None:
        """Wait until the trainers have ended and everything is with the collector."""
        for trainer in self.trainers:
            trainer.wait(60)
        for reader in self._readers:
            reader.join(60)
        assert self.shipper.wait(60) == 0

    def end(self) -> None:
        for process in (*self.trainers, self.shipper):
            process.kill()
            process.wait()
        for reader in self._readers:
            reader.join(10)
        for trainer in self.trainers:
            assert trainer.stdout is not None
            trainer.stdout.close()


@contextmanager
def live(tmp_path: Path, windows: Path, pause: float = 0.3) -> Iterator[tuple[LiveCollector, Job]]:
    with LiveCollector(tmp_path / "store.duckdb") as collector:
        job = Job(tmp_path / "spool", windows, collector.endpoint, pause)
        try:
            wait_for(lambda: sum(job.published.values()) > 0)
            yield collector, job
            job.finish()
        finally:
            job.end()
    assert [path.name for path in (tmp_path / "spool").iterdir()] == ["shipper.lock"]


def restart(collector: LiveCollector, seconds: float = 0.0) -> None:
    collector.kill()
    time.sleep(seconds)
    collector.start()


def assert_same(store: Path, undisturbed: Path) -> None:
    for question in (EVENTS, NAMED):
        assert rows(store, question) == rows(undisturbed, question)
    everything = "SELECT rank, trace_id, status, gpu_events, matched, note FROM coverage ORDER BY ALL"
    assert rows(store, everything) == rows(undisturbed, everything)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("victim", ["shipper", "collector", "network"])
def test_a_part_that_dies_again_and_again_changes_nothing(
    tmp_path: Path, windows: Path, undisturbed: Path, victim: str, seed: int
) -> None:
    generator = random.Random(seed)
    with live(tmp_path, windows) as (collector, job):
        for _ in range(3):
            time.sleep(generator.uniform(0.0, 0.6))
            if victim == "shipper":
                job.kill_shipper()
            else:
                # A cut network and a collector that is gone look alike to a shipper: the port is closed.
                restart(collector, generator.uniform(0.5, 2.0) if victim == "network" else 0.0)
    assert_same(tmp_path / "store.duckdb", undisturbed)


@pytest.mark.parametrize("seed", range(4))
def test_of_a_killed_trainer_all_that_it_published_arrives(
    tmp_path: Path, windows: Path, undisturbed: Path, seed: int
) -> None:
    generator = random.Random(seed)
    victim = generator.choice(RANKS)
    with live(tmp_path, windows) as (_, job):
        time.sleep(generator.uniform(0.0, 1.2))
        job.trainers[victim].kill()
    assert_published(tmp_path / "store.duckdb", undisturbed, job, {victim})


@pytest.mark.parametrize("seed", range(4))
def test_all_three_at_once(tmp_path: Path, windows: Path, undisturbed: Path, seed: int) -> None:
    generator = random.Random(seed)
    victim = generator.choice(RANKS)
    with live(tmp_path, windows) as (collector, job):
        time.sleep(generator.uniform(0.1, 1.0))
        job.trainers[victim].kill()
        job.kill_shipper()
        restart(collector)
    assert_published(tmp_path / "store.duckdb", undisturbed, job, {victim})


def assert_published(store: Path, undisturbed: Path, job: Job, killed: set[int]) -> None:
    """Every rank has the windows that its trainer published (a killed one may not have come to say so of the last), whole
    and once, and the store knows how each process ended."""
    traces = rows(store, "SELECT rank, sha256 FROM trace WHERE status = 'complete' ORDER BY ALL")
    for rank in RANKS:
        arrived = sum(found == rank for found, _ in traces)
        assert arrived in ({job.published[rank], job.published[rank] + 1} if rank in killed else {WINDOWS})
    there: list[Any] = [row for row in rows(undisturbed, EVENTS) if tuple(row[:2]) in set(traces)]
    assert rows(store, EVENTS) == there
    assert rows(store, "SELECT rank FROM agents WHERE state = 'gone' ORDER BY rank") == [
        (rank,) for rank in sorted(killed) if job.published[rank] < WINDOWS
    ]
