"""`annotq stragglers`: its formats, the gate for scripts, and the SQL behind it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulated_causes import Cause
from simulated_job import Plan, simulate
from simulated_layout import LAYOUTS
from simulated_store import simulated_store
from typer.testing import CliRunner, Result

from annotq.cli.main import app


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    jobs = {
        "fine": (),
        "slow": (Cause("slow_gpu", 0.5, (2,)), Cause("late_launch", 0.5, (1,))),
        "over": (Cause("slow_gpu", 0.5, (2,), end=8),),
    }
    plans = {name: simulate(Plan(1, LAYOUTS[4], 20, causes=causes)) for name, causes in jobs.items()}
    return simulated_store(tmp_path_factory.mktemp("stragglers") / "store.duckdb", **plans)


def annotq(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments], env={"ANNOTQ_DB": str(store)}, catch_exceptions=False)


@pytest.mark.parametrize(
    ("job", "limit", "code"),
    [("fine", "1.15", 0), ("slow", "1.15", 3), ("slow", "2.5", 0), ("over", "1.15", 0)],
)
def test_fail_over_exits_with_3_for_a_larger_finding_that_still_holds(
    store: Path, job: str, limit: str, code: int
) -> None:
    done = annotq(store, "stragglers", "--job", job, "--fail-over", limit, "--format", "json")
    assert done.exit_code == code
    assert json.loads(done.stdout)["job"] == job  # the report comes either way
    assert ("over 1.15" in done.stderr) == (code == 3)


def test_findings_with_and_without_regions_are_rows(store: Path) -> None:
    done = annotq(store, "stragglers", "--job", "slow", "--format", "jsonl")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    late = [row for row in rows if row["cause"] == "late_launch"]
    slow = [row for row in rows if row["cause"] == "slow_gpu"]
    assert [(row["rank"], row["region"]) for row in late] == [(1, None)]
    assert {row["rank"] for row in slow} == {2} and all(row["region"] for row in slow)


def test_an_effect_that_is_over_says_when_it_ended(store: Path) -> None:
    answer = json.loads(annotq(store, "stragglers", "--job", "over", "--format", "json").stdout)
    (finding,) = answer["findings"]
    assert (finding["holds_at_end"], finding["since_step"]) == (False, None)
    assert finding["explanation"].endswith(f", until step {finding['until_step']}.")
    assert 0 < finding["relative_score"] < 1 and finding["individual_score"] == pytest.approx(1, abs=0.05)


def test_every_query_of_the_report_is_shown_and_runs(store: Path) -> None:
    shown = annotq(store, "stragglers", "--job", "slow", "--show-sql").stdout
    head, *statements = shown.strip().split(";\n\n")
    assert head.startswith(f"-- {len(statements) + 1} statements")
    assert any("held_up" in statement or "held AS" in statement for statement in statements)  # node medians
    for statement in statements:
        assert annotq(store, "query", statement).exit_code == 0, statement
