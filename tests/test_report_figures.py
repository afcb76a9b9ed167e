"""The figures of the report: their SQL against the analysis, large jobs, and jobs in which something is missing."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from jobs import DATA, load, rows, write_job
from simulated_causes import Cause, slow_layers
from simulated_job import HostClocks, Plan, simulate
from simulated_layout import Layout
from simulated_program import Workload
from simulated_store import simulated_store
from small_store import START_NS, small_store

from annotq.cli.html import rank_steps, region_ratios, region_table, step_time
from annotq.cli.html.heatmap import ratio_pane
from annotq.cli.html.questions import Questions
from annotq.cli.html.report_page import page_of, read_page
from annotq.cli.html.subject import Subject, read_subject
from annotq.collector.query import Door, Limits
from annotq.collector.store import Store

LAYOUT = Layout(dp=20, tp=4)
SLOW_RANK = 57


@pytest.fixture(scope="module")
def eighty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 ranks on 10 hosts, more than a page shows one by one; rank 57 takes 1.5 times as long in every MLP."""
    slow = Cause("slow_region", 0.5, (SLOW_RANK,), slow_layers(LAYOUT, 0, 2))
    plan = Plan(seed=3, layout=LAYOUT, steps=60, workload=Workload(layers=2, kernels=2), causes=(slow,))
    return simulated_store(tmp_path_factory.mktemp("eighty") / "store.duckdb", job=simulate(plan))


def subject_of(door: Door, job: str) -> Subject:
    return read_subject(Questions(door), job, 0)


