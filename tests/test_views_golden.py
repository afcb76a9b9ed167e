"""A tiny job, one query, the expected rows: what each view means."""

from __future__ import annotations

import json
from pathlib import Path

from jobs import NCCL, load, rows, write_annotations, write_job
from traces import BASE_NS, Event, annotation, graph_launch, kernel, launch, step, write_trace

MS = 1_000_000
PAIR: list[dict[str, object]] = [{"pg_name": "0", "pg_size": 2}]


def job(tmp_path: Path, durations: dict[int, list[list[float]]], regions: list[str | None]) -> Path:
    load(tmp_path / "store.duckdb", write_job(tmp_path / "job", durations, regions))
    return tmp_path / "store.duckdb"


def test_kernels_carry_the_region_of_their_node(tmp_path: Path) -> None:
    store = job(tmp_path, {0: [[10, 20, 30]]}, ["attn", "mlp", None])
    assert rows(
        store, "SELECT node_index, region, phase, step, replay_id, duration_ns FROM kernels ORDER BY node_index"
    ) == [
        (0, "attn", "forward", 0, 100, 10_000),
        (1, "mlp", "forward", 0, 100, 20_000),
        (2, None, None, 0, 100, 30_000),
    ]


def test_a_kernel_belongs_to_the_step_in_which_it_was_launched(tmp_path: Path) -> None:
    # Launched at the end of step 0, it runs while the host is in step 1.
    events = [step(0, 1000, 100), step(1, 1100, 100), launch(1090, correlation=1), kernel("k", 1150, correlation=1)]
    write_trace(tmp_path / "rank0.json", events, rank=0)
    load(tmp_path / "store.duckdb", tmp_path / "rank0.json")
    assert rows(tmp_path / "store.duckdb", "SELECT step FROM kernels") == [(0,)]


def test_region_instances_tell_busy_from_covered_time(tmp_path: Path) -> None:
    # 10 us and 10 us that overlap by 4, then 5 us after a gap of 3: busy 25, covered 21, from first to last 24.
    starts = ((1100, 10, 7), (1106, 10, 8), (1119, 5, 7))
    events = [step(0, 1000, 100), graph_launch(1005, correlation=1)]
    for node, (start, duration, stream) in enumerate(starts):
        events.append(kernel(f"k{node}", start, duration, correlation=1, graph=2, node=node, stream=stream))
    write_trace(tmp_path / "rank0.json", events, rank=0)
    write_annotations(tmp_path / "rank0.annotations.json", {0: "r", 1: "r", 2: "r"})
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    found = rows(
        tmp_path / "store.duckdb", "SELECT busy_ns, union_ns, end_ns - start_ns, kernels FROM region_instances"
    )
    assert found == [(25_000, 21_000, 24_000, 3)]


def test_regions_compare_a_rank_with_the_median_of_the_ranks(tmp_path: Path) -> None:
    store = job(tmp_path, {0: [[10], [12]], 1: [[20], [24]], 2: [[30], [36]]}, ["mlp"])
    found = rows(store, "SELECT rank, instances, median_ns, total_ns, ratio FROM regions ORDER BY rank")
    assert found == [(0, 2, 11_000, 22_000, 0.5), (1, 2, 22_000, 44_000, 1.0), (2, 2, 33_000, 66_000, 1.5)]


def test_forward_and_backward_of_a_region_are_two_rows(tmp_path: Path) -> None:
    write_job(tmp_path / "job", {0: [[10, 20]]}, ["mlp", "mlp"])
    names: dict[int, str | dict[str, str]] = {0: "mlp", 1: {"name": "mlp", "autograd_phase": "backward"}}
    write_annotations(tmp_path / "job" / "rank0.annotations.json", names)
    load(tmp_path / "store.duckdb", tmp_path / "job")
    found = rows(tmp_path / "store.duckdb", "SELECT phase, total_ns FROM regions ORDER BY phase")
    assert found == [("backward", 20_000), ("forward", 10_000)]


def test_the_last_rank_of_a_collective_waits_for_nobody(tmp_path: Path) -> None:
    # Rank 1 computes 30 us longer. Both collectives end together: 5 us of transfer after rank 1 arrived.
    store = job(tmp_path, {0: [[10, 35]], 1: [[40, 5]]}, ["mlp", "all_reduce"])
    found = rows(store, "SELECT rank, name, wait_ns, transfer_ns, last_rank FROM collectives ORDER BY rank")
    assert found == [(0, "all_reduce", 30_000, 5_000, 1), (1, "all_reduce", 0, 5_000, 1)]


