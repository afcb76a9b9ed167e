"""The generator of jobs with known truth is itself right: collectives, clocks, causes, and what lands in the store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jobs import ask_of
from simulated_causes import Cause, slow_layers
from simulated_events import FIRST_STEP, Clocks
from simulated_job import HostClocks, Plan, SimulatedJob, groups_of, simulate
from simulated_layout import LAYOUTS, Layout
from simulated_noise import KINDS, SILENT, Noise
from simulated_program import COMMUNICATION_STREAM, Workload
from simulated_store import MemoryStore, simulated_store

from annotq.collector.query import Door, Limits
from annotq.collector.receipt import receipt

# One region of one kernel per rank and phase, without tp: attn and mlp forward and backward, then the gradients.
TINY = Workload(layers=1, kernels=1, dp_transfer_ns=100_000)


def compute_of(job: SimulatedJob) -> np.ndarray:
    """Compute time by (rank, step); every rank runs every compute operation here."""
    return np.sum([ran.time_ns for ran in job.ran if ran.operation.computes], axis=0)


def test_two_ranks_wait_as_arithmetic_says() -> None:
    # Without noise, rank 1 computes half as long again: rank 0 waits the difference, then the transfer of 0.1 ms.
    plan = Plan(layout=LAYOUTS[2], steps=3, workload=TINY, noise=SILENT, causes=(Cause("slow_gpu", 0.5, (1,)),))
    job = simulate(plan)
    (reduce,) = job.of("grads", "backward")
    compute = compute_of(job)
    assert compute[1, 0] == pytest.approx(1.5 * compute[0, 0], abs=4)
    assert reduce.time_ns[1].tolist() == [100_000] * 3
    assert reduce.time_ns[0].tolist() == [100_000 + compute[1, 0] - compute[0, 0]] * 3
    step = 20_000 + compute[1, 0] + 100_000
    assert reduce.end_ns[0].tolist() == [[step, 2 * step, 3 * step]] * 2


def test_equal_plans_give_equal_jobs_and_another_seed_another() -> None:
    plan = Plan(seed=4, layout=LAYOUTS[8], noise=KINDS["all of them"])
    first, again, other = simulate(plan), simulate(plan), simulate(Plan(seed=5, layout=LAYOUTS[8]))
    assert all(np.array_equal(one.start_ns, two.start_ns) for one, two in zip(first.ran, again.ran, strict=True))
    assert not np.array_equal(first.ran[0].duration_ns, other.ran[0].duration_ns)


def test_a_cause_changes_nothing_but_what_it_concerns() -> None:
    slow = Cause("slow_region", 1.0, (3,), ("layers.0.mlp",), first=5, end=15)
    fine, changed = (simulate(Plan(seed=4, layout=Layout(dp=4), causes=causes)) for causes in ((), (slow,)))
    for before, after in zip(fine.ran, changed.ran, strict=True):
        if not before.operation.computes:
            continue
        ratio = after.time_ns / before.time_ns
        expected = np.ones_like(ratio)
        if before.operation.region == "layers.0.mlp":
            expected[3, 5:15] = 2
        assert ratio == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("workload", [Workload(eager=True), Workload(overlap=True, reduce="sharded")])
def test_every_group_leaves_a_collective_together_after_its_last_arrival(workload: Workload) -> None:
    job = simulate(Plan(seed=2, layout=Layout(dp=4, tp=2, pp=2), workload=workload, noise=Noise(jitter_ns=0)))
    synchronizing = [ran for ran in job.ran if ran.operation.synchronizes]
    kinds = {ran.operation.kind for ran in synchronizing}
    assert kinds == ({"all_reduce"} if workload.eager else {"all_reduce", "reduce_scatter", "all_gather"})
    for ran in synchronizing:
        places = np.searchsorted(ran.operation.ranks, groups_of(ran.operation))
        start, end = ran.start_ns[0][places], ran.end_ns[0][places]
        assert (np.ptp(end, axis=1) == 0).all()
        transfer = (end.max(axis=1) - start.max(axis=1)) / ran.operation.usual_ns[0]
        assert transfer == pytest.approx(np.ones_like(transfer), abs=0.3)


def test_a_stream_does_one_thing_at_a_time_in_program_order() -> None:
    job = simulate(Plan(seed=2, layout=Layout(dp=2, tp=2, pp=2), workload=Workload(overlap=True, eager=True)))
    for rank in range(8):
        for stream in (0, COMMUNICATION_STREAM):
            mine = [ran for ran in job.ran if ran.operation.stream == stream and rank in ran.operation.ranks]
            place = [int(np.searchsorted(ran.operation.ranks, rank)) for ran in mine]
            start = np.array([ran.start_ns[0, at] for ran, at in zip(mine, place, strict=True)]).T.ravel()
            end = np.array([ran.end_ns[-1, at] for ran, at in zip(mine, place, strict=True)]).T.ravel()
            assert (start[1:] >= end[:-1]).all()


def test_a_stage_begins_when_the_stage_before_it_has_sent() -> None:
    job = simulate(Plan(layout=Layout(dp=2, pp=2), noise=SILENT))
    send, receive = job.of("pipeline", "forward")
    assert send.operation.ranks.tolist() == [0, 1] and receive.operation.ranks.tolist() == [2, 3]
    assert (receive.end_ns == send.start_ns + 60_000).all()
    (first,) = (ran for ran in job.of("layers.2.attn", "forward") if ran.operation.computes)
    assert (first.start_ns[0] == receive.end_ns[0]).all()


def test_a_late_launch_is_an_idle_gpu_and_no_more_work() -> None:
    fine, late = (simulate(Plan(layout=LAYOUTS[4], noise=SILENT, causes=causes)) for causes in
                  ((), (Cause("late_launch", 0.2, (1,)),)))  # fmt: skip
    assert (compute_of(fine) == compute_of(late)).all()
    assert (late.begin_ns[:, 1:] == late.ran[-1].end_ns[0][:, :-1]).all()
    idle = late.launch_ns - late.begin_ns
    assert (idle[[0, 2, 3]] == 20_000).all()
    assert (idle[1] == 20_000 + round(0.2 * late.usual_step_ns)).all()


def test_the_host_launches_within_its_step() -> None:
    late = Cause("late_launch", 0.2, (1,))
    memory = MemoryStore()
    memory.hold(simulate(Plan(layout=LAYOUTS[4], noise=SILENT, causes=(late,))))
    rows = memory.ask(
        """SELECT s.rank, count(*) AS steps, median(l.start_ns - s.start_ns) AS late_ns,
               count(*) FILTER (WHERE l.start_ns + l.duration_ns > s.start_ns + s.duration_ns) AS outside
           FROM host_span AS s JOIN host_span AS l ON l.rank = s.rank AND l.step = s.step AND l.kind = 'graph_launch'
           WHERE s.kind = 'step' GROUP BY s.rank ORDER BY s.rank"""
    ).to_pylist()
    assert [(row["steps"], row["outside"]) for row in rows] == [(20, 0)] * 4
    assert [row["late_ns"] > 100_000 for row in rows] == [False, True, False, False]


def test_imbalance_slows_another_rank_in_every_step() -> None:
    fine, uneven = (simulate(Plan(layout=LAYOUTS[4], causes=causes)) for causes in ((), (Cause("imbalance", 0.5),)))
    ratio = compute_of(uneven) / compute_of(fine)
    assert np.sort(ratio, axis=0) == pytest.approx(np.tile([[1], [1], [1], [1.5]], 20), abs=1e-4)
    assert np.bincount(ratio.argmax(axis=0)).tolist() == [5] * 4


def test_a_slow_link_slows_the_transfers_of_all_groups_of_its_rank_and_no_others() -> None:
    layout = Layout(dp=4, tp=2)
    fine, slow = (simulate(Plan(layout=layout, noise=SILENT, causes=causes)) for causes in
                  ((), (Cause("slow_link", 1.0, (5,)),)))  # fmt: skip
    for before, after in zip(fine.ran, slow.ran, strict=True):
        if before.operation.computes:
            assert (before.duration_ns == after.duration_ns).all()
            continue
        places = np.searchsorted(before.operation.ranks, groups_of(before.operation))
        ratio = after.duration_ns[0][places].min(axis=1) / before.duration_ns[0][places].min(axis=1)
        through = (groups_of(before.operation) == 5).any(axis=1)
        assert (ratio[through] == 2).all() and (ratio[~through] == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_as_large_as_it_says(kind: str) -> None:
    noise = KINDS[kind]
    job = simulate(Plan(seed=1, layout=Layout(dp=16), steps=200, noise=noise, workload=Workload(layers=1)))
    compute = [ran for ran in job.ran if ran.operation.computes]
    log = np.log([ran.time_ns for ran in compute])
    own = log - np.median(log, axis=2, keepdims=True)
    quartile = 1.4826 * np.median(np.abs(own))
    # Three quarters of Student's t with 2 degrees of freedom lie below 0.816, of a normal distribution below 0.674.
    own_sigma = noise.sigma * (0.816 / 0.674 if noise.tail == "heavy" else 1)
    assert quartile == pytest.approx(np.hypot(own_sigma, noise.shared), rel=0.1)
    common = np.median(own, axis=0)
    lag = np.mean([np.corrcoef(row[1:], row[:-1])[0, 1] for row in common])
    assert (lag > 0.2) == (noise.carry > 0)


def test_the_store_names_everything_and_says_where_the_ranks_ran(tmp_path: Path) -> None:
    plan = Plan(layout=LAYOUTS[64], steps=3, workload=Workload(eager=True, experts=(1, 2, 3)), missing={5: (2,)})
    store = simulated_store(tmp_path / "store.duckdb", one=simulate(plan), two=simulate(plan))
    with Door(store, Limits(rows=1_000_000)) as door:
        facts = receipt(ask_of(door), "two", 0)
        (row,) = door.ask(
            "SELECT count(DISTINCT step) AS steps FROM steps WHERE job = 'two' AND rank = 5"
        ).table.to_pylist()
        experts = door.ask("SELECT DISTINCT rank FROM regions WHERE job = 'two' AND region LIKE '%experts' ORDER BY 1")
    assert (facts.matched, facts.unannotated, facts.orphan) == (facts.graph_events, 0, 0)
    assert facts.gpu_events - facts.graph_events == (64 * 3 - 1) * 3
    assert (len(facts.ranks_seen), set(facts.hosts.values())) == (64, {f"node-{host:03d}" for host in range(8)})
    assert row["steps"] == 2
    assert experts.table.column("rank").to_pylist() == [1, 2, 3]


def test_collectives_are_paired_in_their_groups_and_say_who_was_last() -> None:
    # Rank 6 computes twice as long: it is last in its own tp and dp group, its tp group is last in the others'.
    plan = Plan(layout=Layout(dp=4, tp=2), steps=3, noise=SILENT, workload=TINY, causes=(Cause("slow_gpu", 1.0, (6,)),))
    memory = MemoryStore()
    memory.hold(simulate(plan))
    last = memory.ask(
        """SELECT group_description, count(DISTINCT collective_id) AS collectives, count(DISTINCT last_rank) AS last
           FROM collectives AS c JOIN annotation AS a ON a.region = c.region AND a.group_name = c.group_name
           GROUP BY group_description ORDER BY group_description"""
    ).to_pylist()
    assert [(row["group_description"], row["collectives"]) for row in last] == [("dp", 2 * 3), ("tp", 4 * 4 * 3)]
    waits = memory.ask(
        "SELECT rank, wait_ns FROM collectives WHERE region = 'grads' ORDER BY rank, arrive_ns"
    ).to_pylist()
    # dp groups are {0, 2, 4, 6} and {1, 3, 5, 7}; 7 waits for 6 at every tp all_reduce and so comes last with it.
    waiting = {row["rank"] for row in waits if row["wait_ns"] > 1000}
    assert waiting == {0, 1, 2, 3, 4, 5}


def test_extra_nodes_take_their_time_beside_the_others() -> None:
    regions = slow_layers(LAYOUTS[4], 2, 1)
    extra = Cause("slow_region", 3.0, (2,), regions, extra_nodes=True)
    memory = MemoryStore()
    memory.hold(simulate(Plan(layout=LAYOUTS[4], steps=4, noise=SILENT, workload=TINY, causes=(extra,))))
    rows = memory.ask(
        """SELECT rank, count(DISTINCT node_index) AS nodes, median(compute_ns) AS compute_ns
           FROM kernels JOIN _region_steps USING (job, attempt, rank, step, region, phase)
           WHERE region = 'layers.0.mlp' AND phase = 'forward' AND name LIKE 'void%' GROUP BY rank ORDER BY rank"""
    ).to_pylist()
    assert [row["nodes"] for row in rows] == [1, 1, 4, 1]
    usual = rows[0]["compute_ns"]
    assert [row["compute_ns"] / usual for row in rows] == pytest.approx([1, 1, 4, 1], rel=1e-4)


@pytest.mark.parametrize("known", [True, False])
def test_the_hosts_clocks_are_off_as_said(known: bool) -> None:
    clocks = HostClocks(offset_ns=120_000_000_000, drift_ppb=50_000, known=known)
    layout = Layout(dp=4, ranks_per_host=1)
    job = simulate(Plan(seed=3, layout=layout, steps=5, clocks=clocks, noise=Noise(jitter_ns=0)))
    memory = MemoryStore()
    memory.hold(job)
    shown = Clocks(job)
    assert (shown.offsets_ns[0], shown.drifts_ppb[0]) == (0, 0)
    assert np.abs(shown.offsets_ns[1:]).min() > 1_000_000_000
    ends = memory.ask(
        f"""SELECT rank, {"start_ns" if known else "e.start_ns"} + duration_ns AS end_ns
            FROM {"kernels" if known else "gpu_event AS e"} WHERE step = {FIRST_STEP + 4} AND name LIKE '%AllReduce%'
            ORDER BY rank"""
    ).column("end_ns")
    offset = np.array(ends) - int(ends[0].as_py())
    if known:
        # A duration is as long as the clock showed it: a wait of 0.3 ms at 50 ppm is 15 ns off.
        assert np.abs(offset).max() <= 50
    else:
        true_ns = job.ran[-1].end_ns[0, :, 4]
        assert offset.tolist() == pytest.approx((shown.offsets_ns + true_ns * shown.drifts_ppb * 1e-9).tolist(), abs=10)


def test_the_memory_store_forgets_the_job_before() -> None:
    memory = MemoryStore()
    for ranks in (4, 2):
        memory.hold(simulate(Plan(layout=LAYOUTS[ranks], steps=3)))
    assert memory.ask("SELECT job, ranks_seen FROM jobs").to_pylist() == [{"job": "job", "ranks_seen": 2}]
    assert memory.ask("SELECT max(rank) AS last FROM gpu_event").to_pylist() == [{"last": 1}]
