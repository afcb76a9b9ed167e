"""What the collector does when things go wrong: killed, no space, too much at once, told to stop."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from collectors import Collector, Feed, batch, events_table, noisy_table, note, pieces, process, trace_info
from grpc_health.v1 import health_pb2, health_pb2_grpc
from jobs import rows

from annotq.agent.wire import sequence_of
from annotq.cli.remote_door import RemoteDoor
from annotq.cli.status_sql import status_statement
from annotq.v1 import collector_pb2 as pb

SECOND = 1_000_000_000


@pytest.mark.parametrize("seed", range(4))
def test_sigkill_during_commits_loses_nothing_acknowledged_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    cut = draw.choice([300, 700, 2000])
    with Collector(tmp_path / "store.duckdb") as collector:
        process_id = collector.register(process()).process_id
        batches = [item for number in range(1, 31) for item in _trace(process_id, number, 2000, cut)]
        acknowledged = 0
        killer = threading.Timer(draw.uniform(0.05, 0.6), collector.kill)
        killer.start()
        try:
            for ack in collector.stub.Ship(iter(batches), timeout=20):
                assert ack.error == ""
                acknowledged = ack.sequence
        except grpc.RpcError:
            pass
        killer.join()
    with Collector(collector.db) as again:
        committed = again.register(process()).committed_sequence
        assert committed >= acknowledged
        logged = sum(item.sequence <= committed for item in batches)
        assert again.ask("SELECT count(*), coalesce(max(sequence), 0) FROM batch_log") == [(logged, committed)]
        rest = [item for item in batches if item.sequence > committed]
        assert {ack.error for ack in again.ship(rest)} <= {""}
        assert again.ask("SELECT count(*), count(DISTINCT start_ns) FROM kernels") == [(60_000, 60_000)]
        assert again.ask("SELECT status, count(*) FROM coverage GROUP BY status") == [("complete", 30)]


class LimitedFiles:
    """No file of the collector may grow: what a quota does, and nobody needs to be root for it."""

    def __init__(self, collector: Collector) -> None:
        self._pid = collector.process.pid
        self._hard = resource.prlimit(self._pid, resource.RLIMIT_FSIZE)[1]

    def fill(self) -> None:
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (1, self._hard))

    def free(self) -> None:
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (self._hard, self._hard))


class SmallDisk:
    """A real file system of 40 MB, with a file that takes all of it but 3 MB."""

    def __init__(self, collector: Collector) -> None:
        self._ballast = collector.db.with_name("ballast")

    def fill(self) -> None:
        self._ballast.write_bytes(b"x" * (37 << 20))

    def free(self) -> None:
        self._ballast.unlink()


@pytest.fixture(params=[LimitedFiles, SmallDisk])
def full_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, type]]:
    """A folder, and a way to leave no space in it."""
    if request.param is LimitedFiles:
        yield tmp_path, LimitedFiles
        return
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(tmp_path)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a file system of its own needs root: {mounted.stderr.strip()}")
    yield tmp_path, SmallDisk
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_full_disk_is_waited_out_and_loses_nothing(full_disk: tuple[Path, type]) -> None:
    folder, kind = full_disk
    with Collector(folder / "store.duckdb") as collector:
        process_id = collector.register(process()).process_id
        collector.ship([note(process_id, 1, "before")])
        disk = kind(collector)
        disk.fill()
        feed = Feed(collector, timeout=60)
        wanted = [item for number in (2, 3, 4) for item in _noise(process_id, number)]
        feed.send(*wanted)
        _until(lambda: bool(collector.status().problem))
        assert "Could not write file" in collector.status().problem
        assert collector.status().queued_batches > 0
        assert _health(collector) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert collector.ask("SELECT note FROM agent_note") == [("before",)]
        disk.free()
        assert {next(feed.acks).error for _ in wanted} == {""}
        _until(lambda: not collector.status().problem)
        assert _health(collector) == health_pb2.HealthCheckResponse.SERVING
        # A failed write must leave no torn record in the write-ahead log, before what is committed after it.
        assert [ack.error for ack in collector.ship([note(process_id, sequence_of(9, 0), "after")])] == [""]
        collector.kill()
    assert rows(collector.db, "SELECT status, count(*) FROM trace GROUP BY status") == [("complete", 3)]
    assert rows(collector.db, "SELECT count(*), count(DISTINCT start_ns) FROM gpu_event") == [(60_000, 60_000)]
    assert rows(collector.db, "SELECT note FROM agent_note ORDER BY sequence") == [("before",), ("after",)]


def test_a_writer_that_cannot_keep_up_holds_the_senders_back(tmp_path: Path) -> None:
    limit = 4 << 20
    with Collector(tmp_path / "store.duckdb", "--queue-bytes", str(limit)) as collector:
        ids = [collector.register(process(rank)).process_id for rank in range(8)]
        disk = LimitedFiles(collector)
        disk.fill()
        before = _resident_bytes(collector)
        feeds = [Feed(collector, timeout=60) for _ in ids]
        wanted = 0
        for process_id, feed in zip(ids, feeds, strict=True):
            # 40 MB in all, ten times what the queue takes.
            batches = [note(process_id, number, "x" * 500_000) for number in range(1, 11)]
            feed.send(*batches)
            wanted += len(batches)
        _until(lambda: collector.status().queued_bytes >= limit)
        time.sleep(1)
        # At the limit every stream may have one batch under way.
        assert collector.status().queued_bytes <= limit + len(ids) * 510_000
        assert _resident_bytes(collector) - before < 60 << 20
        disk.free()
        for feed in feeds:
            assert [next(feed.acks).error for _ in range(10)] == [""] * 10
        assert collector.ask("SELECT count(*) FROM batch_log") == [(wanted,)]


def test_streams_that_overload_the_collector_are_told_to_come_back(tmp_path: Path) -> None:
    with Collector(tmp_path / "store.duckdb", "--queue-bytes", str(1 << 20)) as collector:
        ids = [collector.register(process(rank)).process_id for rank in range(8)]
        disk = LimitedFiles(collector)
        disk.fill()
        feeds = [Feed(collector, timeout=60) for _ in ids]
        time.sleep(0.3)
        for process_id, feed in zip(ids, feeds, strict=True):
            feed.send(note(process_id, 1, "x" * 1_000_000))
            feed.close()
        _until(lambda: collector.status().queued_bytes >= 2 << 20)
        time.sleep(0.5)
        assert collector.status().queued_bytes < 4 << 20
        disk.free()
        ended = []
        for feed in feeds:
            try:
                ended.append([ack.error for ack in feed.acks])
            except grpc.RpcError as error:
                ended.append(error.code())
        assert ended.count([""]) >= 2 and ended.count(grpc.StatusCode.RESOURCE_EXHAUSTED) >= 4
        assert len(ended) == ended.count([""]) + ended.count(grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert {ack.error for process_id in ids for ack in collector.ship([note(process_id, 1, "again")])} == {""}
        assert collector.ask("SELECT count(*) FROM agent_note") == [(8,)]


def test_sigterm_finishes_what_was_sent_and_leaves_one_file(tmp_path: Path) -> None:
    with Collector(tmp_path / "store.duckdb") as collector:
        process_id = collector.register(process()).process_id
        feed = Feed(collector)
        batches = [item for number in range(1, 40) for item in _trace(process_id, number, 2000, 500)]
        feed.send(*batches)
        received = [next(feed.acks).sequence]
        assert collector.stop() == 0
        with pytest.raises(grpc.RpcError) as ended:
            received.extend(ack.sequence for ack in feed.acks)
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
    assert not collector.db.with_name("store.duckdb.wal").exists()
    # Exactly what was acknowledged is in the store: nothing was taken in and then forgotten to be acknowledged.
    assert rows(collector.db, "SELECT sequence FROM batch_log ORDER BY sequence") == [(number,) for number in received]


def test_sigterm_ends_even_while_a_question_and_an_idle_stream_are_open(tmp_path: Path) -> None:
    with Collector(tmp_path / "store.duckdb") as collector:
        process_id = collector.register(process()).process_id
        feed = Feed(collector)
        feed.send(note(process_id, 1, "x"))
        next(feed.acks)
        collector.stub.Query(pb.QueryRequest(sql="SELECT count(*) FROM range(1000000000000)", seconds=60))
        time.sleep(0.3)
        started = time.monotonic()
        assert collector.stop() == 0
        assert time.monotonic() - started < 10


def test_the_port_of_another_collector_is_not_shared(tmp_path: Path) -> None:
    with (
        Collector(tmp_path / "one.duckdb") as first,
        pytest.raises(RuntimeError, match="cannot listen on"),
        Collector(tmp_path / "two.duckdb", "--listen", first.address),
    ):
        pass


def test_the_store_of_another_collector_is_not_shared(tmp_path: Path) -> None:
    with (
        Collector(tmp_path / "store.duckdb") as first,
        pytest.raises(RuntimeError, match=rf"is open in another process \(PID {first.process.pid}\)"),
        Collector(first.db),
    ):
        pass


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_nothing_is_acknowledged_for_a_store_file_that_is_gone(tmp_path: Path, replaced: bool) -> None:
    with Collector(tmp_path / "store.duckdb") as collector:
        process_id = collector.register(process()).process_id
        assert [ack.error for ack in collector.ship([note(process_id, 1, "before")])] == [""]
        aside = collector.db.rename(tmp_path / "aside.duckdb")
        if replaced:
            collector.db.write_bytes(b"something else")
        feed = Feed(collector, timeout=60)
        feed.send(note(process_id, 2, "meanwhile"))
        _until(lambda: bool(collector.status().problem))
        assert f"{collector.db} was {'replaced' if replaced else 'removed'}" in collector.status().problem
        assert _health(collector) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert collector.ask("SELECT note FROM agent_note") == [("before",)]
        aside.rename(collector.db)
        assert next(feed.acks).error == ""
        _until(lambda: not collector.status().problem)
        assert _health(collector) == health_pb2.HealthCheckResponse.SERVING
        collector.db.unlink()
        feed.send(note(process_id, 3, "never"))
        started = time.monotonic()
        assert collector.stop() == 1
        assert time.monotonic() - started < 15
        with pytest.raises(grpc.RpcError):
            next(feed.acks)


def test_an_idle_collector_whose_store_file_is_gone_ends_with_an_error(tmp_path: Path) -> None:
    with Collector(tmp_path / "store.duckdb") as collector:
        collector.db.unlink()
        assert collector.stop() == 1


def test_a_process_whose_rank_is_taken_shows(tmp_path: Path) -> None:
    with Collector(tmp_path / "store.duckdb", "--metrics", "127.0.0.1:0") as collector:
        collector.register(process(3))
        others = [process(3, pid=7), process(3, pid=7), process(3, pid=8)]
        for other in others:
            with pytest.raises(grpc.RpcError) as refused:
                collector.register(other)
            assert refused.value.code() == grpc.StatusCode.ALREADY_EXISTS
        assert _metrics(collector)['annotq_rejected_batches_total{reason="rank_taken"}'] == 2
        with RemoteDoor(collector.address) as door:
            statement = status_statement("live", "x", 1, time.time_ns(), [])
            table = door.ask(statement.sql, statement.parameters).table.to_pylist()
    said = sorted(row["value"] for row in table if row["topic"] == "refused batch")
    assert [text.partition(" is taken")[0] for text in said] == [
        "rank 3: REGISTER: rank_taken, Rank 3 of job live, attempt 0,"
    ] * 2
    assert "this is process 7 on node-a, the store holds process 103 on node-a" in said[0]


def test_metrics_count_the_ranks_that_died(tmp_path: Path) -> None:
    with Collector(tmp_path / "store.duckdb", "--metrics", "127.0.0.1:0") as collector:
        ids = [collector.register(process(rank)).process_id for rank in range(4)]
        for process_id, how in zip(ids, ("gone", "stopped"), strict=False):
            end = {"time_ns": time.time_ns(), "how": how}
            assert [ack.error for ack in collector.ship([batch(process_id, 1, pb.KIND_PROCESS_END, end)])] == [""]
        beats = [pb.ProcessBeat(process_id=one, alive=number > 1) for number, one in enumerate(ids)]
        collector.stub.Beat(pb.BeatRequest(host="node-a", processes=beats))
        state = 'annotq_ranks{{attempt="0",job="live",state="{}"}}'.format
        _until(lambda: _metrics(collector).get(state("gone")) == 1)
        found = _metrics(collector)
        assert [found[state(name)] for name in ("running", "ending", "stopped")] == [2, 0, 1]
        collector.stop()
    # Who watches learns of it also after a new start.
    with Collector(collector.db, "--metrics", "127.0.0.1:0") as again:
        _until(lambda: _metrics(again).get(state("gone")) == 1)


def test_metrics_say_what_happened(tmp_path: Path) -> None:
    with Collector(tmp_path / "store.duckdb", "--metrics", "127.0.0.1:0") as collector:
        ids = [collector.register(process(rank)).process_id for rank in range(3)]
        collector.ship([*_trace(ids[0], 1, 10, 5), note(ids[1], 1, "x"), pb.Batch(process_id=ids[1], sequence=2)])
        beats = [
            pb.ProcessBeat(process_id=one, alive=alive) for one, alive in zip(ids, (True, True, False), strict=True)
        ]
        collector.stub.Beat(pb.BeatRequest(host="node-a", processes=beats))
        collector.ask("SELECT 1")
        with pytest.raises(grpc.RpcError):
            collector.ask("DROP VIEW kernels")
        # An answer is counted once it is sent: whoever has it may be earlier.
        deadline = time.monotonic() + 20
        while (found := _metrics(collector)).get("annotq_query_seconds_count") != 2:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
    expected = {
        "annotq_batches_total": 6,
        "annotq_rows_total": 10,
        'annotq_rejected_batches_total{reason="version"}': 1,
        "annotq_queue_batches": 0,
        "annotq_queue_bytes": 0,
        'annotq_queries_total{outcome="ok"}': 1,
        'annotq_queries_total{outcome="invalid_argument"}': 1,
        "annotq_query_seconds_count": 2,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["annotq_bytes_total"] > 0 and found["annotq_commit_seconds_count"] > 0
    seen = {name for name in found if name.startswith("annotq_last_seen")}
    assert seen == {f'annotq_last_seen_timestamp_seconds{{attempt="0",job="live",rank="{rank}"}}' for rank in (0, 1)}


def _trace(process_id: int, number: int, count: int, cut: int) -> Iterator[pb.Batch]:
    """Trace number so many, `cut` rows a batch; each has a second of its own."""
    start_ns = number * SECOND
    info = trace_info(count, f"{number:064}", window_start_ns=start_ns)
    return pieces(process_id, info, events_table(count, start_ns), number=number, rows=cut)


def _noise(process_id: int, number: int) -> Iterator[pb.Batch]:
    """4 MB in the store that do not compress."""
    start_ns = number * SECOND
    info = trace_info(20_000, f"{number:064}", window_start_ns=start_ns)
    return pieces(process_id, info, noisy_table(20_000, start_ns, seed=number), number=number)


def _metrics(collector: Collector) -> dict[str, float]:
    """The samples by name with labels."""
    events = [json.loads(line) for line in collector.log.read_text().splitlines() if line.startswith("{")]
    address = [event["address"] for event in events if event["event"] == "metrics"][-1]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def _health(collector: Collector) -> int:
    checks = health_pb2_grpc.HealthStub(collector.channel)
    return int(checks.Check(health_pb2.HealthCheckRequest(), timeout=10).status)


def _resident_bytes(collector: Collector) -> int:
    status = Path(f"/proc/{collector.process.pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("Pss:"))


def _until(true: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