def test_a_collective_that_a_rank_lacks_is_not_judged(tmp_path: Path) -> None:
    # Rank 1's window ends after the first step.
    store = job(tmp_path, {0: [[10, 35], [10, 35]], 1: [[40, 5]]}, ["mlp", "all_reduce"])
    found = rows(
        store, "SELECT collective_id, rank, wait_ns, last_rank FROM collectives WHERE rank = 0 ORDER BY collective_id"
    )
    assert [row[2:] for row in found] == [(30_000, 1), (None, None)]


def collective_ranks(
    tmp_path: Path, starts: dict[int, list[float]], groups: list[dict[str, object]] | None, duration: float = 100
) -> Path:
    """All_reduce kernels outside of graphs: starts[rank] in us, one step, 4 ranks expected."""
    for rank, begins in starts.items():
        events = [step(0, 900, 10_000)]
        for number, begin in enumerate(begins):
            events += [
                launch(begin - 10, correlation=number + 1),
                kernel(NCCL, begin, duration, correlation=number + 1),
            ]
        write_trace(tmp_path / f"rank{rank}.json", events, rank=rank, host_name="node-a")
        if groups is not None:
            text = (tmp_path / f"rank{rank}.json").read_text()
            config = json.dumps({"backend": "nccl", "pg_config": groups})[1:-1]
            (tmp_path / f"rank{rank}.json").write_text(text.replace('"backend": "nccl"', config, 1))
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    return tmp_path / "store.duckdb"


def test_a_rank_that_sent_no_trace_leaves_its_collectives_unjudged(tmp_path: Path) -> None:
    # Rank 2 may have been the last: nobody else is called so.
    groups: list[dict[str, object]] = [{"pg_name": "0", "pg_size": 3}]
    store = collective_ranks(tmp_path, {0: [1000], 1: [1050]}, groups)
    assert rows(store, "SELECT wait_ns, last_rank, group_name FROM collectives") == [(None, None, "0")] * 2


def test_a_call_of_an_unknown_group_among_several_is_not_paired(tmp_path: Path) -> None:
    groups: list[dict[str, object]] = [{"pg_name": "0", "pg_size": 2}, {"pg_name": "1", "pg_size": 1}]
    store = collective_ranks(tmp_path, {0: [1000], 1: [1050]}, groups)
    assert rows(store, "SELECT wait_ns, last_rank, group_name FROM collectives") == [(None, None, None)] * 2


def test_without_any_word_of_process_groups_nothing_is_paired(tmp_path: Path) -> None:
    # Two pairs would look like one group of four.
    store = collective_ranks(tmp_path, {0: [1000], 1: [1050]}, None)
    assert rows(store, "SELECT DISTINCT wait_ns, last_rank FROM collectives") == [(None, None)]


def test_ranks_with_different_numbers_of_calls_are_not_paired_by_order(tmp_path: Path) -> None:
    store = collective_ranks(tmp_path, {0: [1000, 1200], 1: [1200]}, PAIR)
    assert rows(store, "SELECT DISTINCT wait_ns, last_rank FROM collectives") == [(None, None)]


def test_a_rank_that_ended_before_another_arrived_proves_a_wrong_pairing(tmp_path: Path) -> None:
    store = collective_ranks(tmp_path, {0: [1000], 1: [1500]}, PAIR)
    assert rows(store, "SELECT DISTINCT wait_ns, last_rank FROM collectives") == [(None, None)]


def test_windows_that_use_the_same_step_numbers_go_on_counting(tmp_path: Path) -> None:
    for window, begin in enumerate((1000, 50_000)):
        events = [event for number in (0, 1) for event in _step_at(number, begin + 1000 * number, window)]
        write_trace(tmp_path / f"rank0.w{window}.json", events, rank=0)
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    found = rows(tmp_path / "store.duckdb", "SELECT step, duration_ns FROM steps ORDER BY step")
    assert found == [(0, 10_000), (1, 10_000), (2, 10_000), (3, 10_000)]


def _step_at(number: int, begin: float, window: int) -> list[Event]:
    correlation = 10 * window + number + 1
    return [
        step(number, begin, 50),
        launch(begin + 5, correlation=correlation),
        kernel("k", begin + 20, correlation=correlation),
    ]


def test_ranks_on_hosts_with_unknown_clocks_are_judged_by_duration(tmp_path: Path) -> None:
    for rank, (arrive, duration) in enumerate(((1000, 35), (7_000_000, 5))):
        events = [
            step(0, arrive - 20, 15),
            launch(arrive - 10, correlation=1),
            kernel(NCCL, arrive, duration, correlation=1),
        ]
        write_trace(tmp_path / f"rank{rank}.json", events, rank=rank, world_size=2, host_name=f"node-{rank}")
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    found = rows(
        tmp_path / "store.duckdb", "SELECT rank, wait_ns, transfer_ns, last_rank FROM collectives ORDER BY rank"
    )
    assert found == [(0, 30_000, 5_000, 1), (1, 0, 5_000, 1)]
    assert rows(tmp_path / "store.duckdb", "SELECT clock_error_ns FROM jobs") == [(None,)]


