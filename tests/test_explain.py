"""The numbers behind a finding: its steps, then the kernels of one of them beside those of a usual rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import DATA, load
from simulated_causes import Cause
from simulated_job import Plan, simulate
from simulated_layout import LAYOUTS
from simulated_store import simulated_store
from synthetic import store_of, synthetic_job
from typer.testing import CliRunner, Result

from annotq.cli.main import app

SLOW = synthetic_job(3, 4, 20, slow={(2, "layers.1.mlp"): 1.6})


def explain(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments, "--db", str(store)], catch_exceptions=False)


def rows(store: Path, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(explain(store, *arguments, "--format", "json").stdout)
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_of(tmp_path_factory.mktemp("explain") / "store.duckdb", SLOW)


def test_every_step_of_a_finding_is_shown_with_the_numbers_that_were_measured(store: Path) -> None:
    found = rows(store, "1")
    times = SLOW.durations_ns[:, :, SLOW.nodes_of("layers.1.mlp")].sum(axis=2)
    assert [row["step"] for row in found] == list(range(20))
    assert [row["time_ns"] for row in found] == times[2].tolist()
    assert [row["median_ns"] for row in found] == np.rint(np.median(times, axis=0)).astype(int).tolist()
    assert {(row["rank"], row["place"], row["ranks"]) for row in found} == {(2, 1, 4)}


def test_the_kernels_of_the_worst_step_stand_beside_those_of_the_rank_in_the_middle(store: Path) -> None:
    times = SLOW.durations_ns[:, :, SLOW.nodes_of("layers.1.mlp")].sum(axis=2)
    median = np.median(times, axis=0)
    worst = int(np.argmax(times[2] - np.rint(median)))
    usual = min(
        (rank for rank in range(4) if rank != 2), key=lambda rank: (abs(times[rank, worst] - median[worst]), rank)
    )
    found = rows(store, "1", "--kernels")
    assert {(row["phase"], row["node_index"], row["duration_ns"], row["usual_rank_ns"]) for row in found} == {
        (SLOW.nodes[node][1], node, SLOW.durations_ns[2, worst, node], SLOW.durations_ns[usual, worst, node])
        for node in SLOW.nodes_of("layers.1.mlp")
    }
    assert f"kernels of step {worst} on rank 2, beside rank {usual}" in explain(store, "1", "--kernels").stderr


def test_another_step_can_be_looked_into(store: Path) -> None:
    found = rows(store, "1", "--kernels", "--step", "7")
    assert {row["duration_ns"] for row in found} == set(SLOW.durations_ns[2, 7, SLOW.nodes_of("layers.1.mlp")].tolist())
    refused = explain(store, "1", "--step", "99")
    assert (refused.exit_code, refused.stderr.splitlines()[0]) == (2, "error: Step 99 is none of those compared.")


def test_the_sql_that_is_shown_gives_the_same_rows(store: Path) -> None:
    head, *shown = explain(store, "1", "--show-sql").stdout.split("\n\n-- ")
    assert head == "-- 2 statements; annotq query runs one at a time."
    query = ["query", "-", "--db", str(store), "--format", "json"]
    asked = [CliRunner().invoke(app, query, input=f"-- {sql}").stdout for sql in shown]
    assert json.loads(asked[0]) == rows(store, "1")
    assert json.loads(asked[1]) == rows(store, "1", "--kernels")


def test_a_finding_that_is_not_there_is_answered_with_how_many_there_are(store: Path) -> None:
    done = explain(store, "2")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "error: job0 has no finding 2: there is one.\n  See them: annotq stragglers --job job0\n"


def test_text_holds_the_sentence_and_both_tables(store: Path) -> None:
    text = explain(store, "1", "--format", "markdown").stdout
    assert text.startswith("Rank 2 (host node-a) is slow in layers.1.mlp")
    assert "| step | rank |" in text and "| region | phase |" in text


def test_a_rank_with_another_graph_shows_the_kernels_that_the_others_do_not_have(tmp_path: Path) -> None:
    # slow4: rank 2 computes each MLP four times.
    load(tmp_path / "store.duckdb", DATA / "slow4")
    found = rows(tmp_path / "store.duckdb", "1", "--kernels", "--step", "4")
    alone = [row for row in found if row["usual_rank_ns"] is None]
    beside = [row for row in found if row["usual_rank_ns"] is not None and row["duration_ns"] is not None]
    assert len(beside) > 0 and len(alone) > 2 * len(beside)
    assert np.median([row["ratio"] for row in beside]) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("cause", "column"),
    [
        (Cause("slow_gpu", 0.3, (3,)), "node_index"),
        (Cause("late_launch", 0.3, (3,)), "launch_gap_ns"),
        (Cause("slow_link", 1.0, (3,)), "transfer_ns"),
    ],
)
def test_every_cause_has_its_own_numbers(tmp_path: Path, cause: Cause, column: str) -> None:
    job = simulate(Plan(seed=2, layout=LAYOUTS[8], steps=20, causes=(cause,)))
    path = simulated_store(tmp_path / "store.duckdb", job=job)
    found = rows(path, "1")
    assert {row["rank"] for row in found} >= {3}
    worse = [row["ratio"] for row in found if row["rank"] == 3]
    assert np.median(worse) > 1.1
    assert column in rows(path, "1", "--kernels")[0]
