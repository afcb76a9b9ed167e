"""From spool to collector: what is sent, in which order, and what stays behind."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from scripted_collector import ScriptedCollector
from spools import START_NS, add_trace, holding, identity, snapshot, trainer_holding, wait_for, writer
from traces import kernel, launch, write_trace

from annotq.agent.channel import Access
from annotq.agent.ship import run_shipper
from annotq.agent.ship_options import ShipOptions, Summary
from annotq.v1 import collector_pb2 as pb


def ship(spool: Path, collector: ScriptedCollector, **options: object) -> Summary:
    return run_shipper(ShipOptions(spool, Access(collector.endpoint), seed=1, **options), threading.Event())  # type: ignore[arg-type]


def kinds(batches: list[pb.Batch]) -> list[str]:
    return [pb.Kind.Name(batch.kind).removeprefix("KIND_") for batch in batches]


def test_a_process_arrives_file_by_file_and_its_folder_goes(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.json", [launch(5, correlation=1), kernel("gemm", 10, correlation=1)], rank=3)
    spool = writer(tmp_path / "spool", rank=3)
    spool.put("snapshot", snapshot())
    add_trace(spool, trace)
    spool.put("destroyed", {"graph_ids": [2], "time_ns": 7})
    spool.note("a sentence")
    spool.close(99, "stopped")
    with ScriptedCollector() as collector:
        summary = ship(tmp_path / "spool", collector)
    assert kinds(collector.batches) == [
        "SNAPSHOT", "SNAPSHOT_ANNOTATIONS", "TRACE_BEGIN", "GPU_EVENTS", "HOST_SPANS", "TRACE_END",
        "GRAPHS_DESTROYED", "NOTE", "PROCESS_END",
    ]  # fmt: skip
    events = collector.batches[3]
    assert pa.ipc.open_stream(events.payload).read_all().column("name").to_pylist() == ["gemm"]
    assert json.loads(collector.batches[-1].header) == {"time_ns": 99, "how": "stopped"}
    sequences = [batch.sequence for batch in collector.batches]
    assert sequences == sorted(set(sequences))
    assert (summary.processes, summary.files, summary.batches, summary.refused, summary.left) == (1, 5, 9, 0, 0)
    assert [path.name for path in (tmp_path / "spool").iterdir()] == ["shipper.lock"]


def test_a_refused_file_is_set_aside_and_the_others_go_on(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    for graph_id in (2, 3, 4):
        spool.put("snapshot", snapshot(graph_id))
    spool.close(99, "stopped")
    with ScriptedCollector() as collector:
        collector.refuse_batch = lambda batch: "graph 3 is not wanted" if b'"graph_id": 3' in batch.header else ""
        summary = ship(tmp_path, collector)
    assert [json.loads(batch.header).get("graph_id") for batch in collector.batches] == [2, 2, 4, 4, None]
    assert (summary.files, summary.refused, summary.left) == (4, 1, 0)
    refused = spool.folder / "refused"
    assert (refused / "00000002.snapshot.json.reason.txt").read_text() == "graph 3 is not wanted\n"
    assert json.loads((refused / "00000002.snapshot.json").read_text())["exec_graph_id"] == 3
    with ScriptedCollector() as collector:
        again = ship(tmp_path, collector, once=True)
    assert (again.processes, collector.registered) == (0, [])


def test_a_refused_process_is_marked_and_the_others_go_on(tmp_path: Path) -> None:
    for rank in (0, 1):
        writer(tmp_path, rank).close(99, "stopped")
    with ScriptedCollector() as collector:
        taken = (grpc.StatusCode.ALREADY_EXISTS, "rank 0 is taken")
        collector.refuse_process = lambda request: taken if request.process.rank == 0 else None
        summary = ship(tmp_path, collector)
        again = ship(tmp_path, collector, once=True)
    (left,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert (left / "refused").read_text() == f"rank 0 is taken\nTo load it: annotq ingest {left} --job OTHER\n"
    assert (summary.processes, summary.refused) == (1, 1)
    assert (again.processes, again.refused) == (0, 1)
    assert [request.process.rank for request in collector.registered] == [1]


def test_a_collector_of_another_version_leaves_the_spool_as_it_is(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    spool.close(99, "stopped")
    with ScriptedCollector() as collector:
        collector.refuse_process = lambda _: (grpc.StatusCode.FAILED_PRECONDITION, "version 2 is spoken here")
        summary = ship(tmp_path, collector, once=True)
        assert (summary.refused, summary.left) == (1, 1)
        collector.refuse_process = lambda _: None
        assert ship(tmp_path, collector, once=True).left == 0


def test_files_that_are_not_what_they_say_are_reported_and_set_aside(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    bad = spool.put("snapshot", {"format": 1})
    (tmp_path / "t.json").write_text("no trace")
    add_trace(spool, tmp_path / "t.json")
    (spool.folder / ".tmp-7-snapshot.json").write_text("half")
    (spool.folder / "README").write_text("unknown")
    spool.close(99, "stopped")
    with ScriptedCollector() as collector:
        summary = ship(tmp_path, collector)
    assert kinds(collector.batches) == ["NOTE", "TRACE_REJECTED", "PROCESS_END"]
    assert f"{bad} is no graph snapshot" in json.loads(collector.batches[0].header)["text"]
    assert "is not a trace" in json.loads(collector.batches[1].header)["reason"]
    assert sorted(path.name for path in (spool.folder / "bad").glob("*.json")) == [
        "00000001.snapshot.json",
        "00000002.trace.json",
    ]
    assert (summary.files, summary.refused) == (3, 2)


def test_a_folder_without_identity_is_left_alone(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    spool.put("snapshot", snapshot())
    (spool.folder / "process.json").write_text("{")
    with ScriptedCollector() as collector:
        summary = ship(tmp_path, collector, once=True)
    assert "process.json cannot be read" in summary.reasons[0]
    assert (summary.refused, collector.batches) == (1, [])
    assert (spool.folder / "00000001.snapshot.json").exists()


def test_the_end_of_a_trainer_that_was_killed_is_told_for_it(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    spool.put("snapshot", snapshot())
    spool.beat.write(17, 5_000, START_NS + 5)
    with ScriptedCollector() as collector, trainer_holding(spool.folder) as trainer:
        shipper = threading.Thread(target=ship, args=(tmp_path, collector))
        shipper.start()
        wait_for(lambda: len(collector.batches) == 2 and collector.beats)
        assert shipper.is_alive()
        trainer.kill()
        shipper.join(20)
        assert not shipper.is_alive()
    assert kinds(collector.batches) == ["SNAPSHOT", "SNAPSHOT_ANNOTATIONS", "PROCESS_END"]
    assert json.loads(collector.batches[-1].header)["how"] == "gone"
    first, last = collector.beats[0].processes[0], collector.beats[-1].processes[0]
    assert (first.alive, first.step, first.step_ns) == (True, 17, 5_000)
    assert not last.alive
    assert not spool.folder.exists()


def test_what_a_process_learns_later_is_registered_too(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    with ScriptedCollector() as collector, trainer_holding(spool.folder):
        shipper = threading.Thread(target=ship, args=(tmp_path, collector))
        shipper.start()
        wait_for(lambda: collector.registered)
        spool.write_process(identity(gpu="NVIDIA H200"))
        wait_for(lambda: len(collector.registered) == 2)
        spool.close(99, "stopped")
        wait_for(lambda: collector.batches)
    shipper.join(20)
    assert [request.process.gpu for request in collector.registered] == ["", "NVIDIA H200"]


def test_a_second_shipper_has_nothing_to_do(tmp_path: Path) -> None:
    writer(tmp_path).close(99, "stopped")
    code = (
        "import sys; from pathlib import Path; from annotq.agent.file_locks import hold;"
        "hold(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    )
    with holding(code, tmp_path / "shipper.lock") as other, ScriptedCollector() as collector:
        summary = ship(tmp_path, collector)
    assert summary.held_for is None  # the other one has not said
    assert summary.sentence() == f"this spool is being shipped by process {other.pid}; nothing to do here"
    assert collector.registered == []


def test_beats_carry_clock_samples_of_the_trainers_host(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    with ScriptedCollector(clock=lambda: 1_000) as collector, trainer_holding(spool.folder) as trainer:
        options = ShipOptions(tmp_path, Access(collector.endpoint), host="node-a", seed=1)
        shipper = threading.Thread(target=run_shipper, args=(options, threading.Event(), lambda: 50))
        shipper.start()
        wait_for(lambda: collector.beats)
        trainer.kill()
        shipper.join(20)
    samples = collector.beats[0].samples
    assert (collector.beats[0].host, len(samples)) == ("node-a", 8)
    assert {(s.sent_ns, s.received_ns, s.answered_ns, s.returned_ns) for s in samples} == {(50, 1_000, 1_000, 50)}


def test_a_disk_that_fails_for_a_moment_only_delays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a trace takes room for a temporary file; without it the process is shipped a little later."""
    monkeypatch.setattr("annotq.agent.shipper._TRY_DISK_SECONDS", 0.5)
    trace = write_trace(tmp_path / "t.json", [launch(5, correlation=1), kernel("gemm", 10, correlation=1)], rank=None)
    spool = writer(tmp_path / "spool")
    spool.put("snapshot", snapshot())
    add_trace(spool, trace)
    spool.close(99, "stopped")
    monkeypatch.setattr("annotq.agent.reader.spill.MEMORY_BYTES", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "away"))
    with ScriptedCollector() as collector:
        shipper = threading.Thread(target=ship, args=(tmp_path / "spool", collector))
        shipper.start()
        wait_for(lambda: len(collector.registered) > 1)
        (tmp_path / "away").mkdir()
        shipper.join(20)
    assert not shipper.is_alive()
    assert kinds(collector.batches)[2:4] == ["TRACE_BEGIN", "GPU_EVENTS"]
    assert kinds(collector.batches)[-1] == "PROCESS_END"
