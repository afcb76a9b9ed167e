"""The SQL door answers one SELECT and refuses, stops or bounds everything else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from small_store import small_store

from annotq.agent.errors import AnnotqError
from annotq.collector.query import Door, Limits

ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE (a.range * b.range) % 7 = 3"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("door") / "store.duckdb")


@pytest.fixture
def door(store: Path) -> Iterator[Door]:
    with Door(store, Limits(seconds=20, memory="200MB", threads=2)) as opened:
        yield opened


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 AS one",
        "select 1 as one;",
        "-- a question\nSELECT 1 AS one; -- and its end\n",
        "; SELECT 1 AS one ;;/* é; */",
        "WITH x AS (SELECT 1 AS one) SELECT * FROM x",
        "VALUES (1)",
        "FROM range(1, 2)",
        "SELECT count(*) AS one WHERE 'a; -- b' = 'a; -- b'",
    ],
)
def test_one_select_is_answered(door: Door, sql: str) -> None:
    answer = door.ask(sql)
    assert answer.table.column(0).to_pylist() == [1]
    assert not answer.truncated


@pytest.mark.parametrize(
    "sql", ["SHOW TABLES", "DESCRIBE kernels", "SUMMARIZE kernels", "EXPLAIN SELECT 1", "EXPLAIN ANALYZE FROM kernels"]
)
def test_questions_about_the_store_and_the_plan_are_answered(door: Door, sql: str) -> None:
    assert door.ask(sql).table.num_rows > 0


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "  \n",
        "-- only a comment",
        "/* only */ ;",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE trace",
        "CREATE TABLE x (a INT)",
        "CREATE TEMP TABLE x AS SELECT 1",
        "INSERT INTO store_version VALUES (9, '', '')",
        "WITH x AS (SELECT 1) DELETE FROM trace",
        "UPDATE trace SET rank = 1",
        "DELETE FROM trace",
        "DROP VIEW kernels",
        "ALTER TABLE trace ADD COLUMN x INT",
        "COPY trace TO 'out.csv'",
        "COPY (SELECT 1) TO 'out.parquet'",
        "COPY trace FROM 'in.csv'",
        "EXPORT DATABASE 'out'",
        "ATTACH 'other.duckdb'",
        "DETACH store",
        "USE memory",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 1",
        "RESET memory_limit",
        "SET VARIABLE x = 1",
        "PRAGMA database_list",
        "CALL pragma_version()",
        "CHECKPOINT",
        "VACUUM",
        "BEGIN",
        "PREPARE x AS SELECT 1",
        "EXECUTE x",
        "PIVOT kernels ON rank",
        "EXPLAIN INSERT INTO store_version VALUES (9, '', '')",
        "EXPLAIN ANALYZE INSERT INTO store_version VALUES (9, '', '')",
        "EXPLAIN /* x */ ANALYZE -- y\n COPY trace TO 'out.csv'",
        "EXPLAIN (ANALYZE) DELETE FROM trace",
        "EXPLAIN SET threads = 1",
    ],
)
def test_everything_but_one_select_is_refused(door: Door, sql: str) -> None:
    with pytest.raises(AnnotqError, match="runs one SELECT and never changes anything") as caught:
        door.ask(sql)
    assert "annotq views" in caught.value.hint


@pytest.mark.parametrize(
    "source",
    [
        "read_csv('{file}')",
        "read_text('{file}')",
        "read_blob('{file}')",
        "read_json('{file}')",
        "read_parquet('{file}')",
        "read_duckdb('{file}')",
        "glob('{file}')",
        "sniff_csv('{file}')",
        "'{file}'",
        "'{file}.parquet'",
        "parquet_scan('https://example.com/x.parquet')",
        "query('SELECT * FROM read_text(''{file}'')')",
        "local_table",
    ],
)
def test_nothing_outside_the_store_can_be_read(door: Door, tmp_path: Path, source: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\nsecret,1\n")
    local_table = {"a": [1]}  # DuckDB's Python client would find a variable of that name
    assert local_table
    with pytest.raises(AnnotqError):
        door.ask(f"SELECT * FROM {source.format(file=secret)}")


@pytest.mark.parametrize("call", ["getenv('HOME')", "checkpoint()", "write_log('x', level := 'nope')"])
def test_functions_that_reach_outside_do_not_work(door: Door, call: str) -> None:
    with pytest.raises(AnnotqError):
        door.ask(f"SELECT {call}")


@pytest.mark.parametrize("call", ["enable_logging('QueryLog', storage := 'file')", "enable_profiling()"])
def test_settings_cannot_be_changed_from_inside_a_select(door: Door, call: str) -> None:
    with pytest.raises(AnnotqError, match="locked"):
        door.ask(f"FROM {call}")


def test_the_file_is_the_same_afterwards(store: Path, door: Door) -> None:
    before = store.read_bytes()
    for sql in ("SELECT * FROM kernels", "DELETE FROM trace", "EXPLAIN ANALYZE DELETE FROM trace"):
        try:
            door.ask(sql)
        except AnnotqError:
            continue
    assert store.read_bytes() == before


def test_a_billion_rows_end_at_the_limit(door: Door) -> None:
    answer = door.ask("SELECT * FROM range(1000000000)", limits=Limits(rows=10))
    assert (answer.table.num_rows, answer.truncated) == (10, True)
    assert answer.seconds < 5


def test_exactly_as_many_rows_as_the_limit_are_not_cut(door: Door) -> None:
    answer = door.ask("SELECT * FROM range(10)", limits=Limits(rows=10))
    assert (answer.table.num_rows, answer.truncated) == (10, False)


def test_the_first_rows_of_an_order_come_first(door: Door) -> None:
    answer = door.ask("SELECT * FROM range(1000000) ORDER BY 1 DESC", limits=Limits(rows=2))
    assert answer.table.column(0).to_pylist() == [999_999, 999_998]


@pytest.mark.parametrize(
    "sql",
    [
        ENDLESS,
        f"EXPLAIN ANALYZE {ENDLESS}",
        "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT count(*) FROM r",
        "SELECT count(*) FROM range(1000000000000)",
    ],
)
def test_a_query_without_an_end_is_stopped(door: Door, sql: str) -> None:
    started = time.monotonic()
    with pytest.raises(AnnotqError, match=r"stopped after 0\.5 s") as caught:
        door.ask(sql, limits=Limits(seconds=0.5))
    assert "--timeout" in caught.value.hint
    assert time.monotonic() - started < 5
    assert door.ask("SELECT 1").table.num_rows == 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT list(i) FROM range(1000000000) t(i)",
        "SELECT i, list(i) OVER (ORDER BY hash(i)) FROM range(1000000) t(i)",
    ],
)
def test_a_query_that_needs_too_much_memory_says_so(door: Door, sql: str) -> None:
    with pytest.raises(AnnotqError, match="needs more than 200MB of memory") as caught:
        door.ask(sql)
    assert "--memory" in caught.value.hint


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT len(range(300000000))", "FROM range"),
        ("SELECT repeat('x', 3000000000)", "number up to 1,000"),
        ("SELECT * FROM query('SELECT repeat(''x'', 3000000000)')", "annotq views"),
    ],
)
def test_a_value_of_any_size_is_refused_with_what_to_use_instead(door: Door, sql: str, hint: str) -> None:
    with pytest.raises(AnnotqError, match=r"any size|cannot be used") as caught:
        door.ask(sql)
    assert hint in caught.value.hint


def test_a_sort_past_the_memory_limit_uses_the_disk_and_leaves_nothing(store: Path, tmp_path: Path) -> None:
    sql = "SELECT sum(n) FROM (SELECT row_number() OVER (ORDER BY hash(i)) AS n FROM range(5000000) t(i))"
    code = (
        "from pathlib import Path; from annotq.collector.query import Door, Limits\n"
        f"with Door(Path({str(store)!r}), Limits(memory='60MB', threads=1)) as door:\n"
        f"    print(int(door.ask({sql!r}).table.column(0)[0].as_py()))"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("12500002500000\n", "")
    assert list(tmp_path.iterdir()) == []


def test_parameters_are_values_and_never_sql(door: Door) -> None:
    rows = door.ask("SELECT DISTINCT rank FROM kernels WHERE job = ? AND rank = ?", ("tiny", 1)).table
    assert rows.to_pylist() == [{"rank": 1}]
    assert door.ask("SELECT * FROM kernels WHERE job = ?", ("' OR 1 = 1 --",)).table.num_rows == 0


@pytest.mark.parametrize(
    ("sql", "message", "hint"),
    [
        ("SELECT * FROM kernel", "Table with name kernel does not exist", 'Did you mean "kernels"'),
        (
            "SELECT * FROM nowhere",
            "nowhere does not exist",
            "agents, collectives, coverage, graphs, host_regions, jobs",
        ),
        ("SELECT duration FROM kernels", '"duration" not found', '"duration_ns"'),
        ("SELECT sun(rank) FROM kernels", "sun does not exist", 'Did you mean "sum"'),
        ("SELEC 1", 'syntax error at or near "SELEC"', "SELEC 1\n^^^^^"),
        ("SELECT 'x'::INT", "Could not convert string 'x'", "SELECT 'x'::INT\n"),
        ("SELECT ?", "Values were not provided", ""),
    ],
)
def test_mistakes_are_named_with_what_was_perhaps_meant(door: Door, sql: str, message: str, hint: str) -> None:
    with pytest.raises(AnnotqError) as caught:
        door.ask(sql)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "sql", ["SELECT '\udcff'", "\x00", "SELECT " + "(" * 20_000, "SELECT " + "1 + " * 30_000 + "1"]
)
def test_text_that_is_no_sql_is_an_error_and_no_crash(door: Door, sql: str) -> None:
    with pytest.raises(AnnotqError):
        door.ask(sql)


def test_a_store_whose_writer_was_killed_is_readable(tmp_path: Path) -> None:
    path = small_store(tmp_path / "store.duckdb")
    code = (
        "import duckdb, os, signal\n"
        f"connection = duckdb.connect({str(path)!r})\n"
        "connection.execute('UPDATE process SET world_size = 64')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code])
    assert path.with_name("store.duckdb.wal").exists()
    with Door(path) as door:
        assert door.ask("SELECT ranks_expected FROM jobs").table.to_pylist() == [{"ranks_expected": 64}]


def test_no_store_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(AnnotqError, match=r"There is no store at .*none\.duckdb") as caught:
        Door(tmp_path / "none.duckdb")
    assert "annotq ingest DIR" in caught.value.hint
    assert not (tmp_path / "none.duckdb").exists()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database " * 1000)
    with pytest.raises(AnnotqError, match=r"notes\.txt"):
        Door(tmp_path / "notes.txt")


def test_a_database_that_is_no_store_is_named(tmp_path: Path) -> None:
    duckdb.connect(str(tmp_path / "other.duckdb")).execute("CREATE TABLE t (a INT)").close()
    with pytest.raises(AnnotqError, match=r"other\.duckdb is a DuckDB file, but not an annotq store"):
        Door(tmp_path / "other.duckdb")


def test_a_store_of_a_newer_annotq_is_refused(tmp_path: Path) -> None:
    path = small_store(tmp_path / "store.duckdb")
    duckdb.connect(str(path)).execute("UPDATE store_version SET schema_version = 99").close()
    with pytest.raises(AnnotqError, match="schema 99") as caught:
        Door(path)
    assert "pip install --upgrade annotq" in caught.value.hint


def test_a_store_that_another_process_writes_is_named(tmp_path: Path) -> None:
    path = small_store(tmp_path / "store.duckdb")
    code = f"import duckdb; c = duckdb.connect({str(path)!r}); print('open', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"open\n"
        with pytest.raises(AnnotqError, match=r"store\.duckdb is open in another process"):
            Door(path)
        owner.communicate(b"\n")


def test_several_doors_of_one_store_are_open_at_once(store: Path) -> None:
    with Door(store) as one, Door(store) as other:
        assert one.ask("SELECT count(*) FROM kernels").table == other.ask("SELECT count(*) FROM kernels").table


@pytest.mark.parametrize("memory", ["lots", "2GB'; DROP TABLE trace; --"])
def test_a_size_that_is_none_is_refused(store: Path, memory: str) -> None:
    with pytest.raises(AnnotqError, match="memory_limit cannot be"):
        Door(store, Limits(memory=memory))
