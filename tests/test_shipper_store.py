"""Real traces through spool, shipper and collector, each a process of its own, give the store that `annotq ingest` gives."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jobs import DATA, load, rows
from live_collector import ANNOTQ, LiveCollector
from spools import START_NS, add_trace, identity, left_over, snapshot, trainer_holding, wait_for, writer
from traces import graph_launch, kernel, write_trace

from annotq.agent.channel import Access
from annotq.agent.file_locks import holder
from annotq.agent.ship import run_shipper
from annotq.agent.ship_options import ShipOptions

# What a store holds, less what only one of the two ways can know: where the file lay, who the process says it is.
CONTENT = {
    "process": "process_id, job, attempt, rank, world_size, host, pid, process_groups, default_group, default_group_size",
    "graph": "*",
    "graph_node": "*",
    "annotation": "*",
    "source_file": "process_id, sha256, kind",
    "trace": "* EXCLUDE (path)",
    "gpu_event": "*",
    "host_span": "*",
    "clock": "*",
}


def spool_of(job: str, root: Path) -> None:
    """The recorded ranks of a job as their recorders would have left them."""
    for rank in range(4):
        info = identity(rank, job=job, host="vm", pid=_pid(job, rank), world_size=4)
        annotations, trace = DATA / job / f"rank{rank}.annotations.json", DATA / job / f"rank{rank}.pt.trace.json.gz"
        left_over(root, info, [("annotations", annotations), ("trace", trace)])


def content(store: Path) -> dict[str, list[tuple[Any, ...]]]:
    return {table: rows(store, f"SELECT {columns} FROM {table} ORDER BY ALL") for table, columns in CONTENT.items()}


def assert_equal_content(got: Path, expected: Path) -> None:
    left, right = content(got), content(expected)
    for table in CONTENT:
        assert left[table] == right[table], table


def stragglers(store: Path) -> str:
    command = [*ANNOTQ, "stragglers", "--db", str(store), "--format", "json"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("job", ["control4", "slow4"])
def test_recorded_ranks_give_the_same_store_row_for_row(tmp_path: Path, job: str) -> None:
    load(tmp_path / "ingested.duckdb", DATA / job)
    spool_of(job, tmp_path / "spool")
    with LiveCollector(tmp_path / "shipped.duckdb") as collector:
        command = [
            *ANNOTQ,
            "ship",
            "--spool",
            str(tmp_path / "spool"),
            "--endpoint",
            collector.endpoint,
            "--once",
            "-q",
        ]
        assert subprocess.run(command, timeout=100).returncode == 0
    assert_equal_content(tmp_path / "shipped.duckdb", tmp_path / "ingested.duckdb")
    assert stragglers(tmp_path / "shipped.duckdb") == stragglers(tmp_path / "ingested.duckdb")
    assert [path.name for path in (tmp_path / "spool").iterdir()] == ["shipper.lock"]


def _pid(job: str, rank: int) -> int:
    from annotq.agent.kineto import read_trace

    with read_trace(DATA / job / f"rank{rank}.pt.trace.json.gz") as trace:
        assert trace.info.pid is not None
        return trace.info.pid


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_shipper_and_collector_are_killed_again_and_again(tmp_path: Path, seed: int) -> None:
    """After the last recovery the store is the undisturbed one: nothing acknowledged is lost, nothing is there twice."""
    load(tmp_path / "ingested.duckdb", DATA / "control4")
    spool_of("control4", tmp_path / "spool")
    random = Random(seed)
    with LiveCollector(tmp_path / "shipped.duckdb") as collector, (tmp_path / "shipper.log").open("w") as log:
        where = ["--spool", str(tmp_path / "spool"), "--endpoint", collector.endpoint]
        for _ in range(4):
            shipper = subprocess.Popen([sys.executable, "-m", "annotq.agent.ship", *where], stderr=log)
            wait_for(partial(_has_begun, shipper, tmp_path / "spool"))
            time.sleep(random.uniform(0, 0.5))
            victims = random.choice(["shipper", "collector", "both"])
            if victims != "shipper":
                collector.kill()
            if victims != "collector":
                shipper.kill()
            if victims != "shipper":
                collector.start()
            time.sleep(random.uniform(0, 0.5))
            shipper.kill()
            shipper.wait()
        subprocess.run([*ANNOTQ, "ship", *where, "--once"], stderr=log, timeout=60, check=True)
    assert_equal_content(tmp_path / "shipped.duckdb", tmp_path / "ingested.duckdb")
    assert [path.name for path in (tmp_path / "spool").iterdir()] == ["shipper.lock"]


def _has_begun(shipper: subprocess.Popen[bytes], spool: Path) -> bool:
    """Whether it is at work, or found nothing left to do."""
    return holder(spool / "shipper.lock") is not None or shipper.poll() is not None


def test_a_spool_loads_offline_too(tmp_path: Path) -> None:
    """`annotq ingest SPOOL`: the processes say who they are; what only a recorder knows is loaded as if it had been shipped."""
    for rank in (0, 1):
        spool = writer(tmp_path / "spool", rank, job="tiny", attempt=3)
        spool.put("snapshot", snapshot(graph_id=2, regions=("mlp", "attention")))
        trace = tmp_path / "trace.json"
        events = [graph_launch(5, correlation=1), kernel("kernel_0", 10, correlation=1, graph=2, node=0)]
        add_trace(spool, write_trace(trace, [*events, kernel(f"of rank {rank}", 30)], rank=None))
        spool.put("destroyed", {"graph_ids": [2], "time_ns": START_NS + 9})
        spool.note("a sentence")
        spool.close(START_NS + 10, "stopped")
    ingest = [*ANNOTQ, "ingest", str(tmp_path / "spool"), "--db", str(tmp_path / "ingested.duckdb")]
    for _ in range(2):
        done = subprocess.run(ingest, capture_output=True, text=True, timeout=100)
        assert (done.returncode, "error" in done.stderr) == (0, False), done.stderr
    with LiveCollector(tmp_path / "shipped.duckdb") as collector:
        command = [
            *ANNOTQ,
            "ship",
            "--spool",
            str(tmp_path / "spool"),
            "--endpoint",
            collector.endpoint,
            "--once",
            "-q",
        ]
        assert subprocess.run(command, timeout=100).returncode == 0
    for table, columns in {**CONTENT, "process": "* EXCLUDE (layout)", "agent_note": "process_id, note"}.items():
        query = f"SELECT {columns} FROM {table} ORDER BY ALL"
        assert rows(tmp_path / "ingested.duckdb", query) == rows(tmp_path / "shipped.duckdb", query), table
    found = rows(
        tmp_path / "ingested.duckdb", "SELECT rank, region FROM kernels WHERE region IS NOT NULL ORDER BY rank"
    )
    assert found == [(0, "mlp"), (1, "mlp")]
    assert rows(tmp_path / "ingested.duckdb", "SELECT DISTINCT job, attempt, ended FROM process") == [
        ("tiny", 3, "stopped")
    ]


def test_clocks_of_two_hosts_are_measured_while_shipping(tmp_path: Path) -> None:
    """Two shippers whose clocks are off by -3 s and +250 ms and drift: kernels of one true moment come out as one moment."""
    began = time.time_ns()
    offsets = {"node-a": (-3_000_000_000, 20_000), "node-b": (250_000_000, -20_000)}

    def clock_of(host: str, true_ns: int) -> int:
        offset, drift = offsets[host]
        return true_ns - offset - (true_ns - began) * drift // 1_000_000_000

    with LiveCollector(tmp_path / "store.duckdb") as collector:
        stop = threading.Event()
        shippers, spools = [], []
        for rank, host in enumerate(offsets):
            spool = writer(tmp_path / host, rank, host=host, world_size=2)
            options = ShipOptions(tmp_path / host, Access(collector.endpoint), host=host, seed=1)
            holds = trainer_holding(spool.folder)
            holds.__enter__()
            spools.append((spool, holds))
            clock = partial(lambda host: clock_of(host, time.time_ns()), host)
            shippers.append(threading.Thread(target=run_shipper, args=(options, stop, clock)))
            shippers[-1].start()
        time.sleep(3)
        moment = time.time_ns()
        for host, (spool, holds) in zip(offsets, spools, strict=True):
            base = clock_of(host, moment) - 1_000_000
            add_trace(spool, write_trace(tmp_path / "t.json", [kernel("gemm", 1_000)], rank=None, base_ns=base))
            spool.close(99, "stopped")
            holds.__exit__(None, None, None)
        for shipper in shippers:
            shipper.join(30)
    found = rows(
        tmp_path / "store.duckdb", "SELECT rank, start_ns, clock_error_ns FROM kernels JOIN coverage USING (rank)"
    )
    assert [rank for rank, _, _ in sorted(found)] == [0, 1]
    for _, start_ns, error_ns in found:
        assert abs(start_ns - moment) <= error_ns < 50_000_000
