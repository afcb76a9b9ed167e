"""Batches over gRPC end up in the store as files do: once, in order, acknowledged after the commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from collectors import (
    Collector,
    Feed,
    batch,
    events_table,
    note,
    pieces,
    process,
    register_request,
    small_trace,
    trace_batches,
    trace_info,
)
from jobs import DATA, load, rows
from spools import wait_for

from annotq.agent.annotations import read_annotations
from annotq.agent.batches import ANNOTATION, GRAPH_NODE
from annotq.agent.wire import encode, sequence_of
from annotq.v1 import collector_pb2 as pb

# Everything of a job but the notes of the collector itself; order is not part of what a table says.
TABLES = ("graph", "graph_node", "annotation", "source_file", "trace", "gpu_event", "host_span", "clock")
COUNT = "SELECT count(*) FROM gpu_event"


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    with Collector(tmp_path / "store.duckdb") as started:
        yield started


def test_real_ranks_give_the_same_rows_as_ingest(collector: Collector, tmp_path: Path) -> None:
    for rank in range(2):
        reply = collector.register(process(rank, job="control4", host="vm", pid=0))
        name = f"rank{rank}.annotations.json"
        file = read_annotations(DATA / "control4" / name, rank=rank)
        header = {"path": file.path, "sha256": file.sha256}
        payload = encode([file.rows], ANNOTATION)
        first = batch(reply.process_id, sequence_of(1, 0), pb.KIND_ANNOTATION_FILE, header, payload)
        path = DATA / "control4" / f"rank{rank}.pt.trace.json.gz"
        acks = collector.ship([first, *trace_batches(reply.process_id, path, rank, number=2, rows=1000)])
        assert [ack.error for ack in acks] == [""] * len(acks)
    assert collector.stop() == 0
    ingested = tmp_path / "ingested.duckdb"
    load(ingested, *(DATA / "control4" / f"rank{rank}.annotations.json" for rank in range(2)), job="control4")
    load(ingested, *(DATA / "control4" / f"rank{rank}.pt.trace.json.gz" for rank in range(2)), job="control4")
    for table in TABLES:
        sql = f"SELECT * FROM {table} ORDER BY ALL"
        assert rows(collector.db, sql) == rows(ingested, sql), table


def test_an_acknowledged_batch_survives_sigkill(collector: Collector) -> None:
    reply = collector.register(process())
    assert reply.committed_sequence == 0
    collector.ship([note(reply.process_id, sequence_of(1, 0), "kept")])
    collector.kill()
    assert rows(collector.db, "SELECT note FROM agent_note") == [("kept",)]


def test_the_same_batch_twice_is_one_batch(collector: Collector) -> None:
    process_id = collector.register(process()).process_id
    batches = [note(process_id, sequence_of(number, 0), f"n{number}") for number in (1, 2)]
    acks = collector.ship([*batches, *batches]) + collector.ship(batches)
    assert [(ack.sequence, ack.error) for ack in acks] == [(item.sequence, "") for item in batches] * 3
    assert collector.ask("SELECT note FROM agent_note ORDER BY sequence") == [("n1",), ("n2",)]
    assert collector.register(process()).committed_sequence == batches[1].sequence


def test_a_batch_that_comes_after_a_later_one_is_refused_rather_than_lost(collector: Collector) -> None:
    process_id = collector.register(process()).process_id
    acks = collector.ship([note(process_id, 9, "late"), note(process_id, 5, "early")])
    assert acks[0].error == "" and "sequence 5 after 9" in acks[1].error


def test_a_trace_shows_once_it_is_whole(collector: Collector) -> None:
    process_id = collector.register(process()).process_id
    *begun, last = pieces(process_id, trace_info(10), events_table(10), rows=4)
    collector.ship(begun)
    assert collector.ask(COUNT) == [(10,)]
    assert collector.ask("SELECT count(*) FROM kernels") == [(0,)]
    assert collector.ask("SELECT ranks_seen, traces, gpu_events FROM jobs") == [(0, 0, 0)]
    assert collector.ask("SELECT gpu_events, status FROM coverage") == [(0, "arriving")]
    collector.ship([last])
    assert collector.ask("SELECT count(*) FROM kernels") == [(10,)]
    assert collector.ask("SELECT gpu_events, status FROM coverage") == [(10, "complete")]
    assert collector.ask("SELECT count(*) FROM arriving") == [(0,)]


def test_a_trace_goes_on_after_the_collector_was_killed(collector: Collector) -> None:
    process_id = collector.register(process()).process_id
    batches = list(pieces(process_id, trace_info(10, status="partial"), events_table(10), rows=4))
    collector.ship(batches[:3])
    collector.kill()
    with Collector(collector.db) as second:
        assert second.register(process()).committed_sequence == batches[2].sequence
        second.ship(batches[3:])
        assert second.ask("SELECT gpu_events, status, note FROM coverage") == [(10, "partial", None)]


def test_a_trace_that_lacks_events_says_so(collector: Collector) -> None:
    process_id = collector.register(process()).process_id
    batches = list(pieces(process_id, trace_info(10), events_table(10), rows=4))
    collector.ship([*batches[:2], batches[-1]])
    assert collector.ask("SELECT gpu_events, status, note FROM coverage") == [
        (4, "partial", "Only 4 of 10 GPU events arrived.")
    ]


def test_a_known_trace_is_acknowledged_and_changes_nothing(collector: Collector) -> None:
    process_id = collector.register(process()).process_id
    first = list(pieces(process_id, trace_info(10), events_table(10), number=1))
    again = list(pieces(process_id, trace_info(10), events_table(10), number=2))
    after = list(pieces(process_id, trace_info(3, "b" * 64, window_start_ns=10), events_table(3, 10), number=3))
    assert {ack.error for ack in collector.ship([*first, *again, *after])} == {""}
    assert collector.ask(COUNT) == [(13,)]


def test_another_trace_of_the_same_time_is_refused_as_a_whole(collector: Collector) -> None:
    process_id = collector.register(process()).process_id
    collector.ship(pieces(process_id, trace_info(10), events_table(10), number=1))
    acks = collector.ship(pieces(process_id, trace_info(10, "b" * 64), events_table(10), number=2))
    assert "its window overlaps that of aaaaaaaa.json" in acks[0].error
    assert {ack.error for ack in acks[1:]} == {""}
    assert collector.ask(COUNT) == [(10,)]
    assert collector.ask("SELECT path, status FROM trace ORDER BY path") == [
        ("aaaaaaaa.json", "complete"),
        ("bbbbbbbb.json", "rejected"),
    ]


def test_a_trace_whose_end_never_came_gives_way_to_the_next(collector: Collector) -> None:
    process_id = collector.register(process()).process_id
    *lost, _ = pieces(process_id, trace_info(10), events_table(10), number=1)
    collector.ship(lost)
    collector.ship(pieces(process_id, trace_info(3, "b" * 64), events_table(3), number=2))
    assert collector.ask("SELECT path, status FROM trace") == [("bbbbbbbb.json", "complete")]
    assert collector.ask(COUNT) == [(3,)]


def test_a_trace_that_fails_half_way_is_rejected_with_the_reason(collector: Collector) -> None:
    process_id = collector.register(process()).process_id
    begin, events, *_ = pieces(process_id, trace_info(10), events_table(10), number=1)
    about = {"path": "aaaaaaaa.json", "sha256": "a" * 64, "rank": 0, "reason": "its reader died"}
    rejected = batch(process_id, sequence_of(1, 500), pb.KIND_TRACE_REJECTED, about)
    assert [ack.error for ack in collector.ship([begin, events, rejected])] == ["", "", ""]
    assert collector.ask("SELECT status, gpu_events, note FROM coverage") == [("rejected", 0, "its reader died")]
    assert collector.ask("SELECT count(*) FROM gpu_event") == [(0,)]


def test_what_a_process_learns_of_its_gpu_later_is_kept(collector: Collector) -> None:
    collector.register(process())
    collector.register(process(gpu="NVIDIA H200"))
    collector.register(process())
    assert collector.ask("SELECT gpu FROM agents") == [("NVIDIA H200",)]


def test_the_count_of_traces_given_up_never_falls(collector: Collector) -> None:
    process_id = collector.register(process()).process_id
    for dropped in (3, 0):
        beat = pb.ProcessBeat(process_id=process_id, alive=True, seen_age_ns=0, dropped_traces=dropped)
        collector.stub.Beat(pb.BeatRequest(host="node-a", processes=[beat]))
        wait_for(lambda: collector.ask("SELECT count(*) FROM heartbeat") == [(1,)])
    collector.stop()
    assert rows(collector.db, "SELECT dropped_traces FROM heartbeat") == [(3,)]


def test_a_shipper_that_cuts_differently_begins_an_unfinished_trace_again(collector: Collector) -> None:
    process_id = collector.register(process(), layout="rows 4").process_id
    collector.ship([note(process_id, sequence_of(1, 0), "before")])
    *begun, _, _ = pieces(process_id, trace_info(10), events_table(10), number=2, rows=4)
    collector.ship(begun)
    assert collector.register(process(), layout="rows 4").committed_sequence == begun[-1].sequence
    assert collector.register(process(), layout="rows 5").committed_sequence == sequence_of(1, 0)
    acks = collector.ship(pieces(process_id, trace_info(10), events_table(10), number=2, rows=5))
    assert {ack.error for ack in acks} == {""}
    assert collector.ask("SELECT gpu_events, status FROM coverage") == [(10, "complete")]


def test_a_second_stream_of_a_process_takes_over(collector: Collector) -> None:
    process_id = collector.register(process()).process_id
    first = Feed(collector)
    first.send(note(process_id, 1, "first"))
    assert next(first.acks).sequence == 1
    assert [ack.sequence for ack in collector.ship([note(process_id, 2, "second")])] == [2]
    with pytest.raises(grpc.RpcError) as ended:
        next(first.acks)
    assert ended.value.code() == grpc.StatusCode.ABORTED
    assert collector.ask("SELECT note FROM agent_note ORDER BY sequence") == [("first",), ("second",)]


def test_many_processes_share_a_stream(collector: Collector, tmp_path: Path) -> None:
    batches = []
    for rank in range(8):
        process_id = collector.register(process(rank)).process_id
        batches.append(list(trace_batches(process_id, small_trace(tmp_path, rank), rank)))
    mixed = [item for together in zip(*batches, strict=True) for item in together]
    acks = collector.ship(mixed)
    assert [(ack.process_id, ack.sequence, ack.error) for ack in acks] == [
        (item.process_id, item.sequence, "") for item in mixed
    ]
    assert collector.ask("SELECT ranks_seen, gpu_events FROM jobs") == [(8, 80)]


def test_two_attempts_of_a_job_stay_apart(collector: Collector) -> None:
    for attempt in (0, 1):
        process_id = collector.register(process(attempt=attempt)).process_id
        collector.ship(pieces(process_id, trace_info(10 + attempt), events_table(10 + attempt)))
    assert collector.ask("SELECT attempt, gpu_events FROM jobs ORDER BY attempt") == [(0, 10), (1, 11)]


def test_what_only_a_recorder_knows_is_kept(collector: Collector) -> None:
    info = process(
        world_size=4,
        local_rank=0,
        gpu="H200",
        versions={"torch": "2.14"},
        coordinates={"dp": 1},
        annotation_ids="cupti",
    )
    process_id = collector.register(info).process_id
    snapshot = {"graph_id": 7, "generation": 2, "fingerprint": "agents-own", "time_ns": 5}
    annotations = pa.RecordBatch.from_pylist(
        [{"graph_id": 7, "node_index": 0, "region": "mlp", "phase": "forward", "attributes": "{}"}], ANNOTATION
    )
    nodes = pa.RecordBatch.from_pylist([{"graph_id": 7, "node_index": 0, "kind": "kernel", "name": "gemm"}], GRAPH_NODE)
    acks = collector.ship(
        [
            batch(process_id, 1, pb.KIND_SNAPSHOT, snapshot, encode([nodes], GRAPH_NODE)),
            batch(process_id, 2, pb.KIND_SNAPSHOT_ANNOTATIONS, {"graph_id": 7}, encode([annotations], ANNOTATION)),
            batch(process_id, 3, pb.KIND_GRAPHS_DESTROYED, {"graph_ids": [7, 8], "time_ns": 9}),
            note(process_id, 4, "one trace was given up for space"),
            batch(process_id, 5, pb.KIND_PROCESS_END, {"time_ns": 11, "how": "stopped"}),
        ]
    )
    assert {ack.error for ack in acks} == {""}
    assert collector.ask(
        """SELECT world_size, local_rank, gpu, versions, coordinates, annotation_source, process_key, end_ns, ended,
               annotation_ids FROM process"""
    ) == [(4, 0, "H200", '{"torch": "2.14"}', '{"dp": 1}', "agent", info.key, 11, "stopped", "cupti")]
    assert collector.ask(
        "SELECT fingerprint, generation, reported, nodes_complete, valid_from_ns, valid_to_ns FROM graph"
    ) == [("agents-own", 2, True, True, 5, 9)]
    assert collector.ask("SELECT region, note FROM annotation, agent_note") == [
        ("mlp", "one trace was given up for space")
    ]


def test_another_process_under_the_same_rank_is_refused_with_the_cure(collector: Collector) -> None:
    collector.register(process(3))
    with pytest.raises(grpc.RpcError) as refused:
        collector.register(process(3, host="node-b", pid=7))
    assert refused.value.code() == grpc.StatusCode.ALREADY_EXISTS
    text = refused.value.details()
    assert "process 7 on node-b" in text and "process 103 on node-a" in text and "ANNOTQ_JOB" in text


def test_a_process_known_from_files_is_taken_over_when_it_agrees(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    for rank in (0, 1):
        load(path, small_trace(tmp_path / str(rank), rank), job="live")
    with Collector(path) as collector:
        reply = collector.register(process(0, pid=77))
        assert collector.ask("SELECT process_key FROM process WHERE rank = 0") == [(process(0, pid=77).key,)]
        again = small_trace(tmp_path / "0", 0)
        assert {ack.error for ack in collector.ship(trace_batches(reply.process_id, again, 0))} == {""}
        assert collector.ask("SELECT count(*) FROM kernels WHERE rank = 0") == [(10,)]


def test_beats_and_clock_samples_are_kept(collector: Collector) -> None:
    process_id = collector.register(process()).process_id
    pong = collector.stub.SyncClock(pb.Ping(sent_ns=5))
    assert 0 <= pong.answered_ns - pong.received_ns < 1_000_000_000
    sample = pb.ClockSample(sent_ns=5, received_ns=pong.received_ns, answered_ns=pong.answered_ns, returned_ns=9)
    beat = pb.ProcessBeat(process_id=process_id, alive=True, step=4, step_ns=8, seen_age_ns=1000, spooled_bytes=3)
    unknown = pb.ProcessBeat(process_id=1, alive=True)
    mad = pb.ClockSample(sent_ns=-(1 << 63), received_ns=5, answered_ns=4, returned_ns=(1 << 63) - 1)
    collector.stub.Beat(pb.BeatRequest(host="node-a", processes=[beat, unknown], samples=[sample, mad]))
    collector.stop()
    assert rows(
        collector.db, "SELECT process_id, alive, step, step_ns, spooled_bytes, beat_ns - seen_ns FROM heartbeat"
    ) == [(process_id, True, 4, 8, 3, 1000)]
    assert rows(collector.db, "SELECT job, attempt, host, sent_ns, returned_ns FROM clock_sample") == [
        ("live", 0, "node-a", 5, 9)
    ]


def test_another_version_of_the_batches_is_a_failed_precondition(collector: Collector) -> None:
    request = register_request(process())
    request.schema_version = 99
    with pytest.raises(grpc.RpcError) as refused:
        collector.stub.Register(request)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "install the same annotq" in refused.value.details()


@pytest.mark.parametrize(
    "change", [{"job": ""}, {"rank": -1}, {"world_size": 1 << 40}, {"key": "0" * 16}, {"versions_json": "[1]"}]
)
def test_a_process_that_makes_no_sense_is_an_invalid_argument(collector: Collector, change: dict[str, object]) -> None:
    request = register_request(process())
    for name, value in change.items():
        setattr(request.process, name, value)
    with pytest.raises(grpc.RpcError) as refused:
        collector.stub.Register(request)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
