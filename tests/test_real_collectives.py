"""Eager collectives of four real ranks, and a real trace without node ids: see tests/data/README.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import DATA, load, rows

STEPS = {2, 3, 4, 5, 8, 9, 10, 11}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("eager") / "store.duckdb"
    assert [outcome.problems for outcome in load(path, DATA / "eager4")] == [()] * 8
    return path


def test_every_collective_of_a_step_is_paired_by_its_sequence_number(store: Path) -> None:
    found = rows(
        store,
        """SELECT name, group_name, count(DISTINCT collective_id), count(DISTINCT step), list(DISTINCT rank ORDER BY rank)
           FROM _collective_waits WHERE method IS NOT NULL GROUP BY name, group_name ORDER BY name, group_name""",
    )
    everybody = [0, 1, 2, 3]
    assert found == [
        ("all_gather", "0", 8, 8, everybody),
        ("all_reduce", "0", 8, 8, everybody),
        ("all_reduce", "1", 8, 8, [0, 1]),
        ("all_reduce", "2", 8, 8, [2, 3]),
        ("reduce_scatter", "0", 8, 8, everybody),
    ]
    assert {
        step for (step,) in rows(store, "SELECT DISTINCT step FROM _collective_waits WHERE method IS NOT NULL")
    } == STEPS


def test_a_collective_has_one_row_per_rank_of_its_group_and_one_last_rank(store: Path) -> None:
    found = rows(
        store,
        """SELECT count(*), count(DISTINCT rank), count(DISTINCT last_rank), min(wait_ns), any_value(group_name)
           FROM collectives WHERE wait_ns IS NOT NULL GROUP BY collective_id""",
    )
    assert len(found) == 5 * 8
    for calls, ranks, last, shortest, group in found:
        assert (calls, last, shortest) == (ranks, 1, 0)
        assert ranks == (4 if group == "0" else 2)


def test_kinds_that_do_not_synchronize_have_no_wait(store: Path) -> None:
    found = rows(
        store,
        """SELECT c.name, count(*) FILTER (WHERE w.step IS NOT NULL), count(c.wait_ns), count(c.last_rank)
           FROM collectives c JOIN _collective_waits w USING (collective_id, rank, arrive_ns)
           WHERE c.name IN ('broadcast', 'all_to_all', 'send', 'recv') GROUP BY c.name ORDER BY c.name""",
    )
    assert [row[2:] for row in found] == [(0, 0)] * 4
    assert {name: calls for name, calls, *_ in found} == {"all_to_all": 32, "broadcast": 32, "recv": 16, "send": 16}


def test_work_launched_before_the_window_belongs_to_no_step(store: Path) -> None:
    found = rows(
        store, "SELECT rank, count(*) FILTER (WHERE step IS NOT NULL), count(DISTINCT step) FROM kernels GROUP BY rank"
    )
    assert {rank: steps for rank, _, steps in found} == dict.fromkeys(range(4), 8)
    in_steps = {rank: events for rank, events, _ in found}
    assert in_steps[0] == in_steps[2] == in_steps[3] == 2 * 228
    # Four more forwards of 6 kernels in each of 8 steps.
    assert in_steps[1] == in_steps[0] + 8 * 4 * 6


def test_a_real_trace_without_ids_knows_its_graph_work(tmp_path: Path) -> None:
    load(tmp_path / "store.duckdb", DATA / "torch211")
    found = rows(tmp_path / "store.duckdb", "SELECT gpu_events, graph_events, orphan, encoding FROM coverage")
    assert found == [(200, 64, 64, "absent")] * 2
    assert rows(tmp_path / "store.duckdb", "SELECT DISTINCT kernels FROM replays") == [(16,)]
