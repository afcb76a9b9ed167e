"""The reading commands on a store of two ranks: which rows, in which order, and what they rest on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_store import small_store
from typer.testing import CliRunner, Result

from annotq.cli.main import app
from annotq.collector.store import SCHEMA_VERSION, Store

COVERAGE = "coverage of tiny: 2 of 2 ranks, 8 of 12 graph kernels matched, 4 unannotated, 0 orphan, clock error 0 ns\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("reports") / "store.duckdb")


@pytest.fixture(scope="module")
def two_jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("two") / "store.duckdb", "first", "second")


def annotq(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments], env={"ANNOTQ_DB": str(store)}, catch_exceptions=False)


def rows(store: Path, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(annotq(store, *arguments, "--format", "json").stdout)
    return found


def test_jobs(two_jobs: Path) -> None:
    found = rows(two_jobs, "jobs")
    assert [(row["job"], row["ranks_seen"], row["ranks_expected"], row["steps"]) for row in found] == [
        ("first", 2, 2, 2),
        ("second", 2, 2, 2),
    ]
    assert [row["job"] for row in rows(two_jobs, "jobs", "--job", "second")] == ["second"]


def test_ranks_are_those_of_all_jobs(two_jobs: Path) -> None:
    found = rows(two_jobs, "ranks")
    assert [(row["job"], row["rank"], row["compute_ns"]) for row in found] == [
        ("first", 0, 2_010_000),
        ("first", 1, 4_010_000),
        ("second", 0, 2_010_000),
        ("second", 1, 4_010_000),
    ]
    assert [row["rank"] for row in rows(two_jobs, "ranks", "--rank", "1")] == [1, 1]


def test_regions_begin_with_the_largest(store: Path) -> None:
    found = rows(store, "regions")
    assert [(row["rank"], row["region"], row["total_ns"]) for row in found] == [
        (1, "layers.0.mlp", 4_000_000),
        (0, "grads.all_reduce", 2_600_000),
        (0, "layers.0.mlp", 2_000_000),
        (1, "grads.all_reduce", 600_000),
    ]


@pytest.mark.parametrize(
    ("sort", "order"),
    [("ratio", [0, 1, 0, 1]), ("median", [1, 0, 0, 1]), ("name", [0, 1, 0, 1]), ("total", [1, 0, 0, 1])],
)
def test_regions_are_sorted_as_asked(store: Path, sort: str, order: list[int]) -> None:
    assert [row["rank"] for row in rows(store, "regions", "--sort", sort)] == order


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (["--region", "layers.*.mlp"], 2),
        (["--region", "layers.?.mlp", "--rank", "1"], 1),
        (["--rank", "0", "--rank", "1"], 4),
        (["--rank", "0-1"], 4),
        (["--phase", "backward"], 0),
        (["--region", "'; DROP TABLE trace; --"], 0),
    ],
)
def test_regions_are_filtered(store: Path, filters: list[str], count: int) -> None:
    assert len(rows(store, "regions", *filters)) == count


def test_collectives_show_who_waited_for_whom(store: Path) -> None:
    found = rows(store, "collectives")
    assert [(row["rank"], row["wait_ns"], row["transfer_ns"], row["last_rank"]) for row in found] == [
        (0, 1_000_000, 300_000, 1),
        (1, 0, 300_000, 1),
        (0, 1_000_000, 300_000, 1),
        (1, 0, 300_000, 1),
    ]
    assert found[0]["arrive_ns"] < found[2]["arrive_ns"]


@pytest.mark.parametrize("command", ["ranks", "regions", "collectives", "status"])
def test_every_report_says_what_it_rests_on(store: Path, command: str) -> None:
    assert annotq(store, command).stderr == COVERAGE


def test_coverage_names_ranks_traces_and_clocks_that_are_missing(tmp_path: Path) -> None:
    path = small_store(tmp_path / "store.duckdb", note="3 events were cut off.")
    with Store(path) as store:
        store.connection.execute("UPDATE process SET world_size = 8")
        store.connection.execute("UPDATE clock SET error_ns = NULL")
        store.connection.execute("UPDATE graph SET reported = false WHERE process_id = 1")
    assert annotq(path, "regions").stderr == (
        "coverage of tiny: 2 of 8 ranks (missing: 2-7), 8 of 12 graph kernels matched, 2 unannotated, 2 orphan, "
        "clock error between hosts not known, 2 of 2 traces not complete (see annotq status)\n"
    )


@pytest.mark.parametrize("command", ["jobs", "ranks", "regions", "collectives", "status"])
def test_the_sql_that_is_shown_gives_the_same_rows(store: Path, command: str) -> None:
    filters = ["--rank", "1", "--region", "*e*"] if command in ("regions", "collectives") else []
    shown = annotq(store, command, *filters, "--show-sql")
    assert shown.stderr == ""
    assert rows(store, "query", shown.stdout) == rows(store, command, *filters)


def test_a_job_with_a_quote_in_its_name_is_quoted_in_shown_sql(tmp_path: Path) -> None:
    path = small_store(tmp_path / "store.duckdb", "o'clock?")
    shown = annotq(path, "regions", "--show-sql").stdout
    assert len(rows(path, "query", shown)) == 4


@pytest.mark.parametrize("command", ["regions", "collectives"])
def test_several_jobs_have_to_be_chosen_from(two_jobs: Path, command: str) -> None:
    done = annotq(two_jobs, command)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "holds 2 jobs" in done.stderr
    assert "--job. The jobs are: first, second." in done.stderr
    assert len(rows(two_jobs, command, "--job", "second")) == 4


@pytest.mark.parametrize("command", ["jobs", "ranks", "regions", "collectives", "status"])
def test_a_job_that_is_not_there_is_an_error_with_those_that_are(store: Path, command: str) -> None:
    done = annotq(store, command, "--job", "huge")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"error: There is no job huge in {store}.\n  The jobs are: tiny.\n"


def test_limit_cuts_and_says_so(store: Path) -> None:
    done = annotq(store, "regions", "--limit", "2")
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr.startswith("More than 2 rows; these are the first 2. Raise --limit to see more.\n")


@pytest.mark.parametrize(
    ("table", "command", "reason"),
    [
        ("annotation", "regions", "no annotations were loaded"),
        ("gpu_event", "collectives", "No collectives in job tiny"),
    ],
)
def test_an_empty_report_says_why(tmp_path: Path, table: str, command: str, reason: str) -> None:
    path = small_store(tmp_path / "store.duckdb")
    with Store(path) as store:
        store.connection.execute(f"DELETE FROM {table}")
    done = annotq(path, command)
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 1
    assert reason in done.stderr


@pytest.mark.parametrize("command", ["jobs", "ranks", "status"])
def test_an_empty_store_names_the_command_that_fills_it(tmp_path: Path, command: str) -> None:
    with Store(tmp_path / "store.duckdb"):
        pass
    done = annotq(tmp_path / "store.duckdb", command)
    assert done.exit_code == 0
    assert "annotq ingest DIR" in done.stderr


def test_ranks_that_only_registered_are_not_told_to_load_a_job(tmp_path: Path) -> None:
    path = small_store(tmp_path / "store.duckdb")
    with Store(path) as store:
        # As ranks look before their first profiler window.
        store.connection.execute(
            """INSERT INTO process (process_id, job, attempt, rank, host, process_key, start_ns)
            SELECT 900 + range, 'live', 0, range, 'node-a', concat('key', range), 1 FROM range(2)"""
        )
    result = annotq(path, "ranks", "--job", "live")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    assert "2 ranks of live registered, no profiler window yet" in result.stderr
    assert "No such rank: 9." in annotq(path, "ranks", "--job", "live", "--rank", "9").stderr


def test_status_counts_traces_and_repeats_the_problems(tmp_path: Path) -> None:
    path = small_store(tmp_path / "store.duckdb", note="3 events were cut off.")
    found = {(row["topic"], row["item"]): row["value"] for row in rows(path, "status")}
    assert found["store", "file"] == str(path)
    assert found["store", "size_bytes"] == str(path.stat().st_size)
    assert found["store", "schema_version"] == str(SCHEMA_VERSION)
    assert found["traces", "partial"] == "2"
    assert found["problem", "rank1.json"] == "3 events were cut off."
    assert found["job", "tiny"] == "attempt 0: 2 of 2 ranks, 2 traces, 2 steps, 12 GPU events"


def test_views_need_no_store(tmp_path: Path) -> None:
    found = rows(tmp_path / "none.duckdb", "views")
    assert {"kernels", "regions", "collectives", "coverage"} <= {row["view"] for row in found}
    assert not any(row["view"].startswith("_") for row in found)


def test_a_view_is_explained_column_by_column(store: Path) -> None:
    columns = rows(store, "views", "regions")
    assert [row["name"] for row in columns] == list(rows(store, "query", "SELECT * FROM regions")[0])
    assert next(row for row in columns if row["name"] == "median_ns")["unit"] == "ns"
    text = annotq(store, "views", "regions", "--format", "table").stdout
    assert text.startswith("regions: ")
    assert "How to read it: " in text


def test_a_view_that_does_not_exist_is_answered_with_those_that_do(store: Path) -> None:
    done = annotq(store, "views", "kernel")
    assert done.exit_code == 1
    assert "There is no view kernel" in done.stderr
    assert "kernels" in done.stderr