class Sections(HTMLParser):
    """The texts of a page by the id of their section."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self._section = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "section":
            self._section = dict(attrs)["id"] or ""

    def handle_data(self, data: str) -> None:
        if self._section and data.strip():
            self.texts[self._section] = f"{self.texts.get(self._section, '')} {data.strip()}".strip()


def sections(store: Path, job: str) -> dict[str, str]:
    with Door(store, Limits(rows=1_000_000)) as door:
        return Sections(page_of(*read_page(Questions(door), job))).texts


def test_the_sql_of_the_ratios_counts_the_steps_that_the_verdict_counts(tmp_path: Path) -> None:
    # Rank 2 has five of eight steps. For "a" all steps of the other ranks count; "b" ran on two ranks only, in five.
    steps = [[10 + step, 20] for step in range(8)]
    durations = {0: steps, 1: [[2 * a, b] for a, b in steps], 2: [[a + 3, b] for a, b in steps[:5]], 3: steps}
    store = tmp_path / "store.duckdb"
    load(store, write_job(tmp_path / "job", durations, ["a", "b"]))
    with Door(store) as door:
        subject = subject_of(door, "job")
        table = subject.questions.rows(region_ratios.statement(subject)).to_pylist()
        found = region_ratios.region_ratios(subject)
    places = {region: place for place, region in enumerate(found.regions)}
    assert len(table) == 8
    for row in table:
        place = places[row["region"], row["phase"]], found.ranks.index(row["rank"])
        assert row["ratio"] == pytest.approx(found.ratio[place])
        assert row["compute_ns"] == found.compute_ns[place]
    # By hand: of the ranks' times a, 2a, a + 3, a the median is a + 1.5, so rank 1 reads 2a / (a + 1.5) in the five steps in
    # which rank 2 ran, and 2 in the other three; of these eight the ones that keep the most rows count: 3 ranks, 8 steps.
    assert {row["steps"] for row in table if row["rank"] == 1} == {8}
    ratios = [2 * a / (a + 1.5) for a in range(10, 15)] + [2.0] * 3
    assert next(row["ratio"] for row in table if (row["region"], row["rank"]) == ("a", 1)) == pytest.approx(
        np.median(ratios)
    )


def test_the_choice_of_ranks_reads_the_view_step_parts(eighty: Path) -> None:
    with Door(eighty, Limits(rows=1_000_000)) as door:
        subject = subject_of(door, "job")
        chosen = step_time.chosen_ranks(subject)
        assert SLOW_RANK in chosen and len(chosen) <= step_time.RANKS_CHOSEN and chosen == sorted(set(chosen))
        some = step_time.read(subject, step_time.statement(subject, chosen))
        all_ranks = step_time.read(subject, step_time.statement(subject, None))
    assert some == [row for row in all_ranks if row.rank in chosen]
    assert len(all_ranks) == 80
    for row in all_ranks:
        assert sum(row.parts) == pytest.approx(row.period_ns)


def test_the_steps_that_the_verdict_read_are_those_of_the_store(eighty: Path, tmp_path: Path) -> None:
    # slow4 has steps and GPU work outside of regions; "drifts" has hosts whose clocks drift, where the store is asked.
    real = tmp_path / "real.duckdb"
    load(real, DATA / "slow4")
    clocks = HostClocks(offset_ns=5_000_000, drift_ppb=20_000)
    drifts = simulate(Plan(seed=4, layout=Layout(dp=4, ranks_per_host=2), steps=5, clocks=clocks))
    drifting = simulated_store(tmp_path / "drifting.duckdb", drifts=drifts)
    for store, job in ((eighty, "job"), (real, "slow4"), (drifting, "drifts")):
        with Door(store, Limits(rows=1_000_000)) as door:
            subject = subject_of(door, job)
            found, asked = rank_steps.read(subject), rank_steps.asked(subject)
        assert (found.ranks, found.steps) == (asked.ranks, asked.steps)
        for measure in rank_steps.MEASURES:
            np.testing.assert_array_equal(found.grids[measure], asked.grids[measure])


@pytest.mark.parametrize("job", ["slow4", "eager4"])
def test_the_region_table_adds_up_what_the_view_regions_has_of_each_rank(job: str, tmp_path: Path) -> None:
    # slow4: graph work in regions, and eager work in others; eager4: nothing else than eager work.
    store = tmp_path / "store.duckdb"
    load(store, DATA / job, job="job")
    expected = rows(
        store,
        """SELECT region, phase, count(*), sum(instances), sum(kernels), median(median_ns), max(p99_ns), sum(total_ns)
           FROM regions WHERE job = 'job' GROUP BY region, phase ORDER BY sum(total_ns) DESC, region, phase""",
    )
    with Door(store, Limits(rows=1_000_000)) as door:
        found = door.ask(region_table.REGIONS, ["job", 0]).table.to_pylist()
    names = ("region", "phase", "ranks", "passes", "kernels", "median_ns", "p99_ns", "total_ns")
    assert [tuple(row[name] for name in names) for row in found] == expected


def test_cells_that_read_the_same_have_the_same_shade() -> None:
    times = np.array([[1.0, 1.0249, 0.9751, 1.0251, 1.0349, 0.9749, 1.999]])
    pane = ratio_pane("ratio", "Ratio", "ratio", times)
    assert pane.texts == [["1.00", "1.02", "0.98", "1.03", "1.03", "0.97", "2.00"]]
    assert pane.shades == [["n0", "n0", "n0", "s1", "s1", "f1", "s5"]]


def test_many_ranks_are_shown_by_host_and_no_slow_one_is_lost(eighty: Path) -> None:
    with Door(eighty, Limits(rows=1_000_000)) as door:
        subject = subject_of(door, "job")
        data = rank_steps.read(subject)
        worst = float(np.nanmax(data.grids["compute_ratio"]))
        figure = rank_steps.figure(subject)
    assert np.unravel_index(np.nanargmax(data.grids["compute_ratio"]), (80, 60))[0] == SLOW_RANK
    text = Sections(figure.html()).texts["steps"]
    assert "Each column is the worst of 2 steps in a row, named after the first." in text
    assert "10 hosts, each by its worst rank" in text
    assert "The 16 of 80 ranks with the highest median ratio" in text
    # 10 hosts and 16 ranks in 30 columns; the largest ratio of all is in both maps.
    assert figure.body.count("<tr>") == 4 * (10 + 16) + 4 * 2
    assert figure.body.count(f">{worst:.2f}<") >= 2


SILENCED: dict[str, tuple[Callable[[Store], object], dict[str, str]]] = {
    "no steps": (
        lambda store: store.connection.execute("UPDATE gpu_event SET step = NULL"),
        {
            "findings": "No verdict:",
            "steps": "No step is known: the traces name none",
            "rank-regions": "No region can be compared:",
            "step-time": "No GPU work was launched in a step",
            "provenance": "12 of 12 GPU events were launched outside of every step",
        },
    ),
    "no collectives": (
        lambda store: store.connection.execute("UPDATE gpu_event SET communication = false, name = 'copy'"),
        {"collectives": "There is no wait to show. No communication kernel was recorded."},
    ),
    "no names": (
        lambda store: store.connection.execute("DELETE FROM annotation"),
        {"regions": "None of the 12 GPU events lies in a region", "provenance": "0 of 12 graph kernels matched"},
    ),
    "one rank": (
        lambda store: [
            store.connection.execute(f"DELETE FROM {table} WHERE rank = 1") for table in ("gpu_event", "trace")
        ],
        {
            "findings": "No verdict: only rank 0 has data, there is nothing to compare.",
            "provenance": "1 of 2 sent a usable trace; missing: 1",
            "spread": "No region can be compared:",
            "collectives": "There is no wait to show. Not judged",
        },
    ),
    "rejected": (
        lambda store: store.connection.execute("UPDATE trace SET status = 'rejected', note = 'It is cut off.'"),
        {
            "steps": "None of the 2 traces can be used: they were rejected or are still arriving, see above.",
            "provenance": "rank 1, rank1.json: rejected (It is cut off.)",
        },
    ),
}


@pytest.mark.parametrize("what", SILENCED)
def test_what_is_missing_is_said(what: str, tmp_path: Path) -> None:
    change, expected = SILENCED[what]
    store = small_store(tmp_path / "store.duckdb")
    with Store(store) as opened:
        change(opened)
    found = sections(store, "tiny")
    assert {figure: text for figure, text in expected.items() if text not in found[figure]} == {}


def test_a_job_that_has_sent_no_window_yet(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store.duckdb")
    with Store(store) as opened:
        for table in ("gpu_event", "trace"):
            opened.connection.execute(f"DELETE FROM {table}")
        opened.connection.execute("UPDATE process SET process_key = concat('key', rank)")
        opened.connection.execute(
            "INSERT INTO heartbeat SELECT process_id, $now, $now, true, 17, 5000000, 0, 0 FROM process",
            {"now": START_NS},
        )
    found = sections(store, "tiny")
    assert "0 of 2 sent a usable trace; missing: 0-1" in found["provenance"]
    assert "2 running; last step announced: 17; last sign of life 2025-12-01 03:24:10 UTC" in found["provenance"]
    nothing = "No profiler window has arrived yet, so nothing was measured."
    for figure in ("steps", "rank-regions", "spread", "step-time", "collectives", "regions"):
        assert nothing in found[figure]


def test_a_job_on_cpus_shows_the_steps_of_its_hosts(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store.duckdb")
    with Store(store) as opened:
        opened.connection.execute("DELETE FROM gpu_event")
        opened.connection.execute("UPDATE trace SET gpu_events = 0, graph_events = 0, encoding = 'none'")
        opened.connection.execute(
            """INSERT INTO host_span
               SELECT trace_id, process_id, rank, 1000 * step, 900 + 200 * rank, 'step', concat('ProfilerStep#', step), 1,
                   NULL, step
               FROM trace, range(1, 5) AS steps(step)"""
        )
    steps = sections(store, "tiny")["steps"]
    assert "these are the steps as the profiler saw them on the host" in steps
    # 900 and 1,100 ns against their median of 1,000 ns.
    assert "0 0.90 0.90 0.90 0.90 1 1.10 1.10 1.10 1.10" in steps


def test_what_a_ratio_of_two_ranks_means_is_said(tmp_path: Path) -> None:
    # The median of 10 and 20 us is 15 us.
    store = tmp_path / "store.duckdb"
    load(store, write_job(tmp_path / "job", {0: [[10, 5]] * 6, 1: [[20, 5]] * 6}, ["mlp", "grads.reduce"]))
    found = sections(store, "job")
    assert "mlp forward 0.67 1.33" in found["rank-regions"]
    for figure in ("steps", "rank-regions"):
        assert "one that takes twice as long as the other reads 1.33" in found[figure]


def test_every_figure_is_about_the_attempt_that_is_asked_for(tmp_path: Path) -> None:
    # In attempt 0 rank 1 takes three times as long, in attempt 1 nobody does.
    store = tmp_path / "store.duckdb"
    for attempt, slow in enumerate((30, 10)):
        durations = {0: [[10, 5]] * 6, 1: [[slow, 5]] * 6, 2: [[10, 5]] * 6}
        folder = write_job(tmp_path / f"attempt{attempt}", durations, ["mlp", "grads.reduce"])
        load(store, folder, job="job", attempt=attempt)
    with Door(store, Limits(rows=1_000_000)) as door:
        first, latest = (Sections(page_of(*read_page(Questions(door), "job", number))).texts for number in (0, None))
    assert "job, attempt 0 of 2 (0, 1)" in first["provenance"] and "attempt 1 of 2" in latest["provenance"]
    assert "mlp forward 1.00 3.00 1.00" in first["rank-regions"]
    assert "mlp forward 1.00 1.00 1.00" in latest["rank-regions"]
    assert "1 3.00 3.00 3.00 3.00 3.00 3.00" in first["steps"] and "3.00" not in latest["steps"]
    assert "3.00\N{MULTIPLICATION SIGN}" in first["regions"]
    assert "3.00\N{MULTIPLICATION SIGN}" not in latest["regions"]


def test_versions_that_differ_are_a_warning(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store.duckdb")
    with Store(store) as opened:
        opened.connection.execute(
            """UPDATE process SET versions = CASE rank WHEN 0 THEN '{"torch": "2.14", "cuda_driver": "13010"}'
                                                  ELSE '{"torch": "2.13", "cuda_driver": "13010"}' END"""
        )
    text = sections(store, "tiny")["provenance"]
    assert "driver for CUDA 13.1" in text
    assert "torch differs: 2.14 (ranks 0), 2.13 (ranks 1)" in text


def test_a_rank_of_several_groups_is_named_once(tmp_path: Path) -> None:
    # Per step an all_reduce of all four ranks and one of each pair; rank 1 computes longer and comes last to both of its own.
    store = tmp_path / "store.duckdb"
    load(store, DATA / "eager4")
    (counted,) = rows(
        store,
        """SELECT count(*) FILTER (WHERE last_rank = 1), count(*) FROM collectives
           WHERE job = 'eager4' AND name = 'all_reduce' AND rank = 1 AND last_rank IS NOT NULL""",
    )
    text = sections(store, "eager4")["collectives"]
    assert f"rank 1 in {counted[0]} of {counted[1]}, rank 3 in 8 of 16" in text
    assert counted == (16, 16)


@pytest.mark.parametrize("job", ["eager4", "torch211"])
def test_recorded_jobs_without_names_have_a_page(job: str, tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    load(store, DATA / job)
    found = sections(store, job)
    ids = {"findings", "provenance", "steps", "rank-regions", "spread", "step-time", "collectives", "regions"}
    assert ids <= set(found)
