"""Where the time of a step went: hand-made steps, and the view against a clock that ticks through random ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import NCCL, load, rows
from small_store import small_store
from traces import Event, kernel, launch, step, write_trace

from annotq.collector.store import Store

# kind, start in us, duration in us, stream
Work = tuple[str, float, float, int]
PARTS = "period_ns, compute_ns, exposed_transfer_ns, wait_ns, launch_gap_ns, other_ns"
NAMES = {"compute": "gemm", "all_reduce": NCCL, "send": "ncclDevKernel_SendRecv(x)", "copy": "Memcpy HtoD"}


def store_of(folder: Path, ranks: Sequence[Sequence[Sequence[Work]]]) -> Path:
    """ranks[rank][step] is the work of a step; all of it is launched in time, on one host and in one group."""
    for rank, steps in enumerate(ranks):
        events: list[Event] = []
        for number, works in enumerate(steps):
            # The host runs ahead: all is launched before the GPU begins (at 1 ms).
            events.append(step(number, 100 + 10.0 * number, 9))
            for index, (kind, start, duration, stream) in enumerate(works):
                correlation = 100 * number + index + 1
                events.append(launch(101 + 10.0 * number + index / 10, correlation=correlation, dur_us=0.05))
                category = "gpu_memcpy" if kind == "copy" else "kernel"
                name = NAMES[kind]
                events.append(
                    kernel(name, 1000 + start, duration, correlation=correlation, stream=stream, cat=category)
                )
        write_trace(folder / f"rank{rank}.json", events, rank=rank, world_size=len(ranks), host_name="node-a")
    load(folder / "store.duckdb", folder, job="j")
    return folder / "store.duckdb"


def parts(store: Path, columns: str = PARTS) -> list[tuple[int, ...]]:
    """In us, by rank and step."""
    found = rows(store, f"SELECT {columns} FROM step_parts ORDER BY rank, step")
    return [tuple(value // 1000 for value in row) for row in found]


def test_the_first_step_begins_with_its_work_the_next_where_that_ended(tmp_path: Path) -> None:
    store = store_of(tmp_path, [[[("compute", 10, 20, 7)], [("compute", 42, 30, 7), ("compute", 75, 5, 7)]]])
    # Step 1: from 30 to 80, nothing until 42, then 30 and 5 us of computing with 3 us between them.
    assert parts(store) == [(20, 20, 0, 0, 0, 0), (50, 35, 0, 0, 12, 3)]


def test_streams_that_overlap_are_counted_once_and_communication_only_where_it_is_exposed(tmp_path: Path) -> None:
    # Two streams compute from 10 to 50. The send on a third one starts at 40: 20 us of it are exposed.
    works = [("compute", 10, 30, 7), ("compute", 20, 30, 8), ("send", 40, 30, 9)]
    store = store_of(tmp_path, [[works]])
    assert parts(store) == [(60, 40, 20, 0, 0, 0)]
    assert parts(store, "unjudged_ns") == [(20,)]


def test_the_wait_for_the_last_rank_is_taken_out_of_communication(tmp_path: Path) -> None:
    # Rank 0 arrives at 30, rank 1 at 70, both leave at 80. Rank 0 computes on another stream from 40 to 50 and copies after.
    ranks = [
        [[("compute", 10, 20, 7), ("all_reduce", 30, 50, 9), ("compute", 40, 10, 8), ("copy", 80, 5, 7)]],
        [[("compute", 10, 60, 7), ("all_reduce", 70, 10, 9)]],
    ]
    store = store_of(tmp_path, ranks)
    assert parts(store) == [(75, 30, 10, 30, 0, 5), (70, 60, 10, 0, 0, 0)]
    assert parts(store, "copy_ns, unjudged_ns") == [(5, 0), (0, 0)]


def test_steps_that_overlap_are_cut_where_the_earlier_one_ends(tmp_path: Path) -> None:
    # Step 1 starts at 40 while step 0 still communicates until 60; its computing before that hides step 0's communication.
    store = store_of(tmp_path, [[[("compute", 10, 20, 7), ("send", 30, 30, 9)], [("compute", 40, 50, 7)]]])
    assert parts(store) == [(50, 40, 10, 0, 0, 0), (30, 30, 0, 0, 0, 0)]


def test_a_step_whose_work_ended_before_that_of_an_earlier_one_takes_no_time(tmp_path: Path) -> None:
    store = store_of(tmp_path, [[[("send", 10, 90, 9)], [("compute", 20, 30, 7)], [("compute", 110, 10, 7)]]])
    assert parts(store) == [(90, 30, 60, 0, 0, 0), (0, 0, 0, 0, 0, 0), (20, 10, 0, 0, 10, 0)]


def test_work_outside_of_every_step_is_no_idle_time(tmp_path: Path) -> None:
    store = store_of(tmp_path, [[[("compute", 10, 20, 7)], [("compute", 80, 10, 7)]]])
    with Store(store) as opened:
        opened.connection.execute(
            """INSERT INTO gpu_event BY NAME SELECT * REPLACE (NULL AS step, start_ns + 30000 AS start_ns)
               FROM gpu_event WHERE step = 0"""
        )
    # An evaluation from 40 to 60 between the steps: the gap is 10 us before it and 20 after.
    assert parts(store) == [(20, 20, 0, 0, 0, 0), (60, 30, 0, 0, 30, 0)]


@pytest.mark.parametrize("data", ["slow4", "eager4"])
def test_the_parts_of_real_steps_add_up_and_the_steps_follow_each_other(data: str, tmp_path: Path) -> None:
    from jobs import DATA

    load(tmp_path / "store.duckdb", DATA / data, job="j")
    found = rows(tmp_path / "store.duckdb", f"SELECT {PARTS} FROM step_parts")
    assert found
    assert all(period == sum(rest) and min(rest) >= 0 for period, *rest in found)
    spans = rows(
        tmp_path / "store.duckdb",
        """SELECT sum(p.period_ns), sum(t.lasted_ns)
           FROM (SELECT rank, sum(period_ns) AS period_ns FROM step_parts GROUP BY rank) AS p
           JOIN (SELECT rank, sum(lasted_ns) AS lasted_ns
                 FROM (SELECT rank, max(end_ns) - min(first_ns) AS lasted_ns FROM _step_bounds GROUP BY rank, trace_id)
                 GROUP BY rank) AS t ON t.rank = p.rank""",
    )
    assert spans[0][0] == spans[0][1]


def ticking(steps: Sequence[Sequence[Work]], waits: dict[tuple[int, int], float]) -> list[tuple[int, ...]]:
    """The parts of each step by looking at every microsecond. waits: (step, index) to the wait of a judged collective."""
    found, reached = [], None
    for works in steps:
        first = min(start for _, start, _, _ in works)
        end = max(start + duration for _, start, duration, _ in works)
        begin = first if reached is None else reached
        reached = end if reached is None else max(reached, end)
        counts = dict.fromkeys(("compute", "transfer", "wait", "gap", "other"), 0)
        for tick in range(int(begin), int(reached)):
            running = {
                _what(kind, tick - start, waits.get((other, index)))
                for other, all_works in enumerate(steps)
                for index, (kind, start, duration, _) in enumerate(all_works)
                if start <= tick < start + duration
            }
            idle = "gap" if tick < first else "other"
            order = [*(name for name in ("compute", "transfer", "wait", "other") if name in running), idle]
            counts[order[0]] += 1
        found.append((int(reached - begin), *counts.values()))
    return found


def _what(kind: str, since: float, wait: float | None) -> str:
    if kind == "all_reduce":
        return "wait" if wait is not None and since < wait else "transfer"
    return {"compute": "compute", "send": "transfer", "copy": "other"}[kind]


WORK = st.tuples(
    st.sampled_from(["compute", "compute", "send", "copy"]),
    st.integers(0, 80),
    st.integers(1, 30),
    st.sampled_from([7, 8, 9]),
)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.lists(WORK, min_size=1, max_size=5), min_size=1, max_size=4),
    arrive=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    transfer=st.integers(1, 20),
)
def test_the_view_agrees_with_a_clock_that_ticks(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[list[Work]],
    arrive: tuple[int, int],
    transfer: int,
) -> None:
    """Rank 0 does random work and an all_reduce in step 0; rank 1 only the all_reduce."""
    end = max(arrive) + transfer
    reduces: list[Work] = [("all_reduce", at, end - at, 20) for at in arrive]
    mine = [
        [(kind, start + 20 * number, duration, stream) for kind, start, duration, stream in works]
        for number, works in enumerate(steps)
    ]
    mine[0].append(reduces[0])
    store = store_of(tmp_path_factory.mktemp("ticking"), [mine, [[reduces[1]]]])
    expected = ticking(mine, {(0, len(mine[0]) - 1): end - arrive[0] - transfer})
    assert parts(store)[: len(mine)] == expected


def test_two_traces_of_a_rank_do_not_share_a_gap(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store.duckdb")
    # Step 1 begins 10 ms after step 0; the work of step 0 ends 2.305 ms after its start.
    found = rows(store, f"SELECT rank, step, {PARTS} FROM step_parts ORDER BY rank, step")
    assert found == [
        (0, 0, 2_305_000, 1_005_000, 300_000, 1_000_000, 0, 0),
        (0, 1, 10_000_000, 1_005_000, 300_000, 1_000_000, 7_695_000, 0),
        (1, 0, 2_305_000, 2_005_000, 300_000, 0, 0, 0),
        (1, 1, 10_000_000, 2_005_000, 300_000, 0, 7_695_000, 0),
    ]
