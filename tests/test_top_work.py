"""The numbers of the newest window in `annotq top` are those of the public views, cut to its steps."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from jobs import DATA, load, write_job
from simulated_causes import Cause, slow_layers
from simulated_events import FIRST_STEP
from simulated_job import HostClocks, Plan, simulate
from simulated_layout import Layout
from simulated_program import Workload
from simulated_store import simulated_store

from annotq.cli.statement import Statement
from annotq.cli.top.window import Window, newest_window
from annotq.cli.top.work_sql import bounds_statement, work_statement
from annotq.collector.query import Door, Limits

LAYOUT = Layout(dp=4, tp=2, pp=2)
HOSTS = Layout(dp=4, tp=2, pp=2, ranks_per_host=4)
PLANS = {
    "one host": Plan(seed=3, layout=LAYOUT, causes=(Cause("slow_region", 0.3, (5,), slow_layers(LAYOUT, 0, 2)),)),
    "hosts, overlap": Plan(
        seed=4,
        layout=HOSTS,
        workload=Workload(overlap=True, eager=True),
        clocks=HostClocks(2_000_000, 3_000, error_ns=2_000),
    ),
    "sharded, clocks not known": Plan(
        seed=5, layout=HOSTS, workload=Workload(reduce="sharded"), clocks=HostClocks(2_000_000, known=False)
    ),
    "a rank without two steps": Plan(seed=6, layout=LAYOUT, missing={3: (18, 19)}),
}


def ask(store: Path, statement: Statement) -> list[dict[str, Any]]:
    with Door(store, Limits(rows=1_000_000)) as door:
        return door.ask(statement.sql, statement.parameters).table.to_pylist()


def work(store: Path, window: Window) -> dict[int, dict[str, Any]]:
    (bounds,) = ask(store, bounds_statement(window))
    return {row["rank"]: row for row in ask(store, work_statement(window, bounds["start_ns"], bounds["end_ns"]))}


def of_view(store: Path, columns: str, view: str, window: Window) -> list[dict[str, Any]]:
    sql = f"SELECT {columns} FROM {view} WHERE job = ? AND attempt = ? AND step BETWEEN ? AND ?"
    return ask(store, Statement(sql, (window.job, window.attempt, window.first_step, window.last_step)))


def expected_regions(store: Path, window: Window) -> dict[int, tuple[str, str, float, float]]:
    """By rank: the region and phase where it loses most, the ratio there, and what it loses in all; by brute force."""
    times: dict[tuple[str, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in of_view(store, "rank, region, phase, compute_ns", "_region_steps", window):
        times[row["region"], row["phase"]][row["rank"]].append(row["compute_ns"])
    lost: dict[int, list[tuple[float, float, str, str]]] = defaultdict(list)
    for (region, phase), by_rank in times.items():
        own = {rank: median(steps) for rank, steps in by_rank.items()}
        if len(own) > 1:
            usual = median(own.values())
            for rank, time_ns in own.items():
                lost[rank].append((time_ns - usual, time_ns / usual, region, phase))
    return {
        rank: (max(rows)[2], max(rows)[3], max(rows)[1], sum(row[0] for row in rows)) for rank, rows in lost.items()
    }


def expected_shares(store: Path, window: Window) -> dict[int, float | None]:
    """By rank: time in waits, those at once counted once, over the time of the steps in which a collective was judged."""
    waits: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    columns = """rank, step, arrive_ns, arrive_ns + CASE method WHEN 'clock' THEN least(wait_clock_ns, duration_ns)
                 WHEN 'duration' THEN wait_duration_ns END AS until_ns"""
    for row in of_view(store, columns, "_collective_waits", window):
        if row["until_ns"] is not None:
            waits[row["rank"], row["step"]].append((row["arrive_ns"], row["until_ns"]))
    waited: dict[int, int] = defaultdict(int)
    lasted: dict[int, int] = defaultdict(int)
    for row in of_view(store, "rank, step, duration_ns", "steps", window):
        reached = 0
        for start, end in sorted(waits.get((row["rank"], row["step"]), [])):
            waited[row["rank"]] += max(0, end - max(start, reached))
            reached = max(reached, end)
        if (row["rank"], row["step"]) in waits:
            lasted[row["rank"]] += row["duration_ns"]
    return {rank: waited[rank] / lasted[rank] for rank in lasted}


def check(store: Path, window: Window) -> None:
    found = work(store, window)
    durations: dict[int, list[int]] = defaultdict(list)
    for row in of_view(store, "rank, duration_ns", "steps", window):
        durations[row["rank"]].append(row["duration_ns"])
    assert {rank: row["steps"] for rank, row in found.items()} == {
        rank: len(steps) for rank, steps in durations.items()
    }
    # A host's drift stretches the steps of the view by some ppm, those of the window not.
    for rank, steps in durations.items():
        assert found[rank]["step_ns"] == pytest.approx(median(steps), rel=1e-5)
    regions = expected_regions(store, window)
    assert {rank: row["region"] and (row["region"], row["phase"]) for rank, row in found.items()} == {
        rank: regions[rank][:2] for rank in found
    }
    for rank, row in found.items():
        assert (row["ratio"], row["behind_ns"]) == pytest.approx(regions[rank][2:])
    shares = expected_shares(store, window)
    assert {rank: row["wait_share"] for rank, row in found.items() if row["judged"]} == pytest.approx(shares, rel=1e-4)
    (count,) = ask(
        store,
        Statement(f"""SELECT count(*) AS collectives, count(method) AS judged FROM _collective_waits
        WHERE step BETWEEN {window.first_step} AND {window.last_step}"""),
    )
    assert sum(row["judged"] for row in found.values()) == count["judged"] > 0
    assert sum(row["collectives"] for row in found.values()) == count["collectives"]


@pytest.mark.parametrize("name", PLANS)
def test_simulated_jobs(name: str, tmp_path: Path) -> None:
    store = simulated_store(tmp_path / "store.duckdb", job=simulate(PLANS[name]))
    last = FIRST_STEP + 19
    check(store, Window("job", 0, last - 4, last))
    check(store, Window("job", 0, last - 12, last - 10))


@pytest.mark.parametrize("name", ["control4", "slow4"])
def test_real_jobs(name: str, tmp_path: Path) -> None:
    load(tmp_path / "store.duckdb", DATA / name)
    check(tmp_path / "store.duckdb", Window(name, 0, 7, 11))


def test_only_graph_work_counts_as_named_or_not(tmp_path: Path) -> None:
    load(
        tmp_path / "store.duckdb",
        write_job(tmp_path / "job", {0: [[10, 20]] * 3, 1: [[10, 20]] * 3}, ["mlp", None]),
        job="j",
    )
    found = work(tmp_path / "store.duckdb", Window("j", 0, 1, 2))
    assert [(row["graph_events"], row["named"]) for row in found.values()] == [(4, 2), (4, 2)]


def test_a_region_that_one_rank_alone_has_is_not_compared(tmp_path: Path) -> None:
    load(tmp_path / "store.duckdb", write_job(tmp_path / "job", {0: [[10]] * 3}, ["mlp"]), job="j")
    found = work(tmp_path / "store.duckdb", Window("j", 0, 0, 2))
    assert [(found[0][name]) for name in ("region", "ratio", "behind_ns", "wait_share")] == [None] * 4


def test_the_newest_window_is_one_that_nearly_all_ranks_have_sent() -> None:
    assert newest_window("j", 0, []) is None
    assert newest_window("j", 0, [104] * 4) == Window("j", 0, 100, 104)
    # One of four lags: the others are compared without it only when it is one of ten or more.
    assert newest_window("j", 0, [104, 104, 104, 54]) == Window("j", 0, 50, 54)
    assert newest_window("j", 0, [104] * 19 + [54]) == Window("j", 0, 100, 104)