def test_rooted_collectives_have_no_wait(tmp_path: Path) -> None:
    broadcast = NCCL.replace("AllReduce_Sum_f32", "Broadcast")
    for rank in (0, 1):
        events = [step(0, 980, 15), launch(990, correlation=1), kernel(broadcast, 1000, 10 + rank, correlation=1)]
        write_trace(tmp_path / f"rank{rank}.json", events, rank=rank, host_name="node-a")
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    found = rows(tmp_path / "store.duckdb", "SELECT rank, name, wait_ns, last_rank FROM collectives ORDER BY rank")
    assert found == [(0, "broadcast", None, None), (1, "broadcast", None, None)]


def test_an_impossible_duration_is_shown_as_unknown_and_not_summed(tmp_path: Path) -> None:
    # The first kernel is said to run for 3 s, yet the next one on its stream starts 10 us later.
    events = [
        step(0, 1000, 100),
        graph_launch(1005, correlation=1),
        kernel("k", 1100, 3_000_000, correlation=1, graph=2, node=0),
        kernel("k", 1110, 10, correlation=1, graph=2, node=1),
    ]
    write_trace(tmp_path / "rank0.json", events, rank=0)
    write_annotations(tmp_path / "rank0.annotations.json", {0: "r", 1: "r"})
    outcomes = load(tmp_path / "store.duckdb", tmp_path, job="j")
    store = tmp_path / "store.duckdb"
    assert rows(store, "SELECT duration_ns FROM kernels ORDER BY start_ns") == [(None,), (10_000,)]
    assert rows(store, "SELECT busy_ns, union_ns, kernels FROM region_instances") == [(10_000, 10_000, 2)]
    assert any("more than 1 s past the start" in problem for outcome in outcomes for problem in outcome.problems)
    assert rows(store, "SELECT note IS NOT NULL FROM coverage") == [(True,)]


def test_steps_sum_the_work_that_was_launched_in_them(tmp_path: Path) -> None:
    store = job(tmp_path, {0: [[10, 5], [20, 5]], 1: [[10, 5], [20, 5]]}, ["mlp", "all_reduce"])
    found = rows(
        store, "SELECT step, duration_ns, compute_ns, collective_ns, kernels FROM steps WHERE rank = 0 ORDER BY step"
    )
    assert found == [(0, 15_000, 10_000, 5_000, 2), (1, 25_000, 20_000, 5_000, 2)]


def test_replays_know_their_launch_and_whether_they_are_complete(tmp_path: Path) -> None:
    events = [step(0, 1000, 5), graph_launch(1001, correlation=1), step(1, 1100, 5), graph_launch(1101, correlation=2)]
    events += [kernel("k", 1010 + 10 * node, 5, correlation=1, graph=2, node=node) for node in (0, 1)]
    events += [kernel("k", 1110, 5, correlation=2, graph=2, node=0)]
    write_trace(tmp_path / "rank0.json", events, rank=0)
    load(tmp_path / "store.duckdb", tmp_path / "rank0.json")
    found = rows(
        tmp_path / "store.duckdb", "SELECT replay_id, start_ns - launch_ns, kernels, complete FROM replays ORDER BY 1"
    )
    assert found == [(1, 9_000, 2, True), (2, 9_000, 1, False)]
    assert rows(tmp_path / "store.duckdb", "SELECT min(launch_ns) FROM replays") == [(BASE_NS + 1001 * 1000,)]


def test_eager_regions_are_counted_by_pass(tmp_path: Path) -> None:
    # Two passes outside of any profiler step stay two instances.
    events = []
    for number, begin in enumerate((1000, 2000)):
        events += [annotation("eval", begin, 50), launch(begin + 5, correlation=number + 1)]
        events += [kernel("k", begin + 100, 10 * (number + 1), correlation=number + 1)]
    write_trace(tmp_path / "rank0.json", events, rank=0)
    load(tmp_path / "store.duckdb", tmp_path / "rank0.json")
    assert rows(tmp_path / "store.duckdb", "SELECT busy_ns FROM region_instances ORDER BY start_ns") == [
        (10_000,),
        (20_000,),
    ]
    assert rows(tmp_path / "store.duckdb", "SELECT instances, median_ns FROM regions") == [(2, 15_000)]


def test_without_profiler_steps_replays_are_the_steps_and_windows_go_on_counting(tmp_path: Path) -> None:
    for window, begin in enumerate((1000, 50_000)):
        events = []
        for replay in (0, 1):
            start = begin + 100 * replay
            correlation = 10 * window + replay + 1
            events += [
                graph_launch(start, correlation=correlation),
                kernel("k", start + 20, correlation=correlation, graph=2, node=0),
            ]
        write_trace(tmp_path / f"rank0.w{window}.json", events, rank=0)
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    assert rows(tmp_path / "store.duckdb", "SELECT step FROM kernels ORDER BY start_ns") == [(0,), (1,), (2,), (3,)]


