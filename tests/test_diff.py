"""What changed from one job to another: known differences are found with their size, noise is not, and gates do not flap."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
from synthetic import Job, store_of, synthetic_job
from typer.testing import CliRunner, Result

from annotq.agent.errors import AnnotqError
from annotq.cli.main import app
from annotq.collector.diff_sides import Side, read_side
from annotq.collector.query import Door
from annotq.collector.shift import inflation_of, shift

NAMES = ["embed", "attn", "mlp", "head"]


@pytest.fixture(autouse=True)
def steps_of_20_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    """About 8 ms of which are work."""
    monkeypatch.setattr(synthetic, "STEP_NS", 20_000_000)


def job(seed: int, slow: dict[str, float] | None = None, ranks: int = 4, steps: int = 20, **changed: Any) -> Job:
    """Usual times are the same for every seed; `slow`: factor by which all ranks' kernels of a region last longer."""
    base = synthetic_job(0, ranks, steps, NAMES).durations_ns.mean(axis=(0, 1))
    noise = np.random.default_rng(1000 + seed).normal(scale=0.05, size=(ranks, steps, len(base)))
    made = synthetic_job(0, ranks, steps, NAMES)
    factor = np.array([(slow or {}).get(region, 1.0) for region, _ in made.nodes])
    durations = np.maximum(1, np.rint(base * factor * np.exp(noise))).astype(np.int64)
    return replace(made, durations_ns=durations, **changed)


def diff(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["diff", *arguments, "--db", str(store)], catch_exceptions=False)


def rows(store: Path, *arguments: str) -> list[dict[str, Any]]:
    done = diff(store, *arguments, "--format", "json")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_the_region_that_got_slower_is_first_with_its_size_and_an_interval_around_it(tmp_path: Path) -> None:
    before, now = job(1), job(2, {"mlp": 1.2})
    found = rows(store_of(tmp_path / "store.duckdb", before, now), "job0", "job1")
    assert found[0]["part"] == "step"
    slower = [row for row in found if row["change"] == "slower" and row["part"] == "compute"]
    assert {row["region"] for row in slower} == {"mlp"}
    assert {(row["region"], row["phase"]) for row in found[1:3]} == {("mlp", "forward"), ("mlp", "backward")}
    for row in slower:
        truth = 0.2 * row["a_ns"]
        assert row["low_ns"] <= truth <= row["high_ns"]
        assert row["ratio"] == pytest.approx(1.2, abs=0.04)
    assert all(row["change"] == "same" for row in found if row["region"] in ("embed", "attn", "head"))


