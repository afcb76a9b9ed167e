"""The program around the commands: quick help, errors as sentences, exit codes, pipes, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_store import small_store

PROGRAM = (sys.executable, "-c", "from annotq.cli.main import main; main()")

ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE (a.range * b.range) % 7 = 3"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("program") / "store.duckdb")


def annotq(*arguments: str | Path, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environment}
    return subprocess.run([*PROGRAM, *arguments], input=stdin, env=environment, capture_output=True, text=True)


def test_help_loads_nothing_heavy() -> None:
    heavy = {"duckdb", "pyarrow", "grpc", "numpy", "rich", "msgspec"}
    code = (
        "import sys; from annotq.cli.main import app\n"
        "app(['--help'], standalone_mode=False)\n"
        f"print('loaded:', *sorted({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: " in done.stdout
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_version() -> None:
    done = annotq("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "annotq")


def test_every_command_is_listed_with_a_whole_sentence() -> None:
    commands = annotq("--help", COLUMNS="80").stdout.partition("Commands:")[2]
    listed = {line.split()[0]: line for line in commands.splitlines() if line.startswith("  ") and line.strip()}
    for name in ("query", "views", "jobs", "ranks", "regions", "collectives", "status"):
        assert listed[name].endswith("."), listed[name]
        assert not listed[name].endswith("..."), listed[name]


@pytest.mark.parametrize(
    "arguments",
    [["bogus"], ["query", "--bogus"], ["regions", "--sort", "luck"], ["query", "SELECT 1", "--limit", "0"], ["query"]],
)
def test_a_wrong_call_is_a_usage_error(arguments: list[str], store: Path) -> None:
    done = annotq(*arguments, ANNOTQ_DB=str(store))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


def test_an_error_is_a_sentence_and_the_next_command(tmp_path: Path) -> None:
    done = annotq("jobs", "--db", tmp_path / "none.duckdb")
    assert (done.returncode, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first == f"error: There is no store at {tmp_path / 'none.duckdb'}."
    assert second.startswith("  Make one: annotq ingest DIR")


def test_the_default_store_lies_in_the_data_folder(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ANNOTQ_DB"}
    environment["XDG_DATA_HOME"] = str(tmp_path)
    done = subprocess.run([*PROGRAM, "jobs"], env=environment, capture_output=True, text=True)
    assert str(tmp_path / "annotq" / "annotq.duckdb") in done.stderr


def test_sql_comes_from_an_argument_from_stdin_or_from_a_file(store: Path, tmp_path: Path) -> None:
    (tmp_path / "question.sql").write_text("SELECT 1 AS one -- é\n")
    answers = [
        annotq("query", "SELECT 1 AS one", "--db", store),
        annotq("query", "-", "--db", store, stdin="SELECT 1 AS one"),
        annotq("query", "-f", tmp_path / "question.sql", "--db", store),
    ]
    assert [(done.returncode, done.stdout, done.stderr) for done in answers] == [(0, "one\n1\n", "")] * 3


def test_two_sources_of_sql_are_a_usage_error(store: Path) -> None:
    assert annotq("query", "SELECT 1", "-f", "question.sql", "--db", store).returncode == 2


def test_mistakes_in_sql_keep_the_place(store: Path) -> None:
    done = annotq("query", "SELECT sum(rank FROM kernels", "--db", store)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == ["  SELECT sum(rank FROM kernels", "                  ^^^^"]


def test_cut_rows_are_told_and_how_to_get_more(store: Path) -> None:
    done = annotq("query", "SELECT * FROM range(1000000000)", "--limit", "3", "--db", store)
    assert (done.returncode, done.stdout) == (0, "range\n0\n1\n2\n")
    assert done.stderr == "More than 3 rows; these are 3 of them. Raise --limit to see more.\n"


def test_a_query_out_of_time_fails(store: Path) -> None:
    done = annotq("query", ENDLESS, "--timeout", "0.2", "--db", store)
    assert done.returncode == 1
    assert "stopped after 0.2 s" in done.stderr


def test_a_plan_is_drawn_and_not_escaped(store: Path) -> None:
    done = annotq("query", "EXPLAIN SELECT 1", "--db", store)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) > 3


def test_a_reader_that_has_seen_enough_is_no_error(store: Path) -> None:
    call = [*PROGRAM, "query", "SELECT * FROM range(300000)", "--limit", "300000", "--db", str(store)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.readline() == b"range\n"
        running.stdout.close()
        said = running.stderr.read()
    assert (running.returncode, said) == (0, b"")


@pytest.mark.parametrize("busy_seconds", [0, 1])
def test_ctrl_c_stops_a_busy_query(store: Path, busy_seconds: float) -> None:
    code = (
        "import sys, threading\n"
        "from annotq.collector.query import Door\n"
        "ask = Door.ask\n"
        "def told(*arguments, **named):\n"
        "    print('asked', flush=True)\n"
        "    return ask(*arguments, **named)\n"
        "Door.ask = told\n"
        "from annotq.cli.main import main; main()"
    )
    call = [sys.executable, "-c", code, "query", ENDLESS, "--db", str(store)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.readline() == b"asked\n"
        time.sleep(busy_seconds)
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
    assert (running.returncode, said) == (130, b"interrupted\n")
