"""Files go in whole, once, and only where they belong."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import duckdb
import pytest
from jobs import DATA, load, replayed_step, rows, write_annotations, write_job
from traces import BASE_NS, kernel, launch, write_trace

from annotq.agent.errors import AnnotqError
from annotq.collector.store import SCHEMA_VERSION, Store

COUNTS = """SELECT (SELECT count(*) FROM gpu_event), (SELECT count(*) FROM host_span), (SELECT count(*) FROM annotation),
            (SELECT count(*) FROM trace), (SELECT count(*) FROM process), (SELECT count(*) FROM source_file)"""


def test_the_same_files_again_change_nothing_and_say_so(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", {0: [[10, 20]], 1: [[10, 20]]}, ["a", "b"])
    store = tmp_path / "store.duckdb"
    assert [outcome.loaded.known for outcome in load(store, job) if outcome.loaded] == [False] * 4
    before = rows(store, COUNTS)
    assert [outcome.loaded.known for outcome in load(store, job) if outcome.loaded] == [True] * 4
    assert rows(store, COUNTS) == before == [(4, 4, 4, 2, 2, 4)]


def test_a_copy_under_another_name_is_the_same_content(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "rank0.json", [kernel("k", 1000)], rank=0)
    store = tmp_path / "store.duckdb"
    load(store, trace, job="j")
    (again,) = load(store, shutil.copy(trace, tmp_path / "copy.json"), job="j")
    assert again.loaded is not None and again.loaded.known


def test_the_same_content_in_another_job_is_loaded(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "rank0.json", [kernel("k", 1000)], rank=0)
    store = tmp_path / "store.duckdb"
    load(store, trace, job="a")
    load(store, trace, job="b")
    assert rows(store, "SELECT job, count(*) FROM kernels GROUP BY job ORDER BY job") == [("a", 1), ("b", 1)]


def test_two_files_that_claim_one_rank_for_the_same_time_are_a_conflict(tmp_path: Path) -> None:
    first = write_trace(tmp_path / "first.json", [kernel("k", 1000, 50)], rank=3)
    second = write_trace(tmp_path / "second.json", [kernel("k", 1020, 50)], rank=3)
    store = tmp_path / "store.duckdb"
    outcomes = load(store, first, second, job="j")
    assert outcomes[1].loaded is None
    assert outcomes[1].problems == (f"{second}: rank 3 is claimed twice: its window overlaps that of {first}.",)
    assert "--attempt" in outcomes[1].hint
    assert rows(store, "SELECT count(*) FROM kernels") == [(1,)]


def test_two_processes_that_claim_one_rank_are_a_conflict(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    for host, start in (("node-a", 1000), ("node-b", 9000)):
        write_trace(tmp_path / f"{host}.json", [kernel("k", start)], rank=0, host_name=host)
    outcomes = load(store, tmp_path / "node-a.json", tmp_path / "node-b.json", job="j")
    assert outcomes[1].loaded is None and "claimed twice" in outcomes[1].problems[0]
    assert load(store, tmp_path / "node-b.json", job="j", attempt=1)[0].loaded is not None
    assert rows(store, "SELECT attempt, ranks_seen FROM jobs ORDER BY attempt") == [(0, 1), (1, 1)]


def test_two_windows_of_one_process_add_up(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    for number, start in enumerate((1000, 9000)):
        write_trace(tmp_path / f"w{number}.json", [kernel("k", start)], rank=0, host_name="node-a")
    outcomes = load(store, tmp_path / "w0.json", tmp_path / "w1.json", job="j")
    assert [outcome.problems for outcome in outcomes] == [(), ()]
    assert rows(store, "SELECT ranks_seen, traces, gpu_events FROM jobs") == [(1, 2, 2)]


def test_ranks_with_different_base_times_land_on_one_clock(tmp_path: Path) -> None:
    # Both kernels start at the same moment; rank 1's file counts from a base 5 s later.
    write_trace(tmp_path / "rank0.json", [kernel("k", 6_000_000)], rank=0, base_ns=BASE_NS)
    write_trace(tmp_path / "rank1.json", [kernel("k", 1_000_000)], rank=1, base_ns=BASE_NS + 5_000_000_000)
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    found = rows(tmp_path / "store.duckdb", "SELECT rank, start_ns FROM kernels ORDER BY rank")
    assert found == [(0, BASE_NS + 6_000_000_000), (1, BASE_NS + 6_000_000_000)]


def test_a_refused_trace_stays_visible_until_a_good_one_replaces_it(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    trace = tmp_path / "rank2.json"
    trace.write_text("{}")
    (refused,) = load(store, trace, job="j")
    assert refused.loaded is None
    ((rank, status, note),) = rows(store, "SELECT rank, status, note FROM coverage")
    assert (rank, status) == (2, "rejected") and str(trace) in note
    write_trace(trace, [kernel("k", 1000)], rank=2)
    load(store, trace, job="j")
    assert rows(store, "SELECT status FROM coverage ORDER BY status") == [("complete",)]


def test_annotations_of_another_process_are_pointed_out(tmp_path: Path) -> None:
    events = [launch(990, correlation=1, name="cudaGraphLaunch"), kernel("k", 1000, correlation=1, graph=5, node=0)]
    write_trace(tmp_path / "rank0.json", events, rank=0)
    write_annotations(tmp_path / "rank0.annotations.json", {0: "a"}, graph=9)
    store = tmp_path / "store.duckdb"
    outcomes = load(store, tmp_path, job="j")
    sentence = (
        "No annotated node occurs in this trace: the annotations belong to another process, "
        "or to graphs that were not replayed in it."
    )
    assert any(sentence in problem for outcome in outcomes for problem in outcome.problems)
    assert rows(store, "SELECT orphan, note FROM coverage") == [(1, sentence)]


def test_annotations_that_contradict_those_of_the_rank_are_refused(tmp_path: Path) -> None:
    # Two jobs below one folder: without this the second would rename the kernels of the first.
    for job, region in (("first", "attn"), ("second", "mlp")):
        write_job(tmp_path / "both" / job, {0: [[10]]}, [region])
    outcomes = load(tmp_path / "store.duckdb", tmp_path / "both")
    refused = outcomes[1]
    assert refused.loaded is None
    assert refused.problems[0].endswith(
        f"second/rank0.annotations.json: 1 of 1 nodes are annotated differently than in "
        f"{tmp_path}/both/first/rank0.annotations.json."
    )
    assert rows(tmp_path / "store.duckdb", "SELECT DISTINCT region FROM kernels") == [("attn",)]


def test_a_later_snapshot_with_more_nodes_is_welcome(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    write_trace(tmp_path / "rank0.json", replayed_step(0, 1000, [10, 10], ["k", "l"]), rank=0)
    load(store, write_annotations(tmp_path / "rank0.early.annotations.json", {0: "a"}), job="j")
    load(store, write_annotations(tmp_path / "rank0.late.annotations.json", {0: "a", 1: "b"}), job="j")
    load(store, tmp_path / "rank0.json", job="j")
    assert rows(store, "SELECT region FROM kernels ORDER BY node_index") == [("a",), ("b",)]


def test_the_whole_file_replaces_the_part_that_was_read_before(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    trace = write_trace(tmp_path / "rank0.json", [kernel(f"k{i}", 1000 + 100 * i) for i in range(5)], rank=0)
    whole = trace.read_bytes()
    trace.write_bytes(whole[: len(whole) // 2])
    load(store, trace, job="j")
    assert rows(store, "SELECT status FROM coverage") == [("partial",)]
    trace.write_bytes(whole)
    (outcome,) = load(store, trace, job="j")
    assert outcome.problems == ()
    assert rows(store, "SELECT status, gpu_events FROM coverage") == [("complete", 5)]
    assert rows(store, "SELECT count(*) FROM kernels") == [(5,)]


def test_annotations_after_the_trace_name_it_too(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    write_trace(tmp_path / "rank0.json", replayed_step(0, 1000, [10], ["k"]), rank=0)
    load(store, tmp_path / "rank0.json", job="j")
    assert rows(store, "SELECT region FROM kernels") == [(None,)]
    load(store, write_annotations(tmp_path / "rank0.annotations.json", {0: "a"}), job="j")
    assert rows(store, "SELECT region, phase FROM kernels") == [("a", "forward")]


def test_a_newer_store_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    with Store(path) as store:
        store.connection.execute("UPDATE store_version SET schema_version = 99, created_by = '9.0'")
    with pytest.raises(
        AnnotqError, match=rf"store schema 99, written by annotq 9\.0; this annotq knows schema {SCHEMA_VERSION}"
    ):
        Store(path)


def test_a_store_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    first = files("annotq.collector.sql.schema").joinpath("001_tables.sql").read_text()
    for path in (tmp_path / "written.duckdb", tmp_path / "read.duckdb"):
        with duckdb.connect(str(path)) as connection:
            connection.execute(first)
            connection.execute("INSERT INTO store_version VALUES (1, '0.1', '')")
            connection.execute("INSERT INTO process (process_id, job, attempt, rank) VALUES (1, 'old', 0, 3)")
    Store(tmp_path / "written.duckdb").close()
    for path in (tmp_path / "written.duckdb", tmp_path / "read.duckdb"):
        assert rows(path, "SELECT schema_version FROM store_version") == [(SCHEMA_VERSION,)]
        assert rows(path, "SELECT job, rank, process_key FROM process") == [("old", 3, None)]


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    duckdb.connect(str(tmp_path / "other.duckdb")).execute("CREATE TABLE t (i INT)").close()
    with pytest.raises(AnnotqError, match="not an annotq store"):
        Store(tmp_path / "other.duckdb")


@pytest.mark.parametrize("seed", range(6))
def test_sigkill_at_any_moment_leaves_whole_files_or_nothing(tmp_path: Path, seed: int) -> None:
    store = tmp_path / "store.duckdb"
    command = [sys.executable, "-m", "annotq.cli", "ingest", str(DATA / "control4"), "--job", "j", "--db", str(store)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    # The first line says that the first file is in; from there on the moment is random.
    first = process.stderr.readline()
    time.sleep(random.Random(seed).uniform(0, 0.5))
    process.kill()
    process.wait(30)
    process.stderr.close()
    assert "rank0.annotations.json" in first
    whole = rows(
        store,
        """SELECT t.rank, t.gpu_events, (SELECT count(*) FROM gpu_event e WHERE e.trace_id = t.trace_id) FROM trace t""",
    )
    assert all(promised == found == 3552 for _, promised, found in whole)
    assert rows(store, "SELECT count(*) FROM gpu_event") == [(3552 * len(whole),)]
    outcomes = load(store, DATA / "control4", job="j")
    assert [outcome.problems for outcome in outcomes] == [()] * 8
    assert rows(store, COUNTS)[0][0] == 4 * 3552


def test_a_file_name_that_is_no_utf8_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    write_trace(tmp_path / "t.json", [kernel("k", 1000)], rank=0)
    (tmp_path / "t.json").rename(os.fsdecode(os.fsencode(folder) + b"/a\xff_rank0.json"))
    (outcome,) = load(tmp_path / "store.duckdb", folder)
    assert outcome.problems == ()
    assert rows(tmp_path / "store.duckdb", "SELECT path FROM trace") == [(f"{folder}/a\\xff_rank0.json",)]


def test_a_reader_uses_its_own_views_on_a_store_of_another_version(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    load(store, write_job(tmp_path / "job", {0: [[10]]}, ["mlp"]))
    with Store(store) as opened:
        opened.connection.execute("CREATE OR REPLACE VIEW kernels AS SELECT 'old' AS name")
        opened.connection.execute("UPDATE store_version SET views = 'another version'")
    assert rows(store, "SELECT region FROM kernels") == [("mlp",)]