def test_graphs_of_one_process_are_told_apart_and_an_instantiation_is_recognised(tmp_path: Path) -> None:
    # Graph 2 is instantiated again as 3 (new id, same nodes); graph 9 is another one with the same node numbers.
    events = [step(0, 900, 10_000)]
    for correlation, (graph, name) in enumerate(((2, "gemm"), (3, "gemm"), (9, "relu")), start=1):
        begin = 1000 + 100 * correlation
        events += [graph_launch(begin, correlation=correlation)]
        events += [kernel(name, begin + 20, correlation=correlation, graph=graph, node=0)]
    write_trace(tmp_path / "rank0.json", events, rank=0)
    names = {2: "mlp", 3: "mlp", 9: "head"}
    text = json.dumps({str(graph << 32): [{"name": name}] for graph, name in names.items()})
    (tmp_path / "rank0.annotations.json").write_text(text)
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    store = tmp_path / "store.duckdb"
    assert rows(store, "SELECT graph_id, region FROM kernels ORDER BY graph_id") == [
        (2, "mlp"),
        (3, "mlp"),
        (9, "head"),
    ]
    prints = dict(rows(store, "SELECT graph_id, fingerprint FROM graphs"))
    assert prints[2] == prints[3] != prints[9]
    assert rows(store, "SELECT region, instances FROM regions ORDER BY region") == [("head", 1), ("mlp", 2)]


def test_nested_regions_keep_their_path(tmp_path: Path) -> None:
    events = [
        annotation("outer", 1000, 100),
        annotation("inner", 1010, 50),
        launch(1020, correlation=1),
        launch(1080, correlation=2),
    ]
    events += [kernel("k", 1100, correlation=1), kernel("l", 1120, correlation=2)]
    write_trace(tmp_path / "rank0.json", events, rank=0)
    load(tmp_path / "store.duckdb", tmp_path / "rank0.json")
    found = rows(tmp_path / "store.duckdb", "SELECT name, region, region_path FROM kernels ORDER BY name")
    assert found == [("k", "inner", "outer > inner"), ("l", "outer", "outer")]


def test_windows_of_the_ranks_stay_together_when_one_is_longer(tmp_path: Path) -> None:
    # Both ranks start counting at 0 in each window; rank 1's first window has a step more.
    for rank, windows in ((0, (2, 2)), (1, (3, 2))):
        for window, steps in enumerate(windows):
            events = [
                event
                for number in range(steps)
                for event in _step_at(number, 1000 + 50_000 * window + 1000 * number, window)
            ]
            write_trace(tmp_path / f"rank{rank}.w{window}.json", events, rank=rank, world_size=2)
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    found = rows(
        tmp_path / "store.duckdb", "SELECT rank, list(step ORDER BY step) FROM steps GROUP BY rank ORDER BY rank"
    )
    assert found == [(0, [0, 1, 3, 4]), (1, [0, 1, 2, 3, 4])]


def test_without_a_common_clock_and_without_steps_nothing_proves_the_pairing(tmp_path: Path) -> None:
    for rank in (0, 1):
        events = [launch(990, correlation=1), kernel(NCCL, 1000, 10 + rank, correlation=1)]
        write_trace(tmp_path / f"rank{rank}.json", events, rank=rank, world_size=2, host_name=f"node-{rank}")
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    assert rows(tmp_path / "store.duckdb", "SELECT wait_ns, last_rank FROM collectives") == [(None, None)] * 2


def test_groups_of_one_name_are_told_apart_by_their_ranks(tmp_path: Path) -> None:
    # Rank 0 is in both groups named tp, so that both have the same lowest rank.
    for rank, others in ((0, (1, 2)), (1, (1,)), (2, (2,))):
        events = [step(0, 900, 10_000)]
        for other in others:
            fields = {
                "Collective name": "allreduce",
                "Process Group Name": "tp",
                "Process Group Ranks": f"[0, {other}]",
            }
            begin = 1000 * other
            events += [launch(begin - 10, correlation=other)]
            events += [kernel(NCCL, begin, 20, correlation=other, **fields, **{"Group size": 2})]
        write_trace(tmp_path / f"rank{rank}.json", events, rank=rank, host_name="node-a")
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    sql = "SELECT list(rank ORDER BY rank) AS ranks FROM collectives WHERE wait_ns = 0 GROUP BY collective_id ORDER BY ranks"
    assert rows(tmp_path / "store.duckdb", sql) == [([0, 1],), ([0, 2],)]
