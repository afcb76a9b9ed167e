"""Streams that break, collectors that come and go, shippers that are stopped: everything arrives once, nothing is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from scripted_collector import ScriptedCollector
from spools import add_trace, snapshot, trainer_holding, wait_for, writer
from traces import kernel, launch, write_trace

from annotq.agent.channel import Access
from annotq.agent.ship import run_shipper
from annotq.agent.ship_options import ShipOptions, Summary
from annotq.v1 import collector_pb2 as pb


def fill(root: Path, ranks: int = 2, graphs: int = 12) -> None:
    """A spool of ended processes: graphs, then a trace."""
    events = [event for i in range(1, 51) for event in (launch(i, correlation=i), kernel("gemm", i + 5, correlation=i))]
    trace = write_trace(root.with_suffix(".json"), events, rank=None)
    for rank in range(ranks):
        spool = writer(root, rank)
        for graph_id in range(2, 2 + graphs):
            spool.put("snapshot", snapshot(graph_id))
        add_trace(spool, trace)
        spool.close(99, "stopped")


def undisturbed(tmp_path: Path) -> dict[int, list[bytes]]:
    """What a collector has when nothing goes wrong."""
    fill(tmp_path / "undisturbed")
    with ScriptedCollector() as collector:
        ship(tmp_path / "undisturbed", collector)
        return by_process(collector)


def by_process(collector: ScriptedCollector) -> dict[int, list[bytes]]:
    """The committed batches of each process. A trace's header names its file, so the folders of both spools must not count."""
    found: dict[int, list[bytes]] = {}
    for batch in collector.batches:
        copy = pb.Batch()
        copy.CopyFrom(batch)
        copy.header = batch.header if batch.kind != pb.KIND_TRACE_BEGIN else b""
        found.setdefault(batch.process_id, []).append(copy.SerializeToString())
    return found


def ship(spool: Path, collector: ScriptedCollector, stop: threading.Event | None = None, **options: object) -> Summary:
    given = ShipOptions(spool, Access(collector.endpoint), seed=1, **options)  # type: ignore[arg-type]
    return run_shipper(given, stop or threading.Event())


def test_streams_that_break_again_and_again(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path)
    fill(tmp_path / "spool")
    with ScriptedCollector() as collector:
        collector.break_after = 7
        summary = ship(tmp_path / "spool", collector)
    assert by_process(collector) == expected
    assert collector.streams > 5
    # What was committed unheard is not sent again: the collector said so when the process was registered again.
    assert len({(batch.process_id, batch.sequence) for batch in collector.received}) == len(collector.batches)
    assert summary.left == 0


def test_a_port_that_is_closed_for_a_while(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path)
    fill(tmp_path / "spool")
    with ScriptedCollector() as collector:
        collector.answer.clear()
        shipper = threading.Thread(target=ship, args=(tmp_path / "spool", collector))
        shipper.start()
        wait_for(lambda: collector.received)
        collector.close()
        time.sleep(1.5)
        collector.answer.set()
        collector.open()
        shipper.join(30)
        assert not shipper.is_alive()
    assert by_process(collector) == expected


@pytest.mark.parametrize("acknowledged", [0, 1, 9, 25])
def test_a_stopped_shipper_is_continued_by_the_next(tmp_path: Path, acknowledged: int) -> None:
    expected = undisturbed(tmp_path)
    fill(tmp_path / "spool")
    stop = threading.Event()
    with ScriptedCollector() as collector:
        collector.refuse_batch = lambda _: stop.set() or "" if len(collector.received) > acknowledged else ""  # type: ignore[func-returns-value]
        first = ship(tmp_path / "spool", collector, stop, flush_seconds=0)
        collector.refuse_batch = lambda _: ""
        assert first.left > 0
        committed = len(collector.received)
        second = ship(tmp_path / "spool", collector)
    assert by_process(collector) == expected
    assert len(collector.received) == len(collector.batches) > committed
    assert second.left == 0


def test_a_collector_that_lost_its_store_gets_what_is_still_here(tmp_path: Path) -> None:
    """Files that were acknowledged are gone; a file that was on its way is sent from its beginning."""
    expected = undisturbed(tmp_path)
    fill(tmp_path / "spool")
    with ScriptedCollector() as collector:
        lost: list[int] = []

        def begin_anew() -> None:
            collector.close()
            collector.forget_everything()
            collector.open()

        def lose_one(batch: pb.Batch) -> str:
            if batch.kind == pb.KIND_GPU_EVENTS and not lost:
                lost.append(batch.process_id)
                threading.Thread(target=begin_anew).start()
            return ""

        collector.refuse_batch = lose_one
        ship(tmp_path / "spool", collector)
    got = by_process(collector)
    assert lost
    assert got[lost[0]] == expected[lost[0]][-len(got[lost[0]]) :]
    assert pb.Batch.FromString(got[lost[0]][0]).kind in (pb.KIND_TRACE_BEGIN, pb.KIND_SNAPSHOT)


