"""`annotq top` without a screen: the table once, a line per refresh, JSON; and how it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from beating_job import MS, SECOND, BeatingJob
from collectors import Collector
from jobs import DATA, load, rows, write_job
from live_collector import ANNOTQ, LiveCollector
from spools import wait_for
from traces import annotation, step, write_trace
from typer.testing import CliRunner, Result

from annotq.cli.main import app
from annotq.cli.top import analysis
from annotq.cli.top.place import Place
from annotq.cli.top.watch import Watch
from annotq.collector.query import Limits


def top(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["top", *map(str, arguments)], catch_exceptions=False)


def once(*arguments: str | Path) -> dict[str, object]:
    done = top("--once", "--json", *arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def slow4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("slow4") / "store.duckdb"
    load(store, DATA / "slow4")
    return store


def test_once_prints_the_table_of_a_store_file(slow4: Path) -> None:
    done = top("--once", "--db", slow4)
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("slow4   step 11 ")
    assert "STRAGGLER (judged 0 s ago): Rank 2 (host vm) is slow in layers.*.mlp" in done.stdout
    # The whole sentence, whatever the width.
    assert done.stdout.replace("\n", " ").count("the others wait 16.4 ms a step for it.") == 1
    assert [int(line.split()[0]) for line in lines[-4:]] == [2, 0, 1, 3]


def test_once_as_json_is_one_object(slow4: Path) -> None:
    found = once("--db", slow4, "--sort", "rank")
    assert (found["job"], found["ranks_seen"], found["ranks_expected"], found["ranks_missing"]) == ("slow4", 4, 4, [])
    assert (found["verdict"], found["newest_step"], found["steps_per_second"]) == ("straggler", 11, None)
    window = found["newest_window"]
    assert isinstance(window, dict) and (window["first_step"], window["last_step"]) == (7, 11)
    ranks = found["ranks"]
    assert isinstance(ranks, list) and [row["rank"] for row in ranks] == [0, 1, 2, 3]
    # The steps' durations by the public view.
    durations = dict(
        rows(slow4, "SELECT rank, median(duration_ns) FROM steps WHERE step BETWEEN 7 AND 11 GROUP BY rank")
    )
    assert {row["rank"]: row["step_ns"] for row in ranks} == durations


def test_every_key_of_the_json_is_explained(slow4: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "top.md").read_text()
    _, _, schema = page.partition("## JSON")
    said = set(re.findall(r"`(\w+)`", schema))
    found = once("--db", slow4)
    window, ranks = found["newest_window"], found["ranks"]
    assert isinstance(window, dict) and isinstance(ranks, list)
    assert {*found, *window, *ranks[0]} == said


def test_ranks_and_order_are_chosen(slow4: Path) -> None:
    done = top("--once", "--db", slow4, "--rank", "1-2", "--rank", "3", "--sort", "wait", "--reverse")
    # Who waits least is who is waited for.
    assert [int(line.split()[0]) for line in done.stdout.splitlines()[-3:]] == [2, 3, 1]
    assert top("--once", "--db", slow4, "--rank", "two").exit_code == 2


def test_show_sql_prints_statements_that_query_runs(slow4: Path) -> None:
    done = top("--db", slow4, "--show-sql")
    statements = [part for part in re.split(r";\n*", done.stdout) if "SELECT" in part]
    assert len(statements) == 4
    answers = [rows(slow4, statement) for statement in statements]
    assert [len(answer) for answer in answers] == [1, 4, 1, 4]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--endpoint", "127.0.0.1:1"], 4, "cannot be reached"),
        (["--endpoint", "nowhere"], 2, "nowhere"),
        (["--db", "missing.duckdb"], 1, "There is no store at missing.duckdb"),
        (["--db", "STORE", "--job", "other"], 1, "The jobs are: slow4."),
        (["--interval", "0"], 2, "--interval"),
    ],
)
def test_once_ends_with_the_code_of_what_is_wrong(slow4: Path, arguments: list[str], code: int, said: str) -> None:
    done = top("--once", *[str(slow4) if word == "STORE" else word for word in arguments])
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr


def test_an_empty_store_has_no_job_yet(tmp_path: Path) -> None:
    with Collector(tmp_path / "store.duckdb") as collector:
        done = top("--once", "--endpoint", collector.address)
    assert done.exit_code == 1
    assert f"There is no job in {collector.address} yet." in done.stderr


def test_before_the_first_window_there_are_the_beats(tmp_path: Path) -> None:
    with Collector(tmp_path / "store.duckdb") as collector:
        job = BeatingJob(collector, tmp_path, ranks=3, world_size=4)
        job.beat({0: 8, 1: 9, 2: 9}, {0: 100 * MS, 1: 100 * MS, 2: 150 * MS}, {0: 70 * SECOND})
        job.end(2, "gone")
        wait_for(lambda: collector.ask("SELECT count(*) FROM heartbeat") == [(3,)])
        found = once("--endpoint", collector.address, "--sort", "rank")
        done = top("--once", "--endpoint", collector.address, "--sort", "age")
    assert (found["ranks_missing"], found["newest_step"], found["newest_window"]) == ([3], 9, None)
    assert (found["verdict"], found["clock_error_ns"], found["steps_per_second"]) == (None, None, 10)
    assert found["states"] == {"running": 1, "silent": 1, "gone": 1}
    ranks = found["ranks"]
    assert isinstance(ranks, list)
    shown = [(row["rank"], row["state"], row["step"], row["step_ns"], row["step_ratio"], row["ratio"]) for row in ranks]
    assert shown == [
        (0, "silent", 8, 100 * MS, 1, None),
        (1, "running", 9, 100 * MS, 1, None),
        (2, "gone", 9, 150 * MS, 1.5, None),
    ]
    assert 70 * SECOND <= ranks[0]["age_ns"] < 170 * SECOND
    assert "no profiler window yet" in done.stdout
    assert done.stdout.splitlines()[-3].split()[:4] == ["0", "silent", "8", "100"]


def test_a_job_on_cpus_has_steps_and_no_verdict(tmp_path: Path) -> None:
    for rank in range(2):
        events = [
            event
            for number in range(3)
            for event in (step(number, 1000 + 100 * number, 90), annotation("mlp", 1010, 9))
        ]
        write_trace(tmp_path / f"rank{rank}.json", events, rank=rank, world_size=2)
    load(tmp_path / "store.duckdb", tmp_path, job="cpu")
    done = top("--once", "--db", tmp_path / "store.duckdb")
    assert done.exit_code == 0
    assert "newest window: steps 0-2, no GPU work in it" in done.stdout
    assert "No verdict: there is no GPU work to compare" in done.stdout.replace("\n", " ")


def test_a_job_too_large_to_judge_again_and_again_shows_who_is_behind(
    slow4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "MOST_EVENTS", 1000)
    said = " ".join(top("--once", "--db", slow4).stdout.split())
    assert "Most time is lost by rank 2: 1.55 ms a step of the newest window" in said
    assert "GPU events are too many to judge again and again; annotq stragglers does it once." in said
    assert once("--db", slow4)["verdict"] is None


def test_the_latest_attempt_is_shown_and_the_liveliest_job(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    load(store, write_job(tmp_path / "first", {0: [[10.0]], 1: [[10.0]]}, ["mlp"]), job="again")
    load(store, write_job(tmp_path / "second", {0: [[10.0]] * 3}, ["mlp"]), job="again", attempt=1)
    load(store, DATA / "control4")  # recorded later
    assert once("--db", store)["job"] == "control4"
    found = once("--db", store, "--job", "again")
    assert (found["attempt"], found["ranks_seen"], found["newest_step"]) == (1, 1, 2)


def test_of_an_earlier_attempt_nothing_is_shown(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    load(store, write_job(tmp_path / "first", {0: [[10.0]] * 3, 1: [[30.0]] * 3}, ["mlp"]), job="again")
    with Place(store, Limits()) as place:
        watch = Watch(place, None)
        first = watch.look(wait=True)
        load(store, write_job(tmp_path / "second", {0: [[10.0]] * 3}, ["mlp"]), job="again", attempt=1)
        second = watch.look(wait=False)
    assert first.totals is not None and first.ranks[1].ratio == 1.5
    assert (second.attempt, len(second.ranks), second.ranks[0].ratio) == (1, 1, None)
    assert second.judgement is not first.judgement


@contextmanager
def running(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """`annotq top` writing into pipes."""
    command = [*ANNOTQ, "top", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_line_per_refresh_without_a_terminal(slow4: Path) -> None:
    with running("--db", slow4, "--interval", "0.2") as process:
        first, second = line_of(process), line_of(process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (130, "interrupted\n")
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d slow4 step 11, - steps/s, ranks 4/4 \| worst: rank 2 \+1\.55 ms a step, layers\.\d\.mlp \w+ 3\.\d\dx, .*"
        r" \| STRAGGLER\n",
        first,
    )
    assert first[8:] == second[8:]


def test_a_json_object_per_line(tmp_path: Path) -> None:
    with Collector(tmp_path / "store.duckdb") as collector:
        job = BeatingJob(collector, tmp_path, ranks=2, world_size=2)
        with running("--endpoint", collector.address, "--json", "--interval", "0.2") as process:
            first = json.loads(line_of(process))
            for rank in range(2):
                job.window(rank, 0, 4, (100, 100 + 100 * rank, 50))
            deadline = time.monotonic() + 30
            last = first
            while last["windows"] < 2 or last["newest_window"]["ranks"] < 2:
                assert time.monotonic() < deadline
                last = json.loads(line_of(process))
    assert (first["newest_window"], first["windows"]) == (None, 0)
    assert (last["newest_window"]["first_step"], last["newest_window"]["last_step"]) == (0, 3)


def test_a_reader_that_has_seen_enough_is_no_failure(slow4: Path) -> None:
    with running("--db", slow4, "--interval", "0.2") as process:
        line_of(process)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr.read() == ""


def test_lines_go_on_after_the_collector_was_away(tmp_path: Path) -> None:
    load(tmp_path / "store.duckdb", DATA / "slow4")
    with (
        LiveCollector(tmp_path / "store.duckdb") as collector,
        running("--endpoint", collector.endpoint, "--interval", "0.2") as process,
    ):
        before = line_of(process)
        collector.kill()
        assert process.stderr is not None
        assert "cannot be reached" in process.stderr.readline()
        collector.start()
        assert "answers again" in process.stderr.readline()
        # Lines from before the end may still be in the pipe; this one is of after it.
        assert line_of(process)[8:] == before[8:]


def test_what_would_steer_the_terminal_is_not_printed(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", {0: [[10.0]] * 3, 1: [[20.0]] * 3}, ["mlp\x1b[2J"])
    load(tmp_path / "store.duckdb", job, job="evil\x1b]0;name\x07")
    done = top("--once", "--db", tmp_path / "store.duckdb")
    assert "\x1b" not in done.stdout and "\x07" not in done.stdout
    assert "mlp?[2J fwd" in done.stdout
