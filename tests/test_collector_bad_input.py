"""Bad batches are answered, counted, kept aside and never tried again; what comes with and after them goes in."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from collectors import Collector, Feed, batch, connect, events_table, note, pieces, process, trace_info

from annotq.agent.batches import ANNOTATION, GPU_EVENT, GRAPH_NODE
from annotq.agent.wire import encode
from annotq.collector.quarantine import Quarantine
from annotq.v1 import collector_pb2 as pb

RANKS = count()


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    with Collector(tmp_path_factory.mktemp("collector") / "store.duckdb") as started:
        yield started


@pytest.fixture
def process_id(collector: Collector) -> int:
    """A process of its own for each test."""
    return collector.register(process(next(RANKS))).process_id


def column(name: str, values: pa.Array[Any]) -> bytes:
    """Three events with one column replaced."""
    table = events_table(3)
    position = table.schema.get_field_index(name)
    table = table.set_column(position, pa.field(name, values.type, GPU_EVENT.field(name).nullable), values)
    return encode(table, table.schema)


def out_of_range() -> bytes:
    """A dictionary index without an entry, which Arrow only finds when asked to look at every value."""
    names = pa.DictionaryArray.from_arrays(pa.array([0, 7, 0], pa.int32()), pa.array(["gemm"]), safe=False)
    with (sink := pa.BufferOutputStream()) as out, pa.ipc.new_stream(out, GPU_EVENT) as writer:
        table = events_table(3)
        writer.write_table(table.set_column(3, GPU_EVENT.field(3), names))
    return sink.getvalue().to_pybytes()


def bomb() -> bytes:
    """Three terabytes of zeros, in a few hundred bytes: every buffer claims 100 GB."""
    payload = bytearray(encode(events_table(10_000), GPU_EVENT))
    claimed = (100 << 30).to_bytes(8, "little")
    position = payload.find((80_000).to_bytes(8, "little") + b"\x28\xb5\x2f\xfd")  # a length, then zstd's magic number
    assert position > 0
    payload[position : position + 8] = claimed
    return bytes(payload)


BAD_PAYLOADS = {
    "payload, no Arrow": lambda: b"not arrow at all",
    "payload, empty": lambda: b"",
    "payload, cut": lambda: encode(events_table(1000), GPU_EVENT)[:-100],
    "payload, index out of range": out_of_range,
    "schema, other kind": lambda: encode([pa.RecordBatch.from_pylist([], GRAPH_NODE)], GRAPH_NODE),
    "schema, other type": lambda: column("stream", pa.array([1, 2, 3], pa.int32())),
    "null": lambda: column("start_ns", pa.array([1, None, 3])),
    "value, negative": lambda: column("start_ns", pa.array([1, -2, 3])),
    "value, endless": lambda: column("duration_ns", pa.array([1, 2, 1 << 62])),
    "value, step": lambda: column("step", pa.array([1, None, 1 << 62])),
    "size, rows": lambda: encode(events_table(100_001), GPU_EVENT),
    "size, decompressed": bomb,
    # A null inside the dictionary is found by the database only, in the middle of the transaction.
    "database": lambda: column(
        "name", pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), pa.array(["k", None]))
    ),
}


@pytest.mark.parametrize("what", BAD_PAYLOADS)
def test_bad_rows_are_refused_and_the_rest_goes_in(collector: Collector, process_id: int, what: str) -> None:
    reason = what.partition(",")[0]
    before = dict(collector.status().rejected)
    good = list(pieces(process_id, trace_info(10, rank=_rank(collector, process_id)), events_table(10), rows=5))
    bad = batch(process_id, good[1].sequence + 1, pb.KIND_GPU_EVENTS, payload=BAD_PAYLOADS[what]())
    for item in good[2:]:
        item.sequence += 1
    acks = collector.ship([*good[:2], bad, *good[2:]])
    assert [bool(ack.error) for ack in acks] == [False, False, True, False, False]
    assert "gpu_events" in acks[2].error and str(bad.sequence) in acks[2].error
    assert collector.ask(f"SELECT kind, reason, detail <> '' FROM rejected_batch WHERE process_id = {process_id}") == [
        ("gpu_events", reason, True)
    ]
    assert collector.status().rejected[reason] == before.get(reason, 0) + 1
    assert collector.ask(f"SELECT count(*) FROM gpu_event WHERE process_id = {process_id}") == [(10,)]
    kept = list(Quarantine(collector.db).folder.glob(f"*-{process_id}-{bad.sequence}-{reason}.batch"))
    assert [pb.Batch.FromString(file.read_bytes()) for file in kept] == [bad]
    # It is done with: a second delivery is acknowledged like any other.
    assert [ack.error for ack in collector.ship([bad])] == [""]


BAD_HEADERS: dict[str, tuple[int, Any]] = {
    "no JSON": (pb.KIND_NOTE, None),
    "a field is missing": (pb.KIND_GRAPHS_DESTROYED, {"graph_ids": [1]}),
    "another type": (pb.KIND_NOTE, {"text": 7}),
    "more than 64 bits": (pb.KIND_GRAPHS_DESTROYED, {"graph_ids": [1 << 63], "time_ns": 1}),
    "an end of no kind": (pb.KIND_PROCESS_END, {"time_ns": 1, "how": "bored"}),
    "another rank": (pb.KIND_TRACE_BEGIN, asdict(trace_info(1, rank=9999))),
    "an encoding of no kind": (pb.KIND_TRACE_BEGIN, asdict(trace_info(1, encoding="rot13"))),
    "a window past all time": (pb.KIND_TRACE_BEGIN, asdict(trace_info(1, window_start_ns=1 << 62))),
    "a world that is too large": (pb.KIND_TRACE_BEGIN, asdict(trace_info(1, world_size=1 << 40))),
    "process groups that are no JSON": (pb.KIND_TRACE_BEGIN, asdict(trace_info(1, process_groups="["))),
}


@pytest.mark.parametrize("what", BAD_HEADERS)
def test_bad_headers_are_refused(collector: Collector, process_id: int, what: str) -> None:
    kind, header = BAD_HEADERS[what]
    if what != "another rank" and kind == pb.KIND_TRACE_BEGIN:
        header = {**header, "rank": _rank(collector, process_id)}
    acks = collector.ship([batch(process_id, 1, kind, header), note(process_id, 2, "after")])
    assert acks[0].error and not acks[1].error
    assert collector.ask(f"SELECT reason FROM rejected_batch WHERE process_id = {process_id}") == [("header",)]
    assert collector.ask(f"SELECT note FROM agent_note WHERE process_id = {process_id}") == [("after",)]


def test_unknown_kinds_versions_and_pieces_without_a_trace_are_refused(collector: Collector, process_id: int) -> None:
    unknown = batch(process_id, 1, 99)
    older = note(process_id, 2, "x")
    older.schema_version = 0
    stray = batch(process_id, 3, pb.KIND_GPU_EVENTS, payload=encode(events_table(1), GPU_EVENT))
    errors = [ack.error for ack in collector.ship([unknown, older, stray])]
    assert "99 is no kind" in errors[0] and "version 0" in errors[1] and "no trace: none has begun" in errors[2]


def test_annotations_that_contradict_others_are_refused(collector: Collector, process_id: int) -> None:
    def file(sequence: int, region: str) -> pb.Batch:
        row = {
            "graph_id": 1,
            "node_index": 0,
            "region": region,
            "phase": "forward",
            "attributes": f'{{"name": "{region}"}}',
        }
        header = {"path": f"{region}.json", "sha256": region}
        payload = encode([pa.RecordBatch.from_pylist([row], ANNOTATION)], ANNOTATION)
        return batch(process_id, sequence, pb.KIND_ANNOTATION_FILE, header, payload)

    acks = collector.ship([file(1, "attn"), file(2, "mlp")])
    assert not acks[0].error and "1 of 1 nodes are annotated differently than in attn.json" in acks[1].error
    assert collector.ask(f"SELECT region FROM annotation WHERE process_id = {process_id}") == [("attn",)]


def test_a_database_error_in_a_group_does_not_spoil_the_others(collector: Collector) -> None:
    feeds, ids = [], [collector.register(process(next(RANKS))).process_id for _ in range(6)]
    for number, process_id in enumerate(ids):
        info = trace_info(3, rank=_rank(collector, process_id))
        batches = list(pieces(process_id, info, events_table(3)))
        if number % 2:
            batches[1].payload = BAD_PAYLOADS["database"]()
        feeds.append(feed := Feed(collector))
        feed.send(*batches)
        feed.close()
    errors = [[bool(ack.error) for ack in feed.acks] for feed in feeds]
    assert errors == [[False, bool(number % 2), False] for number in range(6)]
    listed = ", ".join(map(str, ids))
    counts = f"SELECT process_id, gpu_events, status FROM trace WHERE process_id IN ({listed})"
    assert set(collector.ask(counts)) == {
        (process_id, 0, "partial") if number % 2 else (process_id, 3, "complete")
        for number, process_id in enumerate(ids)
    }


@pytest.mark.parametrize("seed", range(3))
def test_damaged_bytes_never_end_the_collector(collector: Collector, process_id: int, seed: int) -> None:
    draw = random.Random(seed)
    begin, whole, _ = pieces(process_id, trace_info(500, rank=_rank(collector, process_id)), events_table(500))
    damaged = []
    for sequence in range(2, 60):
        payload = bytearray(whole.payload)
        for _ in range(draw.randint(1, 6)):
            payload[draw.randrange(len(payload))] = draw.randrange(256)
        damaged.append(batch(process_id, begin.sequence + sequence, pb.KIND_GPU_EVENTS, payload=bytes(payload)))
    acks = collector.ship([begin, *damaged])
    assert len(acks) == 59
    assert sum(bool(ack.error) for ack in acks) > 20
    assert collector.process.poll() is None
    assert collector.ask("SELECT count(*) >= 0 FROM kernels") == [(True,)]


def test_a_stream_of_an_unregistered_process_is_ended(collector: Collector) -> None:
    with pytest.raises(grpc.RpcError) as ended:
        collector.ship([note(12345, 1, "x")])
    assert ended.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "Register comes first" in ended.value.details()


def test_a_message_of_100_mb_is_refused_by_its_size(collector: Collector, process_id: int) -> None:
    with pytest.raises(grpc.RpcError) as ended:
        collector.ship([batch(process_id, 1, pb.KIND_NOTE, payload=b"x" * 100_000_000)])
    assert ended.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert collector.ship([note(process_id, 1, "fine")])[0].error == ""


def test_bytes_that_are_no_message_end_their_call_only(collector: Collector) -> None:
    call = connect(collector.address).unary_unary("/annotq.v1.Collector/Register")
    with pytest.raises(grpc.RpcError):
        call(b"\xff\xff\xff\xff", timeout=10)
    assert collector.status().version


def test_the_quarantine_keeps_the_newest(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path / "store.duckdb", limit_bytes=2500)
    for number in range(5):
        quarantine.keep(note(1, number, "x" * 1000), "header", 1_790_000_000_000_000_000 + number)
    names = sorted(file.name for file in quarantine.folder.iterdir())
    assert [name.split("-")[2] for name in names] == ["3", "4"]


def _rank(collector: Collector, process_id: int) -> int:
    ((rank,),) = collector.ask(f"SELECT rank FROM process WHERE process_id = {process_id}")
    return int(rank)
