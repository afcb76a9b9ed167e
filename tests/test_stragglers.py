"""The verdict on jobs whose truth is known: who is blamed, for what, how sure, and when nobody is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jobs import NCCL, ask_of, load, replayed_step, write_annotations, write_job
from synthetic import Job, store_of, synthetic_job
from traces import write_trace

from annotq.cli.straggler_text import straggler_text
from annotq.collector.explain import duration_text, explain_absence
from annotq.collector.query import Door, Limits
from annotq.collector.report import Report
from annotq.collector.report_json import report_json
from annotq.collector.stragglers import straggler_report


def reports(path: Path, *jobs: Job, clock_error_ns: int = 0) -> list[Report]:
    store = store_of(path / "store.duckdb", *jobs, clock_error_ns=clock_error_ns)
    with Door(store, Limits(rows=1_000_000)) as door:
        return [straggler_report(ask_of(door), f"job{number}", 0) for number in range(len(jobs))]


def blamed(report: Report) -> set[tuple[int, str]]:
    return {(finding.rank, row.evidence.region) for finding in report.findings for row in finding.regions}


@pytest.mark.parametrize("noise", ["independent", "heavy"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_nobody_is_blamed_for_noise(tmp_path: Path, ranks: int, noise: str) -> None:
    jobs = [synthetic_job(seed, ranks, steps, 4, noise=noise) for seed in range(2) for steps in (12, 20, 50)]
    assert [report.verdict for report in reports(tmp_path, *jobs)] == ["none"] * len(jobs)


def test_nobody_is_blamed_among_64_ranks(tmp_path: Path) -> None:
    (report,) = reports(tmp_path, synthetic_job(1, 64, 12, 8))
    assert (report.verdict, len(report.evidence)) == ("none", 64 * 16)


@pytest.mark.parametrize(("ranks", "steps"), [(2, 20), (4, 12), (8, 12)])
@pytest.mark.parametrize("ratio", [1.1, 1.3, 4.0])
def test_the_slow_rank_and_its_regions_are_found(tmp_path: Path, ranks: int, steps: int, ratio: float) -> None:
    slow = {(1, "layers.0.mlp"): ratio, (1, "layers.3.mlp"): ratio}
    (report,) = reports(tmp_path, synthetic_job(3, ranks, steps, slow=slow))
    assert report.verdict == "straggler"
    assert blamed(report) == set(slow)
    assert report.findings[0].cause == "slow_region"


def test_two_slow_ranks_are_two_findings_the_costlier_first(tmp_path: Path) -> None:
    slow = {(0, "layers.1.mlp"): 1.2, (2, "layers.4.mlp"): 3.0}
    (report,) = reports(tmp_path, synthetic_job(5, 4, 20, slow=slow))
    assert [finding.rank for finding in report.findings] == [2, 0]
    assert blamed(report) == set(slow)


def test_all_ranks_equally_slow_is_not_a_straggler(tmp_path: Path) -> None:
    slow = {(rank, "layers.1.mlp"): 3.0 for rank in range(4)}
    assert reports(tmp_path, synthetic_job(5, 4, 12, slow=slow))[0].verdict == "none"


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_interval_holds_the_true_ratio_as_often_as_it_says(tmp_path: Path, ranks: int) -> None:
    # The truth is x / median of the ranks, rank 1 among them: with few ranks less than the 1.3 put in.
    generator = np.random.default_rng(0)
    times = np.exp(0.05 * generator.normal(size=(ranks, 100_000)))
    times[1] *= 1.3
    truth = float(np.median(times[1] / np.median(times, axis=0)))
    job = synthetic_job(2, ranks, 20, 200, slow={(1, f"layers.{layer}.mlp"): 1.3 for layer in range(200)})
    (report,) = reports(tmp_path, job)
    found = [row for row in report.evidence if row.rank == 1]
    covered = np.mean([row.ratio_low <= truth <= row.ratio_high for row in found if row.ratio_low and row.ratio_high])
    assert len(found) == 400
    assert 0.92 <= covered <= 0.98


def test_of_two_ranks_the_ratio_is_to_their_mean_and_the_sentence_says_so(tmp_path: Path) -> None:
    (report,) = reports(tmp_path, synthetic_job(3, 2, 20, ["mlp"], slow={(1, "mlp"): 1.3}))
    (finding,) = report.findings
    assert finding.regions[0].evidence.ratio == pytest.approx(2 * 1.3 / 2.3, abs=0.02)
    assert finding.regions[0].evidence.against_others == pytest.approx(1.3, abs=0.04)
    assert "times the other rank)" in str(report_json(report)["explanation"])


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (synthetic_job(1, 4, 2, slow={(1, "layers.0.mlp"): 4}), "2 common steps are too few to judge, at least 3"),
        (synthetic_job(1, 1, 20), "only rank 0 has data"),
        # Three steps of two ranks and one region: six numbers that cannot tell 30 % from chance.
        (synthetic_job(1, 2, 3, ["mlp"], slow={(1, "mlp"): 1.3}), "steps would show one of 1.25"),
    ],
)
def test_too_little_data_is_inconclusive_and_says_what_is_missing(tmp_path: Path, job: Job, reason: str) -> None:
    (report,) = reports(tmp_path, job)
    assert (report.verdict, report.findings) == ("inconclusive", ())
    assert reason in explain_absence(report)


@pytest.mark.parametrize(("ranks", "steps"), [(4, 3), (2, 6)])
def test_few_steps_are_enough_for_a_large_effect_among_many_regions(tmp_path: Path, ranks: int, steps: int) -> None:
    # What the noise is like is known from all ranks and regions together.
    (report,) = reports(tmp_path, synthetic_job(1, ranks, steps, slow={(1, "layers.0.mlp"): 4}))
    assert blamed(report) == {(1, "layers.0.mlp")}


def test_ranks_without_a_region_in_common_cannot_be_compared(tmp_path: Path) -> None:
    job = synthetic_job(1, 2, 12, ["stage0", "stage1"])
    (report,) = reports(tmp_path, job.but(0, np.s_[0, :, job.nodes_of("stage1")], np.s_[1, :, job.nodes_of("stage0")]))
    assert report.verdict == "inconclusive"
    assert "no region ran in the same step on two ranks" in explain_absence(report)


def test_a_region_of_some_ranks_is_compared_among_those(tmp_path: Path) -> None:
    job = synthetic_job(1, 8, 12, ["mlp", "expert"], slow={(3, "expert"): 1.5})
    (report,) = reports(tmp_path, job.but(0, np.s_[4:, :, job.nodes_of("expert")]))
    assert blamed(report) == {(3, "expert")}
    assert {row.evidence.ranks for row in report.findings[0].regions} == {4}


def test_steps_that_a_rank_lacks_at_the_edge_of_its_window_do_not_count(tmp_path: Path) -> None:
    job = synthetic_job(1, 4, 14, slow={(1, "layers.0.mlp"): 1.5})
    (report,) = reports(tmp_path, job.but(0, np.s_[0, :1], np.s_[2, 12:]))
    assert blamed(report) == {(1, "layers.0.mlp")}
    assert [row.evidence.steps.tolist() for row in report.findings[0].regions] == [list(range(1, 12))] * 2


def test_a_rank_whose_window_hardly_overlaps_is_left_out_and_named(tmp_path: Path) -> None:
    (report,) = reports(tmp_path, synthetic_job(1, 4, 14).but(0, np.s_[3, :12]))
    assert (report.verdict, report.steps, report.not_judged) == ("none", 14, (3,))
    assert "Not judged, too few steps in common with the others: rank 3" in explain_absence(report)


def test_a_rank_that_always_arrives_late_for_no_known_reason_is_not_called_fine(tmp_path: Path) -> None:
    # It starts in time and its regions cost what they cost elsewhere, but it idles before the all_reduce.
    job = synthetic_job(1, 4, 12).with_all_reduce(idle_ns={2: 9_000_000})
    (report,) = reports(tmp_path, job)
    assert (report.verdict, report.findings) == ("inconclusive", ())
    assert "rank 2 is the last to arrive at 12 of 12 all_reduce in grads.all_reduce" in explain_absence(report)


def test_ranks_that_take_turns_in_being_late_are_no_straggler(tmp_path: Path) -> None:
    (report,) = reports(tmp_path, synthetic_job(1, 4, 12).late(np.arange(12) % 4, 9_000_000).with_all_reduce())
    assert report.verdict == "none"
    assert [row.last for row in report.waits] == [3, 3, 3, 3]


def test_the_wait_for_a_slow_rank_is_reported_with_it_and_nobody_is_blamed_for_waiting(tmp_path: Path) -> None:
    job = synthetic_job(1, 4, 12, slow={(2, "layers.0.mlp"): 9.0}).with_all_reduce()
    (report,) = reports(tmp_path, job)
    (finding,) = report.findings
    assert finding.rank == 2
    arrive = job.durations_ns[:, :, :-1].sum(axis=2)
    waited = np.median(arrive[2] - arrive[[0, 1, 3]].mean(axis=0))
    assert finding.caused_wait is not None
    assert (finding.caused_wait.steps, finding.caused_wait.wait_ns) == (12, pytest.approx(waited, rel=1e-6))


def test_single_held_up_kernels_are_not_slow_code(tmp_path: Path) -> None:
    # 10 of 12 steps have one kernel of 40 ms, each of the four nodes in turn: no node's median moves.
    job = synthetic_job(1, 4, 12, ["mlp"] * 4)
    (report,) = reports(
        tmp_path, job.but(40_000_000, *((1, step, step % 4) for step in range(12) if step not in (3, 8)))
    )
    assert (report.verdict, report.findings) == ("none", ())
    (row,) = report.held_up
    assert (row.evidence.rank, row.evidence.phase) == (1, "forward")
    assert row.evidence.ratio > 5
    assert row.typical_ratio == pytest.approx(1, abs=0.03)
    assert row.nodes is not None and (row.nodes.held_kernels, row.nodes.held_steps) == (10, 10)
    assert "1 of them read slower through single kernels only" in explain_absence(report)
    assert "in 10 of 12 steps single kernels (10 in all) lasted about 40 ms" in " ".join(straggler_text(report).split())


def test_communication_is_not_compared_and_mixed_regions_compare_their_computing(tmp_path: Path) -> None:
    # Ranks 0, 1 and 3 wait about 10 ms for rank 2 in the all_reduce, wherever it lies.
    job = synthetic_job(1, 4, 12, slow={(2, "layers.0.mlp"): 9.0})
    own, mixed = reports(tmp_path, job.with_all_reduce(), job.with_all_reduce(region="layers.7.mlp"))
    assert len(own.evidence) == len(mixed.evidence) == 4 * 16
    assert blamed(own) == blamed(mixed) == {(2, "layers.0.mlp")}


@pytest.mark.parametrize(("clock_error_ns", "verdict"), [(500_000, "straggler"), (5_000_000, "none")])
def test_a_cost_below_the_clock_error_is_not_a_finding(tmp_path: Path, clock_error_ns: int, verdict: str) -> None:
    # 16 regions cost 0.02 to 0.3 ms too much each, 2.3 ms together.
    slow = {(1, f"layers.{layer}.mlp"): 1.15 for layer in range(8)}
    (report,) = reports(tmp_path, synthetic_job(1, 4, 20, slow=slow), clock_error_ns=clock_error_ns)
    assert report.verdict == verdict


def test_every_verdict_is_valid_json_with_finite_numbers(tmp_path: Path) -> None:
    fine = synthetic_job(1, 4, 12).with_all_reduce()
    slow = synthetic_job(1, 4, 12, slow={(1, "layers.0.mlp"): 2.0}).with_all_reduce()
    for report in reports(tmp_path, fine, slow, synthetic_job(1, 4, 3), synthetic_job(1, 1, 12)):
        answer = json.loads(json.dumps(report_json(report), allow_nan=False))
        assert answer["verdict"] in {"straggler", "imbalance", "none", "inconclusive"}
        assert {"job", "findings", "coverage", "clock_error_ns", "steps", "ranks_seen", "ranks_expected"} <= set(answer)


def test_the_sentence_names_rank_regions_ratio_and_cost(tmp_path: Path) -> None:
    slow = {(1, f"layers.{layer}.mlp"): 2.0 for layer in (0, 3)}
    (report,) = reports(tmp_path, synthetic_job(1, 8, 12, slow=slow))
    (finding,) = report.findings
    sentence = str(report_json(report)["explanation"])
    usual = finding.effect
    assert sentence.startswith(
        "Rank 1 (host node-a) is slow in layers.*.mlp, forward and backward: "
        f"{usual:.2f} times the ranks' median, slowest in all 12 steps; it costs {finding.cost_ns_per_step / 1e6:.3g} ms"
    )


def test_several_equally_slow_ranks_are_all_named(tmp_path: Path) -> None:
    # Nobody is alone the slowest: a slow host of two ranks among eight, and half of four.
    for ranks in (8, 4):
        (tmp_path / str(ranks)).mkdir()
        slow = {(ranks - 1, "layers.0.mlp"): 2.0, (ranks - 2, "layers.0.mlp"): 2.0}
        (report,) = reports(tmp_path / str(ranks), synthetic_job(3, ranks, 30, slow=slow))
        assert report.verdict == "straggler"
        assert {finding.rank for finding in report.findings} == {ranks - 1, ranks - 2}


def test_work_outside_of_regions_is_not_called_no_straggler(tmp_path: Path) -> None:
    # Two nodes on every rank; the second lies in no region and takes rank 1 twice as long.
    steps = {rank: [[100.0, 300.0 if rank == 1 else 150.0 + i % 3] for i in range(20)] for rank in range(4)}
    load(tmp_path / "store.duckdb", write_job(tmp_path / "job", steps, ["mlp", None]))
    with Door(tmp_path / "store.duckdb") as door:
        report = straggler_report(ask_of(door), "job", 0)
    assert report.verdict == "inconclusive"
    assert "rank 1 computes" in report.reason and "no region shows it" in report.reason


def test_ranks_that_number_their_steps_differently_are_not_compared(tmp_path: Path) -> None:
    # The same iterations; rank 1's collective of step n happens a millisecond after rank 0's of step n.
    for rank in (0, 1):
        events = [
            event
            for number in range(12)
            for event in replayed_step(number, 1000.0 * (number + 1 + rank), [100 + 50 * (number % 2), 20], ["k", NCCL])
        ]
        write_trace(tmp_path / f"rank{rank}.json", events, rank=rank, world_size=2, host_name="node-a")
        write_annotations(tmp_path / f"rank{rank}.annotations.json", {0: "mlp", 1: "reduce"})
    load(tmp_path / "store.duckdb", tmp_path, job="j")
    with Door(tmp_path / "store.duckdb") as door:
        report = straggler_report(ask_of(door), "j", 0)
    assert (report.verdict, report.findings) == ("inconclusive", ())
    assert "step numbers do not belong together" in report.reason


def test_a_rank_that_costs_too_little_to_matter_is_said_with_its_cost(tmp_path: Path) -> None:
    job = synthetic_job(3, 4, 20)
    # 20 us take 26 us, forward and backward: about 12 us more, where a thousandth of what a rank computes in a step is 14.8 us.
    small = job.nodes_of("layers.1.mlp")
    durations = job.durations_ns.copy()
    durations[:, :, small] = durations[:, :, small] * 20_000 // durations[:, :, small].mean(axis=(0, 1), keepdims=True)
    durations[2, :, small] = durations[2, :, small] * 13 // 10
    (report,) = reports(tmp_path, replace(job, durations_ns=durations))
    assert (report.verdict, report.findings, len(report.too_small)) == ("none", (), 1)
    sentence = explain_absence(report)
    assert "Too small to be called a straggler: rank 2 in layers.1.mlp, " in sentence
    cost = float(np.median(durations.sum(axis=2), axis=1).max()) / 1e6
    assert f", at a cost of more than {cost:.3g} us a step, would have shown" in sentence
    phases = {row.evidence.phase for row in report.too_small[0].regions}
    times = durations[:, :, [node for node in small if job.nodes[node][1] in phases]]
    beyond = (times[2] - np.median(times, axis=0)).sum(axis=1)
    assert report.too_small[0].cost_ns_per_step == pytest.approx(np.median(beyond))


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (999_992, "1 ms"),
        (999_400, "999 us"),
        (999.7, "1 us"),
        (-999_992, "-1 ms"),
        (16_300_000, "16.3 ms"),
        (1.234e12, "1,230 s"),
        (0, "0 ns"),
    ],
)
def test_a_duration_that_is_rounded_up_takes_the_next_unit(nanoseconds: float, text: str) -> None:
    assert duration_text(nanoseconds) == text


def test_effect_and_interval_are_those_of_one_region(tmp_path: Path) -> None:
    # Two regions barely slow and two far slower: the median of the ratios would lie between the intervals.
    slow = {(2, "layers.0.mlp"): 1.3, (2, "layers.1.mlp"): 2.5}
    (report,) = reports(tmp_path, synthetic_job(3, 4, 24, slow=slow))
    (finding,) = report.findings
    assert finding.effect_low is not None and finding.effect_high is not None
    assert finding.effect_low <= finding.effect <= finding.effect_high
    assert any(finding.effect == row.typical_ratio for row in finding.regions)
