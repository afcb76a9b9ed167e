"""Causes that name no rank: uneven steps, a long pipeline stage, and everybody slower than before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulated_causes import Cause
from simulated_job import Plan, simulate
from simulated_layout import LAYOUTS, STAGED_LAYOUTS, Layout
from simulated_noise import KINDS, Noise
from simulated_store import MemoryStore

from annotq.collector.explain import explain_finding
from annotq.collector.report import Report
from annotq.collector.report_json import report_json
from annotq.collector.stragglers import straggler_report

Judge = Callable[..., Report]


@pytest.fixture(scope="module")
def judge() -> Judge:
    store = MemoryStore()

    def report(
        *causes: Cause, layout: Layout = LAYOUTS[8], seed: int = 1, steps: int = 20, noise: Noise | None = None
    ) -> Report:
        store.hold(simulate(Plan(seed, layout, steps, noise=noise or Noise(), causes=causes)))
        return straggler_report(store.ask, "job", 0)

    return report


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_imbalance_names_nobody_and_says_who_was_slowest_how_often(judge: Judge, ranks: int) -> None:
    report = judge(Cause("imbalance", 0.3), layout=LAYOUTS[ranks])
    (finding,) = report.findings
    assert (report.verdict, finding.cause, finding.rank) == ("imbalance", "imbalance", None)
    assert sum(finding.slowest) >= 0.9 * finding.steps
    assert set(finding.ranks) == set(range(ranks))
    assert finding.effect == pytest.approx(1.3, abs=0.05)
    (answer,) = report_json(report)["findings"]  # type: ignore[misc]
    assert (answer["rank"], answer["slowest_steps"]) == (None, list(finding.slowest))


@pytest.mark.parametrize("kind", ["heavy tails", "held-up kernels"])
def test_noise_is_no_imbalance(judge: Judge, kind: str) -> None:
    assert judge(layout=LAYOUTS[64], noise=KINDS[kind]).verdict == "none"


@pytest.mark.parametrize("layout", [STAGED_LAYOUTS[4], LAYOUTS[8]])
def test_a_slow_stage_is_its_ranks_and_none_of_them(judge: Judge, layout: Layout) -> None:
    slow = tuple(int(rank) for rank in layout.stage(1))
    report = judge(Cause("stage", 0.25, slow), layout=layout)
    (finding,) = report.findings
    assert (report.verdict, finding.cause, finding.rank, finding.ranks) == ("imbalance", "stage", None, slow)
    assert finding.effect == pytest.approx(1.25, abs=0.05)
    assert explain_finding(finding).startswith("Pipeline stage 1 (ranks ")


def test_a_slow_rank_within_a_stage_is_found_in_its_stage(judge: Judge) -> None:
    report = judge(Cause("stage", 0.25, (4, 5, 6, 7)), Cause("slow_gpu", 0.3, (1,)))
    assert {(finding.cause, finding.rank) for finding in report.findings} == {("stage", None), ("slow_gpu", 1)}


def test_everybody_slower_since_a_step_is_global_and_no_straggler(judge: Judge) -> None:
    report = judge(Cause("global", 0.2, first=12))
    (finding,) = report.findings
    assert (report.verdict, finding.cause, finding.rank) == ("none", "global", None)
    assert finding.since_step == report.comparison.work.steps[12]
    assert finding.effect == pytest.approx(1.2, abs=0.03)


def test_everybody_slower_for_a_while_is_global_until_a_step(judge: Judge) -> None:
    report = judge(Cause("global", 0.2, first=6, end=14))
    (finding,) = report.findings
    steps = report.comparison.work.steps
    assert (report.verdict, finding.cause, finding.holds_at_end) == ("none", "global", False)
    assert (finding.since_step, finding.until_step) == (steps[6], steps[13])
    assert explain_finding(finding).startswith("Everybody was slower than before: the ranks computed ")


def test_a_slow_beginning_does_not_hide_what_comes_later(judge: Judge) -> None:
    # The first three steps take twice as long; a beginning alone is nothing to report, later steps are.
    beginning = Cause("global", 1.0, first=0, end=3)
    assert judge(beginning).findings == ()
    report = judge(beginning, Cause("global", 0.2, first=12))
    (finding,) = report.findings
    assert finding.since_step == report.comparison.work.steps[12]


def test_a_slow_rank_that_begins_late_is_not_everybody(judge: Judge) -> None:
    # Of two ranks the slow one moves the median of both.
    report = judge(Cause("slow_gpu", 1.0, (1,), first=10), layout=LAYOUTS[2])
    assert [(finding.cause, finding.rank) for finding in report.findings] == [("slow_gpu", 1)]
