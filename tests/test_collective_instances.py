"""Which kernels of different ranks are one collective, who waited in it for whom, and what is left out and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs import NCCL, load, rows, write_annotations
from traces import Event, graph_launch, kernel, launch, step, write_trace
from typer.testing import CliRunner

from annotq.cli.main import app

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"

# (node, start in us, duration in us) of the kernels of one replay; even nodes compute, odd ones are all_reduces.
Replay = Sequence[tuple[int, float, float]]


def replays(number: int, *runs: Replay, graph: int = 2, graphs: Sequence[int] = ()) -> list[Event]:
    """Profiler step `number` that launches a graph once per run."""
    begin = 1000.0 * (number + 1)
    events: list[Event] = [step(number, begin, 900)]
    for index, run in enumerate(runs):
        correlation = 100 * (number + 1) + index
        events.append(graph_launch(begin + 1 + index, correlation=correlation))
        events += [
            kernel(
                NCCL if node % 2 else "gemm",
                begin + start,
                duration,
                correlation=correlation,
                graph=graphs[index] if graphs else graph,
                node=node,
            )
            for node, start, duration in run
        ]
    return events


def job(folder: Path, events: dict[int, list[Event]], names: dict[int, Any] | None = None, **header: Any) -> Path:
    """A store with one trace per rank, all on one host and in one group unless said otherwise."""
    for rank, own in events.items():
        write_trace(
            folder / f"rank{rank}.json", own, rank=rank, world_size=len(events), **{"host_name": "node-a", **header}
        )
        if names:
            write_annotations(folder / f"rank{rank}.annotations.json", names)
    load(folder / "store.duckdb", folder, job="j")
    return folder / "store.duckdb"


def test_a_replay_that_the_window_cut_does_not_shift_the_others(tmp_path: Path) -> None:
    # Rank 1's window begins within the first replay: its first all_reduce (node 1) is lost, node 3 is there.
    full = [(1, 100.0, 50.0), (3, 200.0, 50.0)]
    store = job(tmp_path, {0: replays(0, full) + replays(1, full), 1: replays(0, full[1:]) + replays(1, full)})
    found = rows(
        store,
        "SELECT rank, split_part(collective_id, '/', 7), wait_ns, not_judged FROM collectives ORDER BY arrive_ns, rank",
    )
    assert found == [
        (0, "0", None, "rank missing"),
        (0, "0", None, "replay cut by the window"),
        (1, "0", None, "replay cut by the window"),
        *[(0, "1", 0, None), (1, "1", 0, None)] * 2,
    ]


def test_every_replay_of_a_step_has_collectives_of_its_own(tmp_path: Path) -> None:
    # Gradient accumulation: two replays in each step; the annotation carries the sequence number seen at capture.
    names = {1: {"name": "grads", "Process Group Name": "dp", "Group size": 2, "Seq": 41}}
    store = job(
        tmp_path,
        {
            0: replays(0, [(1, 100.0, 50.0)], [(1, 300.0, 30.0)]),
            1: replays(0, [(1, 120.0, 30.0)], [(1, 310.0, 20.0)]),
        },
        names,
    )
    found = rows(store, "SELECT rank, wait_ns, transfer_ns, last_rank FROM collectives ORDER BY arrive_ns")
    assert found == [(0, 20_000, 30_000, 1), (1, 0, 30_000, 1), (0, 10_000, 20_000, 1), (1, 0, 20_000, 1)]
    assert rows(store, "SELECT count(DISTINCT collective_id) FROM collectives") == [(2,)]
    assert rows(store, "SELECT DISTINCT sequence FROM annotation") == [(41,)]


def test_a_graph_that_one_rank_instantiated_again_is_still_the_same_graph(tmp_path: Path) -> None:
    run = [(1, 100.0, 50.0)]
    later = [(1, 400.0, 50.0)]
    store = job(tmp_path, {0: replays(0, run, later, graphs=(2, 5)), 1: replays(0, run, later, graphs=(2, 2))})
    assert rows(store, "SELECT count(*), count(wait_ns), count(DISTINCT collective_id) FROM collectives") == [(4, 4, 2)]


def test_a_family_of_two_graphs_is_paired_graph_by_graph(tmp_path: Path) -> None:
    # Neither all_reduce has a region: the forward graph holds one, the backward graph another with the same node index.
    events = {
        rank: [
            step(0, 1000, 900),
            graph_launch(1001, correlation=1),
            graph_launch(1002, correlation=2),
            kernel(NCCL, 1100 + 10 * rank, 50 - 10 * rank, correlation=1, graph=2, node=1),
            kernel("relu", 1290, 5, correlation=2, graph=3, node=0),
            kernel(NCCL, 1300 + 20 * rank, 50 - 20 * rank, correlation=2, graph=3, node=1),
        ]
        for rank in (0, 1)
    }
    found = rows(job(tmp_path, events), "SELECT rank, wait_ns FROM collectives ORDER BY arrive_ns")
    assert found == [(0, 10_000), (1, 0), (0, 20_000), (1, 0)]


def test_a_rank_made_late_by_an_earlier_collective_has_no_excess_of_its_own(tmp_path: Path) -> None:
    # Pairs (0, 1) and (2, 3), then all. Rank 0 computes 60 us longer before its pair's all_reduce, so rank 1 leaves that late
    # as well; both are last in the second one, and neither spent more of its own time than ranks 2 and 3 before it.
    def rank_events(rank: int) -> list[Event]:
        pair = {
            "Collective name": "allreduce",
            "Process Group Name": "tp",
            "Process Group Ranks": "[0, 1]" if rank < 2 else "[2, 3]",
            "Group size": 2,
        }
        world = {"Collective name": "allreduce", "Process Group Name": "dp", "Process Group Ranks": "[0, 1, 2, 3]"}
        arrive = 1160 if rank == 0 else 1100
        end = 1170 if rank < 2 else 1110
        own = 1195 if rank < 2 else 1135
        return [
            step(0, 1000, 900),
            *(launch(1001 + n, correlation=n) for n in range(3)),
            kernel(NCCL, 1050, 2, correlation=0, **pair, Seq=0),
            kernel(NCCL, arrive, end - arrive, correlation=1, **pair, Seq=1),
            kernel(NCCL, own, 1205 - own, correlation=2, **world, **{"Group size": 4}, Seq=7),
        ]

    store = job(tmp_path, {rank: rank_events(rank) for rank in range(4)})
    found = rows(
        store,
        """SELECT group_name, rank, wait_ns, last_rank, own_ns, own_excess_ns FROM collectives
           WHERE own_ns IS NOT NULL ORDER BY group_name DESC, rank""",
    )
    assert found == [
        ("tp", 0, 0, 0, 108_000, 30_000.0),
        ("tp", 1, 60_000, 0, 48_000, -30_000.0),
        ("tp", 2, 0, 2, 48_000, 0.0),
        ("tp", 3, 0, 2, 48_000, 0.0),
        ("dp", 0, 0, 0, 25_000, 0.0),
        ("dp", 1, 0, 0, 25_000, 0.0),
        ("dp", 2, 60_000, 0, 25_000, 0.0),
        ("dp", 3, 60_000, 0, 25_000, 0.0),
    ]


def test_the_two_formulas_disagree_by_as_much_as_the_ends_do(tmp_path: Path) -> None:
    # Rank 1 leaves 4 us after rank 0.
    store = job(tmp_path, {0: replays(0, [(1, 100.0, 50.0)]), 1: replays(0, [(1, 130.0, 24.0)])})
    found = rows(store, "SELECT rank, wait_ns, transfer_ns, disagreement_ns FROM collectives ORDER BY rank")
    assert found == [(0, 30_000, 20_000, 4_000), (1, 0, 24_000, 0)]


def test_ranks_of_one_host_keep_their_common_clock_when_other_hosts_are_not_aligned(tmp_path: Path) -> None:
    pair = {"Collective name": "allreduce", "Process Group Name": "tp", "Group size": 2}
    for rank in range(4):
        ranks = {"Process Group Ranks": "[0, 1]" if rank < 2 else "[2, 3]"}
        own = [step(0, 1000, 900), launch(1001, correlation=1)]
        own.append(kernel(NCCL, 1100 + 40 * (rank % 2), 60 - 40 * (rank % 2), correlation=1, **pair, **ranks))
        write_trace(tmp_path / f"rank{rank}.json", own, rank=rank, world_size=4, host_name=f"node-{rank // 2}")
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    assert rows(tmp_path / "store.duckdb", "SELECT DISTINCT method, clock_error_ns FROM _collective_waits") == [
        ("clock", 1_000)
    ]


def test_what_is_not_judged_says_why(tmp_path: Path) -> None:
    eager = {"Collective name": "allreduce", "Process Group Name": "dp", "Group size": 2}
    events = {
        rank: [
            step(0, 1000, 900),
            *(launch(1001 + n, correlation=n) for n in range(4)),
            kernel(SEND, 1100, 10, correlation=0),
            kernel(NCCL, 1200 + 100 * rank, 10, correlation=1, **eager, Seq=1),  # ends before the other arrives
            kernel(NCCL, 1500, 10, correlation=2, **eager, Seq=2 + rank),  # each alone
        ]
        for rank in (0, 1)
    }
    found = rows(job(tmp_path, events), "SELECT not_judged, count(*) FROM collectives GROUP BY 1 ORDER BY 1")
    assert found == [("ended before another arrived", 2), ("kind does not synchronize", 2), ("rank missing", 2)]


def test_the_command_lists_kinds_that_do_not_synchronize_apart_and_counts_them(tmp_path: Path) -> None:
    events = {
        rank: [
            step(0, 1000, 900),
            launch(1001, correlation=1),
            launch(1002, correlation=2),
            kernel(SEND, 1100, 10, correlation=1),
            kernel(NCCL, 1200, 10, correlation=2),
        ]
        for rank in (0, 1)
    }
    done = CliRunner().invoke(app, ["collectives", "--db", str(job(tmp_path, events)), "--format", "jsonl"])
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["name"], row["not_judged"]) for row in shown] == [
        *[("all_reduce", None)] * 2,
        *[("send_recv", "kind does not synchronize")] * 2,
    ]
    assert "not judged, at the end: kind does not synchronize: 2 send_recv\n" in done.stderr


def test_of_ranks_that_arrive_last_at_once_the_lowest_is_named(tmp_path: Path) -> None:
    # Ranks 1 and 2 arrive together at 140 us, 40 us after rank 0: above the microsecond by which clocks of a host differ.
    starts = {0: 100.0, 1: 140.0, 2: 140.0}
    store = job(tmp_path, {rank: replays(0, [(1, start, 160.0 - start)]) for rank, start in starts.items()})
    found = rows(store, "SELECT rank, wait_ns, last_rank FROM collectives ORDER BY rank")
    assert found == [(0, 40_000, 1), (1, 0, 1), (2, 0, 1)]


def test_by_duration_too_the_lowest_of_the_last_ranks_is_named(tmp_path: Path) -> None:
    # All within a microsecond, less than what the clocks are good for: the shortest durations tell.
    starts = {0: 100.0, 1: 100.4, 2: 100.4}
    store = job(tmp_path, {rank: replays(0, [(1, start, 160.0 - start)]) for rank, start in starts.items()})
    found = rows(store, "SELECT rank, method, last_rank FROM _collective_waits ORDER BY rank")
    assert found == [(0, "duration", 1), (1, "duration", 1), (2, "duration", 1)]