@pytest.fixture
def shipper_process(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Starts `python -m annotq.agent.ship`, and ends what is left of it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "annotq.agent.ship", *arguments]
        process = subprocess.Popen(command, stderr=(tmp_path / "shipper.log").open("ab"))
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_sigterm_leaves_time_to_ship_what_is_there(tmp_path: Path, shipper_process) -> None:  # type: ignore[no-untyped-def]
    fill(tmp_path / "spool")
    with ScriptedCollector() as collector:
        collector.answer.clear()
        process = shipper_process("--spool", str(tmp_path / "spool"), "--endpoint", collector.endpoint)
        wait_for(lambda: collector.received)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        collector.answer.set()
        assert process.wait(15) == 0
    assert list((tmp_path / "spool").glob("*/0*")) == []
    assert len(collector.received) == len(collector.batches)


def test_sigterm_does_not_wait_for_a_collector_that_never_answers(tmp_path: Path) -> None:
    fill(tmp_path / "spool")
    with ScriptedCollector() as collector:
        collector.answer.clear()
        where = ["--spool", str(tmp_path / "spool"), "--endpoint", collector.endpoint]
        command = [sys.executable, "-m", "annotq.cli", "ship", *where, "--flush", "0.5"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: collector.received)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "shipped 1 process, 0 files, 16 batches" in said  # the window
    assert "28 files left in the spool" in said
    assert len(list((tmp_path / "spool").glob("*/0*"))) == 28


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_shipper_is_continued_by_the_next(tmp_path: Path, shipper_process, seed: int) -> None:  # type: ignore[no-untyped-def]
    expected = undisturbed(tmp_path)
    fill(tmp_path / "spool")
    with ScriptedCollector() as collector:
        process = shipper_process("--spool", str(tmp_path / "spool"), "--endpoint", collector.endpoint)
        killed_at = 5 + 11 * seed
        collector.refuse_batch = lambda _: process.kill() or "" if len(collector.received) == killed_at else ""  # type: ignore[func-returns-value]
        assert process.wait(30) == -signal.SIGKILL
        again = shipper_process("--spool", str(tmp_path / "spool"), "--endpoint", collector.endpoint)
        assert again.wait(30) == 0
    assert by_process(collector) == expected


def test_without_a_collector_and_trainers_it_gives_up_and_leaves_the_spool(tmp_path: Path) -> None:
    fill(tmp_path / "spool", ranks=1)
    with ScriptedCollector() as collector:
        collector.close()
        began = time.monotonic()
        summary = ship(tmp_path / "spool", collector, give_up_seconds=1.0)
        assert 1 <= time.monotonic() - began < 5
    assert (summary.gave_up, summary.left) == (True, 14)


def test_a_trainer_alive_keeps_the_shipper_trying(tmp_path: Path) -> None:
    spool = writer(tmp_path / "spool")
    spool.put("snapshot", snapshot())
    with ScriptedCollector() as collector, trainer_holding(spool.folder) as trainer:
        collector.close()
        stop = threading.Event()
        shipper = threading.Thread(
            target=ship, args=(tmp_path / "spool", collector, stop), kwargs={"give_up_seconds": 0.5}
        )
        shipper.start()
        time.sleep(2)
        assert shipper.is_alive()
        collector.open()
        wait_for(lambda: collector.batches)
        trainer.kill()
        shipper.join(20)
    assert not shipper.is_alive()
    assert len(collector.batches) == 3


def annotq(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "annotq.cli", "ship", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_command_ships_a_spool_left_over_from_yesterday(tmp_path: Path) -> None:
    fill(tmp_path / "spool")
    with ScriptedCollector() as collector:
        done = annotq("--spool", str(tmp_path / "spool"), "--endpoint", collector.endpoint, "--once", "-q")
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == "shipped 2 processes, 28 files, 58 batches, 248 rows; 0 refused\n"
        fill(tmp_path / "refused", ranks=1, graphs=1)
        collector.refuse_batch = lambda batch: "no" if batch.kind == pb.KIND_SNAPSHOT else ""
        collector.forget_everything()
        done = annotq("--spool", str(tmp_path / "refused"), "--endpoint", collector.endpoint, "--once", "-q")
        assert done.returncode == 1
        assert done.stderr.endswith("; 1 refused\n")


def test_the_command_says_when_there_is_no_collector(tmp_path: Path) -> None:
    fill(tmp_path / "spool", ranks=1)
    with ScriptedCollector() as collector:
        endpoint = collector.endpoint
    done = annotq("--spool", str(tmp_path / "spool"), "--endpoint", endpoint, "--once", "--give-up", "1")
    assert done.returncode == 4
    assert f"error: The collector at {endpoint} cannot be reached" in done.stderr
    assert done.stderr.splitlines()[-1] == "  Start one with `annotq serve`, or check ANNOTQ_ENDPOINT."
