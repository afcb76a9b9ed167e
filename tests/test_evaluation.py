"""The yardsticks of docs/evaluation.md: NVIDIA's scores by hand, and that sections of the page are replaced one by one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluation"))

from detection import CAUSES, planned
from kineto_export import export
from nvrx import gpu_scores, named_by_gpu, named_by_section, section_scores
from page import Section, percent, write_page
from sample import Sample
from simulated_causes import Cause
from simulated_job import Plan, simulate
from simulated_layout import LAYOUTS, Layout
from simulated_noise import SILENT
from simulated_program import Workload

from annotq.agent.kineto import read_trace

ONE_LAYER = Workload(layers=1, kernels=1)


def test_relative_scores_are_best_median_over_own_weighted_by_time() -> None:
    slow = Cause("slow_region", 1.0, (2,), ("layers.0.mlp",))
    job = simulate(Plan(layout=Layout(dp=4), noise=SILENT, workload=ONE_LAYER, causes=(slow,)))
    compute = {(ran.operation.region, ran.operation.phase): ran.time_ns for ran in job.ran if ran.operation.computes}
    scores = section_scores(job)
    assert scores["layers.0.mlp", "forward"] == pytest.approx([1, 1, 0.5, 1], abs=1e-4)
    assert scores["layers.0.attn", "backward"] == pytest.approx([1, 1, 1, 1])
    mlp = sum(times[2].sum() for (region, _), times in compute.items() if region == "layers.0.mlp")
    rest = sum(times[2].sum() for (region, _), times in compute.items() if region == "layers.0.attn")
    expected = (0.5 * mlp + rest) / (mlp + rest)
    assert gpu_scores(job) == pytest.approx([1, 1, expected, 1], abs=1e-4)
    assert named_by_section(job) == {2}
    assert named_by_gpu(job) == ({2} if expected < 0.75 else set())


@pytest.mark.parametrize(("size", "named"), [(0.30, set()), (0.40, {1})])
def test_a_score_of_three_quarters_is_the_threshold(size: float, named: set[int]) -> None:
    plan = Plan(layout=LAYOUTS[4], noise=SILENT, causes=(Cause("slow_gpu", size, (1,)),))
    assert named_by_gpu(simulate(plan)) == named


def test_the_exported_traces_hold_every_kernel_of_the_job(tmp_path: Path) -> None:
    job = simulate(Plan(layout=LAYOUTS[2], steps=3))
    export(job, tmp_path)
    for rank in (0, 1):
        with read_trace(tmp_path / f"rank{rank}.json", rank=rank) as trace:
            events = list(trace.gpu_events())
        count = sum(batch.num_rows for batch in events)
        assert count == sum(ran.start_ns.shape[0] for ran in job.ran) * 3
        steps = np.concatenate([batch.column("step").to_numpy(zero_copy_only=False) for batch in events])
        assert np.bincount(steps.astype(int))[10:].tolist() == [count // 3] * 3


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("ranks", LAYOUTS)
def test_a_planned_job_has_its_cause_on_ranks_that_exist(cause: str, ranks: int) -> None:
    plan = planned(cause, 0.5, ranks, seed=3)  # type: ignore[arg-type]
    if plan is None:
        assert (cause, ranks) == ("slow_link", 2)
        return
    (put_in,) = plan.causes
    assert (put_in.name, plan.layout.size) == (cause, ranks)
    assert all(0 <= rank < ranks for rank in put_in.ranks)
    assert bool(put_in.ranks) == (cause not in ("imbalance", "global"))


def test_a_section_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    first, second = Section("One", "a", [("x",), ("1",)]), Section("Two", "b", [])
    write_page(page, "# Page", [second, first], ["One", "Two"])
    assert page.read_text() == "# Page\n\n## One\n\na\n\n| x |\n|---|\n| 1 |\n\n## Two\n\nb\n"
    write_page(page, "# Page", [Section("One", "c", [])], ["One", "Two"])
    assert page.read_text() == "# Page\n\n## One\n\nc\n\n## Two\n\nb\n"


def test_percentages_keep_a_tenth_where_there_is_one() -> None:
    assert [percent([]), percent([True] * 3), percent([True] + [False] * 7)] == ["-", "100", "12.5"]


def test_jobs_of_another_series_are_other_jobs_with_the_same_cause() -> None:
    tuned, held_out = (planned("slow_gpu", 0.1, 8, Sample(series=series).seed(7)) for series in (0, 1))
    assert tuned is not None and held_out is not None
    assert tuned.seed != held_out.seed
    assert (tuned.causes[0].name, tuned.causes[0].size) == (held_out.causes[0].name, held_out.causes[0].size)
    first, second = (simulate(plan).ran[0].duration_ns for plan in (tuned, held_out))
    assert not np.array_equal(first, second)


def test_every_cell_has_a_job() -> None:
    assert [Sample(times).count(20) for times in (0.01, 0.5, 2.0)] == [1, 10, 40]
