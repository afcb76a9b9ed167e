"""Causes that name a rank, a host or a group: the right one, the right steps, and no victim."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulated_causes import Cause, slow_layers
from simulated_job import Plan, simulate
from simulated_layout import LAYOUTS, Layout
from simulated_program import Workload
from simulated_store import MemoryStore

from annotq.collector.explain import explain_absence, explain_finding
from annotq.collector.report import Report
from annotq.collector.report_json import report_json
from annotq.collector.stragglers import straggler_report

Judge = Callable[..., Report]


@pytest.fixture(scope="module")
def judge() -> Judge:
    store = MemoryStore()

    def report(*causes: Cause, ranks: int = 8, seed: int = 1, layout: Layout | None = None, steps: int = 20) -> Report:
        workload = Workload(layers=2)
        store.hold(simulate(Plan(seed, layout or LAYOUTS[ranks], steps, workload, causes=causes)))
        return straggler_report(store.ask, "job", 0)

    return report


def found(report: Report) -> list[tuple[str, int | None]]:
    return [(finding.cause, finding.rank) for finding in report.findings]


@pytest.mark.parametrize("ranks", [4, 8])
def test_a_job_without_a_cause_has_no_finding_and_says_what_would_have_shown(judge: Judge, ranks: int) -> None:
    report = judge(ranks=ranks)
    assert (report.verdict, report.findings) == ("none", ())
    assert report.detectable is not None and 1.04 < report.detectable < 1.1
    assert f"A rank slower by a factor of {report.detectable:.2f} or more would have shown" in explain_absence(report)


def test_a_slow_gpu_is_told_from_slow_regions(judge: Judge) -> None:
    layers = slow_layers(LAYOUTS[8], 3, 2)
    assert found(judge(Cause("slow_gpu", 0.2, (3,)))) == [("slow_gpu", 3)]
    (finding,) = judge(Cause("slow_region", 0.2, (3,), layers)).findings
    assert (finding.cause, finding.rank) == ("slow_region", 3)
    assert {row.evidence.region for row in finding.regions} == set(layers)


def test_a_slow_gpu_with_a_region_that_is_slower_still_gives_two_findings(judge: Judge) -> None:
    causes = (Cause("slow_gpu", 0.2, (3,)), Cause("slow_region", 2.0, (3,), ("layers.1.mlp",)))
    report = judge(*causes)
    assert sorted(found(report)) == [("slow_gpu", 3), ("slow_region", 3)]
    (region,) = [finding for finding in report.findings if finding.cause == "slow_region"]
    assert {row.evidence.region for row in region.regions} == {"layers.1.mlp"}


def test_a_late_launch_is_a_gap_before_the_first_work_and_its_victims_are_not_blamed(judge: Judge) -> None:
    report = judge(Cause("late_launch", 0.3, (5,)))
    (finding,) = report.findings
    assert (report.verdict, finding.cause, finding.rank) == ("straggler", "late_launch", 5)
    assert finding.effect == pytest.approx(1.3, abs=0.05)
    assert explain_finding(finding).startswith("Rank 5 (host ")
    assert "starts its steps late: before the first work its GPU has nothing to do for" in explain_finding(finding)


def test_several_causes_at_once_are_several_findings(judge: Judge) -> None:
    causes = (Cause("slow_gpu", 0.3, (1,)), Cause("late_launch", 0.4, (6,)), Cause("slow_link", 1.0, (2,)))
    assert sorted(found(judge(*causes))) == [("late_launch", 6), ("slow_gpu", 1), ("slow_link", 2)]


@pytest.mark.parametrize(("first", "end"), [(0, None), (14, None), (0, 7), (6, 14)])
def test_onset_and_end_of_an_effect(judge: Judge, first: int, end: int | None) -> None:
    report = judge(Cause("slow_gpu", 0.4, (3,), first=first, end=end))
    (finding,) = report.findings
    steps = report.comparison.work.steps
    assert (finding.cause, finding.rank) == ("slow_gpu", 3)
    assert finding.since_step == (steps[first] if first else None)
    assert finding.until_step == (steps[end - 1] if end else None)
    assert finding.holds_at_end == (end is None)
    assert (" was slow in " in explain_finding(finding)) == (end is not None)


@pytest.mark.parametrize("size", [0.2, 1.0])
def test_late_launches_in_the_middle_of_the_window_are_found_with_their_steps(judge: Judge, size: float) -> None:
    report = judge(Cause("late_launch", size, (2,), first=6, end=14))
    (finding,) = report.findings
    steps = report.comparison.work.steps
    assert (finding.cause, finding.rank) == ("late_launch", 2)
    assert (finding.since_step, finding.until_step) == (steps[6], steps[13])


def test_the_link_of_a_rank_is_what_its_slow_groups_have_in_common(judge: Judge) -> None:
    (finding,) = judge(Cause("slow_link", 0.5, (3,)), ranks=4).findings
    assert (finding.cause, finding.rank, finding.detail) == ("slow_link", 3, "2 groups")
    assert finding.effect == pytest.approx(1.5, abs=0.1)
    assert explain_finding(finding).startswith("The link of rank 3")


def test_the_link_of_a_host_is_named_with_its_ranks(judge: Judge) -> None:
    layout = Layout(dp=4, tp=4, pp=1, ranks_per_host=4)
    (finding,) = judge(Cause("slow_link", 0.5, (8, 9, 10, 11)), layout=layout).findings
    assert (finding.cause, finding.rank, finding.ranks) == ("slow_link", None, (8, 9, 10, 11))
    assert finding.host is not None and finding.host in explain_finding(finding)


def test_of_one_slow_group_among_several_nobody_can_tell_which_rank_it_is(judge: Judge) -> None:
    # Without data parallelism every rank is in one tp group only.
    layout = Layout(dp=1, tp=4, pp=4, ranks_per_host=16)
    (finding,) = judge(Cause("slow_link", 1.0, (5,)), layout=layout).findings
    assert (finding.cause, finding.rank, finding.ranks) == ("slow_link", None, (4, 5, 6, 7))
    assert explain_finding(finding).startswith("The link of one of the ranks 4-7 is slow: transfers in 1 group")


def test_one_group_alone_cannot_tell_its_link_from_the_network(judge: Judge) -> None:
    assert judge(Cause("slow_link", 1.0, (1,)), ranks=2).findings == ()


def test_three_steps_of_eight_ranks_show_a_large_effect_only(judge: Judge) -> None:
    assert found(judge(Cause("slow_gpu", 0.5, (3,)), steps=3)) == [("slow_gpu", 3)]
    assert judge(Cause("slow_gpu", 0.03, (3,)), steps=3).findings == ()


def test_equal_jobs_give_equal_digits(judge: Judge) -> None:
    one, two = (report_json(judge(Cause("slow_gpu", 0.2, (3,))), every=True) for _ in range(2))
    assert one == two