def test_the_other_way_round_it_is_faster(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store.duckdb", job(1), job(2, {"mlp": 1.2}))
    assert {row["region"] for row in rows(store, "job1", "job0") if row["change"] == "faster"} == {"mlp"}


def test_new_and_vanished_regions_are_listed_with_their_time(tmp_path: Path) -> None:
    renamed = job(2)
    renamed = replace(
        renamed, nodes=tuple(("norm" if name == "embed" else name, phase) for name, phase in renamed.nodes)
    )
    found = rows(store_of(tmp_path / "store.duckdb", job(1), renamed), "job0", "job1")
    changed = {(row["region"], row["change"]): row for row in found if row["change"] in ("new", "vanished")}
    assert set(changed) == {("embed", "vanished"), ("norm", "new")}
    assert changed["norm", "new"]["difference_ns"] == changed["norm", "new"]["b_ns"] > 0
    assert changed["embed", "vanished"]["difference_ns"] == -changed["embed", "vanished"]["a_ns"] < 0


def test_a_region_that_only_one_rank_got_slower_in_is_told_from_one_that_all_did(tmp_path: Path) -> None:
    before, now = job(1), job(2)
    durations = now.durations_ns.copy()
    durations[3][:, now.nodes_of("attn")] *= 2
    found = rows(store_of(tmp_path / "store.duckdb", before, replace(now, durations_ns=durations)), "job0", "job1")
    assert {row["region"] for row in found if row["change"] == "slower on some ranks"} == {"attn"}


def test_windows_of_one_job_are_compared_by_their_steps(tmp_path: Path) -> None:
    one = job(1, steps=40)
    durations = one.durations_ns.copy()
    durations[:, 20:, one.nodes_of("head")] *= 3
    store = store_of(tmp_path / "store.duckdb", replace(one, durations_ns=durations))
    found = rows(store, "job0@0:0-19", "job0@0:20-39")
    assert {row["region"] for row in found if row["change"] == "slower" and row["part"] == "compute"} == {"head"}
    assert {(row["steps_a"], row["steps_b"]) for row in found if row["part"] == "compute"} == {(20, 20)}
    assert {row["change"] for row in rows(store, "job0:0-9", "job0:10-19") if row["part"] == "compute"} == {"same"}


def test_too_few_steps_give_no_interval_and_never_fail_a_gate(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store.duckdb", job(1, steps=3), job(2, {"mlp": 3.0}, steps=3))
    assert {row["change"] for row in rows(store, "job0", "job1")} == {"unsure"}
    assert diff(store, "job0", "job1", "--fail-over", "5%").exit_code == 0


@pytest.mark.parametrize(
    ("factor", "limit", "code"), [(1.3, "5%", 3), (1.3, "50%", 0), (1.02, "5%", 0), (0.7, "5%", 0)]
)
def test_the_gate_fails_for_what_is_certainly_over_the_limit(
    tmp_path: Path, factor: float, limit: str, code: int
) -> None:
    store = store_of(tmp_path / "store.duckdb", job(1), job(2, {"mlp": factor}))
    done = diff(store, "job0", "job1", "--fail-over", limit)
    assert done.exit_code == code
    assert ("compute mlp backward got slower by" in done.stderr) == (code == 3)


def test_a_region_below_a_hundredth_of_the_step_does_not_fail_the_gate(tmp_path: Path) -> None:
    def small(seed: int, factor: float) -> Job:
        made = job(seed)
        durations = made.durations_ns.copy()
        durations[:, :, made.nodes_of("embed")] = np.rint(
            durations[:, :, made.nodes_of("embed")] / 1_000 * factor
        ).astype(np.int64)
        return replace(made, durations_ns=durations)

    store = store_of(tmp_path / "store.duckdb", small(1, 1), small(2, 2))
    assert {row["region"] for row in rows(store, "job0", "job1") if row["change"] == "slower"} == {"embed"}
    assert diff(store, "job0", "job1", "--fail-over", "5%").exit_code == 0


def test_the_gate_does_not_flap_on_noise(tmp_path: Path) -> None:
    # 40 pairs of equal runs, 5 % noise, 10 steps: none is called over 5 %.
    jobs = [job(seed, steps=10) for seed in range(20)]
    store = store_of(tmp_path / "store.duckdb", *jobs)
    codes = [diff(store, f"job{one}", f"job{one + 1}", "--fail-over", "5%").exit_code for one in range(19)]
    assert codes == [0] * 19


def test_nodes_are_paired_where_the_graphs_are_the_same(tmp_path: Path) -> None:
    from annotq.collector.store import Store

    store = store_of(tmp_path / "store.duckdb", job(1), job(2, {"mlp": 1.5}))
    with Store(store) as opened:
        opened.connection.execute("UPDATE graph SET fingerprint = 'same'")
    found = rows(store, "job0", "job1", "--nodes")
    slower = {row["node_index"] for row in found if row["change"] == "slower"}
    assert slower == {2, 6}  # mlp forward and backward among eight nodes
    assert len(found) == 8 and {row["name"] for row in found} == {"gemm"}


def test_both_coverages_and_the_step_are_said(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store.duckdb", job(1), job(2, {"mlp": 1.5}))
    done = diff(store, "job0", "job1", "--format", "table")
    assert done.stdout.startswith("job0@0 -> job1@0: a step took ")
    assert "coverage of job0@0: 4 of 4 ranks" in done.stderr and "coverage of job1@0: 4 of 4 ranks" in done.stderr


@pytest.mark.parametrize(
    ("text", "side"),
    [
        ("job0", Side("job0", 0, None)),
        ("job0@0", Side("job0", 0, None)),
        ("job0@0:3-9", Side("job0", 0, ((3, 9),))),
        ("job0:3-9,20", Side("job0", 0, ((3, 9), (20, 20)))),
    ],
)
def test_sides_are_read(tmp_path: Path, text: str, side: Side) -> None:
    with Door(store_of(tmp_path / "store.duckdb", job(1, steps=2))) as door:
        assert read_side(lambda sql, values: door.ask(sql, values).table, text) == side


@pytest.mark.parametrize(
    ("text", "says"), [("job9", "no job job9"), ("job0@4", "no attempt 4"), ("job0:9-3", "9-3 is no range")]
)
def test_a_side_that_is_not_there_is_named(tmp_path: Path, text: str, says: str) -> None:
    with Door(store_of(tmp_path / "store.duckdb", job(1, steps=2))) as door, pytest.raises(AnnotqError, match=says):
        read_side(lambda sql, values: door.ask(sql, values).table, text)


def test_a_window_without_a_step_is_named_and_nothing_is_called_new(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store.duckdb", job(1))
    last = rows(store, "job0", "job0")[0]["steps_a"]  # the simulator's steps follow each other
    done = diff(store, f"job0:{10**6}-{10**6 + 9}", "job0")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"job0@0:{10**6}-{10**6 + 9} holds no step." in done.stderr
    assert last > 1 and "The steps of job0@0 are " in done.stderr


@pytest.mark.parametrize(("steps", "carried"), [(6, 0.0), (12, 0.0), (50, 0.0), (20, 0.4), (50, 0.6)])
def test_the_interval_holds_the_true_shift_as_often_as_it_says(steps: int, carried: float) -> None:
    # carried: how much of a step's noise the next one keeps.
    random = np.random.default_rng(steps)

    def series(count: int) -> np.ndarray:
        noise = random.normal(size=(count, steps))
        for step in range(1, steps):
            noise[:, step] = carried * noise[:, step - 1] + np.sqrt(1 - carried**2) * noise[:, step]
        return np.exp(0.05 * noise)

    held = []
    for _ in range(100):
        a, b = series(20), 1.1 * series(20)
        inflation = max(inflation_of(a), inflation_of(b))
        for one, other in zip(a, b, strict=True):
            found = shift(one, other, inflation)
            if found.low is not None and found.high is not None:
                held.append(found.low <= 0.1 <= found.high)
    assert len(held) > 1_000
    # Of 6 steps only the whole range is left, which holds nearly always.
    assert 0.92 <= np.mean(held) <= (1 if steps == 6 else 0.99)


@pytest.mark.parametrize(("options", "statements"), [([], 8), (["--nodes"], 2)])
def test_every_statement_that_is_shown_runs(tmp_path: Path, options: list[str], statements: int) -> None:
    store = store_of(tmp_path / "store.duckdb", job(1, steps=6), job(2, steps=6))
    head, *shown = diff(store, "job0", "job1", *options, "--show-sql").stdout.split("\n\n-- ")
    assert head == f"-- {statements} statements; annotq query runs one at a time." and len(shown) == statements
    for sql in shown:
        done = CliRunner().invoke(app, ["query", "-", "--db", str(store), "--format", "json"], input=f"-- {sql}")
        assert done.exit_code == 0, done.stderr
