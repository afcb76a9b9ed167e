"""Questions over gRPC are answered during ingest; whatever is no bounded SELECT gets its status."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from collectors import Collector, Feed, events_table, noisy_table, pieces, process, trace_info
from small_store import small_store

from annotq.v1 import collector_pb2 as pb

Code = grpc.StatusCode
LOOP = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT count(*) FROM r"


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    path = small_store(tmp_path_factory.mktemp("collector") / "store.duckdb")
    with Collector(path, "--memory", "300MB") as started:
        yield started


def refused(collector: Collector, sql: str, **fields: object) -> tuple[Code, str]:
    with pytest.raises(grpc.RpcError) as caught:
        collector.ask(sql, **fields)
    return caught.value.code(), caught.value.details()


def test_the_views_answer(collector: Collector) -> None:
    assert collector.ask("SELECT job, ranks_seen FROM jobs") == [("tiny", 2)]
    assert collector.ask(
        "SELECT DISTINCT region FROM kernels WHERE rank = ? AND region LIKE ?",
        parameters_json=json.dumps([1, "layers%"]),
    ) == [("layers.0.mlp",)]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM trace",
        "INSERT INTO store_version VALUES (9, '', '')",
        "DROP VIEW kernels",
        "CREATE TEMP TABLE x AS SELECT 1",
        "SELECT 1; DELETE FROM trace",
        "WITH x AS (SELECT 1) DELETE FROM trace",
        "EXPLAIN ANALYZE DELETE FROM trace",
        "ATTACH ':memory:' AS other",
        "COPY trace TO '/tmp/out.csv'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET lock_configuration = false",
        "CHECKPOINT",
        "COMMIT",
        "BEGIN",
        "USE memory",
    ],
)
def test_everything_but_one_select_is_an_invalid_argument(collector: Collector, sql: str) -> None:
    code, text = refused(collector, sql)
    assert code == Code.INVALID_ARGUMENT
    message, hint = text.split("\n")
    assert "runs one SELECT and never changes anything" in message and "annotq views" in hint
    assert collector.ask("SELECT count(*) FROM trace") == [(2,)]


@pytest.mark.parametrize(
    "source",
    [
        "read_csv('{file}')",
        "read_text('{file}')",
        "read_blob('{file}')",
        "read_parquet('{file}')",
        "'{file}'",
        "glob('{file}')",
        "query('SELECT * FROM read_text(''{file}'')')",
        "incoming",
        "batch",
        "sqlite_scan('{file}', 't')",
    ],
)
def test_nothing_but_the_store_can_be_read(collector: Collector, tmp_path: Path, source: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\nsecret,1\n")
    code, text = refused(collector, f"SELECT * FROM {source.format(file=secret)}")
    assert code == Code.INVALID_ARGUMENT and "secret,1" not in text


@pytest.mark.parametrize(
    "call", ["enable_logging('QueryLog', storage := 'file')", "pragma_database_size()", "enable_profiling()"]
)
def test_functions_that_change_settings_do_not(collector: Collector, call: str) -> None:
    try:
        collector.ask(f"SELECT * FROM {call}")
    except grpc.RpcError as error:
        assert error.code() == Code.INVALID_ARGUMENT
    assert collector.ask("SELECT current_setting('enable_logging')") == [(False,)]


def test_mistakes_are_named_with_what_was_perhaps_meant(collector: Collector) -> None:
    code, text = refused(collector, "SELECT duration FROM kernels")
    assert code == Code.INVALID_ARGUMENT
    assert '"duration" not found' in text and '"duration_ns"' in text and "\n" in text
    assert refused(collector, "SELECT 1", parameters_json='{"a": 1}')[0] == Code.INVALID_ARGUMENT


def test_a_query_without_an_end_runs_out_of_time(collector: Collector) -> None:
    started = time.monotonic()
    code, text = refused(collector, LOOP, seconds=0.5)
    assert code == Code.DEADLINE_EXCEEDED and "stopped after 0.5 s" in text
    assert time.monotonic() - started < 5


def test_a_billion_rows_end_at_the_limit_in_pieces(collector: Collector) -> None:
    request = pb.QueryRequest(sql="SELECT * FROM range(1000000000)", rows=1_000_000)
    *pieces_, last = collector.stub.Query(request, timeout=30)
    assert last.last and last.truncated and last.seconds > 0
    assert max(len(reply.arrow) for reply in pieces_) <= 1 << 20 and len(pieces_) > 5
    table = pa.ipc.open_stream(b"".join(reply.arrow for reply in pieces_)).read_all()
    assert table.num_rows == 1_000_000


def test_a_query_that_needs_too_much_memory_says_so(collector: Collector) -> None:
    code, text = refused(collector, "SELECT list(i) FROM range(1000000000) t(i)")
    assert code == Code.RESOURCE_EXHAUSTED and "more than 300MB of memory" in text
    assert collector.ask("SELECT 1") == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT repeat('x', 3000000000)",
        "SELECT system.main.\"REPEAT\"('x', '3000000000')",
        "SELECT 'x'.repeat(3000000000)",
        "SELECT repeat(s, 1000) FROM (SELECT repeat('x', 1000) AS s)",
        "SELECT list(range(1000000000))",
        "SELECT len(generate_series(1, ?))",
        "SELECT * FROM unnest(range(1000000000))",
        "SELECT [x FOR x IN range(1000000000)]",
        "SELECT list_transform([1], lambda x: range(1000000000))",
        "SELECT lpad('x', 3000000000, 'y')",
        "SELECT array_resize([1], 2000000000)",
        "SELECT bitstring('1', 2000000000)",
        "SELECT format('{:>1000000000d}', 1)",
        "SELECT printf('%*d', 1000000000, 1)",
        "SELECT replace(s, 'x', s) FROM (SELECT repeat('x', 1000) AS s)",
        "SELECT list_reduce(['x', 'x'], lambda a, b: a || b)",
        "SELECT list_aggregate([1, 2], 'reservoir_quantile', 0.5, 2000000000)",
        "SELECT 1 ORDER BY repeat('x', 3000000000)",
        "SELECT 1 WHERE EXISTS (SELECT repeat('x', 3000000000))",
        "DESCRIBE SELECT repeat('x', 3000000000)",
        "EXPLAIN SELECT repeat('x', 3000000000)",
        "EXPLAIN ANALYZE SELECT repeat('x', 3000000000)",
        "SELECT * FROM query('SELECT repeat(''x'', 3000000000)')",
        "SELECT * FROM json_execute_serialized_sql('{}')",
    ],
)
def test_a_value_of_any_size_is_refused_before_it_is_made(collector: Collector, sql: str) -> None:
    started = time.monotonic()
    code, text = refused(collector, sql)
    message, hint = text.split("\n")
    assert code == Code.INVALID_ARGUMENT and ("any size" in message or "cannot be used" in message) and hint
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("SELECT repeat('-', 3), len(range(1, 1000))", ("---", 999)),
        ("SELECT lpad(CAST(rank AS VARCHAR), 4, '0') FROM ranks WHERE rank = 1", ("0001",)),
        ("SELECT count(*) FROM range(10) t(i), range(t.i)", (45,)),
        ("SELECT format('{:>5.1f}', 1.5), printf('%03d', 7), replace('a.b', '.', '/')", ("  1.5", "007", "a/b")),
        ("SELECT list_aggregate([1, 2], 'sum'), array_to_string(list_slice([1, 2, 3], 1, 2), ', ')", (3, "1, 2")),
        (f"SELECT {' + '.join(['1'] * 900)}", (900,)),
    ],
)
def test_small_values_and_rows_are_answered(collector: Collector, sql: str, answer: tuple[object, ...]) -> None:
    assert collector.ask(sql) == [answer]


def test_a_question_that_grows_past_the_memory_of_the_collector_is_stopped(tmp_path: Path) -> None:
    # Lists of lists of lists: no function that is refused, and nothing that DuckDB counts.
    numbers = "range(0, 1000)"
    sql = f"SELECT list_transform({numbers}, lambda x: list_transform({numbers}, lambda y: {numbers})) FROM range(100)"
    with Collector(tmp_path / "store.duckdb", "--memory", "200MB", "--queue-bytes", str(1 << 20)) as small:
        code, text = refused(small, sql)
        assert code == Code.RESOURCE_EXHAUSTED and "more memory than the collector may use" in text
        assert small.process.poll() is None and "questions stopped" in small.log.read_text()
        _until(lambda: small.ask("SELECT 1") == [(1,)])


def test_a_client_that_goes_away_ends_its_query(collector: Collector) -> None:
    for leave in ("cancel", "deadline"):
        calls = [
            collector.stub.Query(pb.QueryRequest(sql=LOOP, seconds=60), timeout=60 if leave == "cancel" else 0.3)
            for _ in range(4)
        ]
        time.sleep(0.3)
        for call in calls:
            call.cancel()
        # All four places are free again long before the queries' own limit.
        _until(lambda: collector.ask("SELECT 1") == [(1,)])


def test_a_client_that_reads_slowly_is_held_to_the_time_limit(collector: Collector) -> None:
    request = pb.QueryRequest(sql="SELECT repeat('x', 1000) FROM range(1000000)", rows=1_000_000, seconds=1)
    replies = collector.stub.Query(request, timeout=30)
    next(replies)
    time.sleep(1.5)
    with pytest.raises(grpc.RpcError) as ended:
        list(replies)
    assert ended.value.code() == Code.DEADLINE_EXCEEDED
    assert "stopped after 1 s" in ended.value.details()


def test_more_questions_than_places_are_sent_away(collector: Collector) -> None:
    calls = [collector.stub.Query(pb.QueryRequest(sql=LOOP, seconds=30), timeout=60) for _ in range(4)]
    time.sleep(0.3)
    code, text = refused(collector, "SELECT 1")
    for call in calls:
        call.cancel()
    assert code == Code.RESOURCE_EXHAUSTED and "4 questions are being answered" in text
    _until(lambda: collector.ask("SELECT 1") == [(1,)])


def test_questions_see_whole_commits_while_batches_come_in(collector: Collector) -> None:
    process_id = collector.register(process(job="busy")).process_id
    feed = Feed(collector)
    done = threading.Event()
    seen: list[int] = []

    def ask() -> None:
        while not done.is_set():
            ((events, traces),) = collector.ask(
                "SELECT count(*), count(DISTINCT trace_id) FROM kernels WHERE job = 'busy'"
            )
            assert events == 1000 * traces
            seen.append(events)

    asking = threading.Thread(target=ask)
    asking.start()
    for number in range(1, 31):
        start_ns = number * 1_000_000_000
        info = trace_info(1000, f"{number:064}", window_start_ns=start_ns)
        feed.send(*pieces(process_id, info, events_table(1000, start_ns), number=number, rows=250))
    feed.close()
    assert {ack.error for ack in feed.acks} == {""}
    done.set()
    asking.join(20)
    assert seen == sorted(seen) and len(set(seen)) > 2
    assert collector.ask("SELECT count(*) FROM kernels WHERE job = 'busy'") == [(30_000,)]


def test_questions_that_take_all_memory_lose_no_batch(collector: Collector) -> None:
    process_id = collector.register(process(job="hungry")).process_id
    done = threading.Event()

    def eat() -> None:
        while not done.is_set():
            with suppress(grpc.RpcError):
                collector.ask("SELECT list(i) FROM range(1000000000) t(i)")

    eaters = [threading.Thread(target=eat) for _ in range(3)]
    for eater in eaters:
        eater.start()
    batches = []
    for number in range(1, 21):
        start_ns = number * 1_000_000_000
        info = trace_info(20_000, f"{number:064}", window_start_ns=start_ns)
        batches += pieces(process_id, info, noisy_table(20_000, start_ns, number), number=number)
    assert {ack.error for ack in collector.ship(batches)} == {""}
    done.set()
    for eater in eaters:
        eater.join(20)
    assert collector.ask("SELECT count(*), count(DISTINCT start_ns) FROM kernels WHERE job = 'hungry'") == [
        (400_000, 400_000)
    ]


def _until(true: object, seconds: float = 15) -> None:
    """Wait until `true()` neither fails nor raises."""
    assert callable(true)
    deadline = time.monotonic() + seconds
    while True:
        try:
            if true():
                return
        except grpc.RpcError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)
