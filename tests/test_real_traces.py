"""The recorded 4-rank jobs against what is true of them (tests/data/README.md), from files to the answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import DATA, ask_of, load, rows

from annotq.collector.query import Door
from annotq.collector.report_json import report_json
from annotq.collector.stragglers import Report, straggler_report

MLP = {(f"layers.{layer}.mlp", phase) for layer in range(4) for phase in ("forward", "backward")}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("real") / "store.duckdb"
    outcomes = load(path, DATA / "control4", DATA / "slow4")
    assert [outcome.problems for outcome in outcomes] == [()] * 16
    return path


def report(store: Path, job: str) -> Report:
    with Door(store) as door:
        return straggler_report(ask_of(door), job, 0)


@pytest.mark.parametrize(
    ("job", "rank", "gpu_events", "graph_events", "matched"),
    [("control4", rank, 3552, 3060, 2856) for rank in range(4)]
    + [("slow4", rank, 3552, 3060, 2856) for rank in (0, 1, 3)]
    + [("slow4", 2, 7152, 5940, 5016)],
)
def test_the_receipt_is_exact(
    store: Path, job: str, rank: int, gpu_events: int, graph_events: int, matched: int
) -> None:
    found = rows(
        store,
        "SELECT gpu_events, graph_events, matched, unannotated, orphan, encoding, status, note FROM coverage "
        "WHERE job = ? AND rank = ?",
        job,
        rank,
    )
    assert found == [(gpu_events, graph_events, matched, graph_events - matched, 0, "packed", "complete", None)]


def test_the_views_hold_the_same_numbers_as_the_receipt(store: Path) -> None:
    by_view = rows(
        store,
        """SELECT count(*), count(*) FILTER (WHERE replay_id IS NOT NULL),
                  count(*) FILTER (WHERE replay_id IS NOT NULL AND region IS NOT NULL) FROM kernels""",
    )
    by_receipt = rows(
        store, "SELECT sum(gpu_events)::BIGINT, sum(graph_events)::BIGINT, sum(matched)::BIGINT FROM coverage"
    )
    assert by_view == by_receipt == [(4 * 3552 + 3 * 3552 + 7152, 7 * 3060 + 5940, 7 * 2856 + 5016)]


def test_slow4_has_one_finding_rank_2_in_the_mlps(store: Path) -> None:
    found = report(store, "slow4")
    assert found.verdict == "straggler"
    (finding,) = found.findings
    assert (finding.rank, finding.cause) == (2, "slow_region")
    assert {(row.evidence.region, row.evidence.phase) for row in finding.regions} == MLP
    for row in finding.regions:
        assert 3.5 <= row.typical_ratio <= 4.1
        assert row.evidence.ratio_low is not None and row.evidence.ratio_low > 1
        assert row.evidence.slowest_share == 1.0
        if (row.evidence.region, row.evidence.phase) != ("layers.0.mlp", "backward"):
            assert 3.5 <= row.evidence.ratio <= 4.1
    assert finding.caused_wait is not None and finding.caused_wait.wait_ns > 10e6


def test_single_kernels_are_told_from_slow_code(store: Path) -> None:
    (finding,) = report(store, "slow4").findings
    (odd,) = [row for row in finding.regions if row.single_kernels_matter]
    assert (odd.evidence.region, odd.evidence.phase) == ("layers.0.mlp", "backward")
    assert odd.evidence.ratio > 50
    assert odd.nodes is not None
    assert (odd.nodes.held_steps, odd.nodes.steps) == (7, 12)
    assert odd.nodes.held_ns == pytest.approx(7e6, rel=0.05)


def test_rank_2_of_slow4_is_no_slower_anywhere_else_in_the_graph(store: Path) -> None:
    found = rows(store, "SELECT region, phase, ratio FROM regions WHERE job = 'slow4' AND rank = 2")
    # eager.eval runs the same MLPs outside of the graph and outside of every step; the all_reduce holds no wait on rank 2.
    others = {(region, phase): ratio for region, phase, ratio in found if (region, phase) not in MLP}
    assert others.pop(("eager.eval", "forward")) > 1.1
    assert max(others.values()) <= 1.10


def test_rank_2_of_slow4_arrives_last_from_the_second_step_on(store: Path) -> None:
    found = rows(
        store,
        """SELECT step, last_rank, count(*), count(*) FILTER (WHERE rank <> 2 AND wait_clock_ns > 0)
           FROM _collective_waits WHERE job = 'slow4' GROUP BY step, last_rank ORDER BY step""",
    )
    assert found[1:] == [(step, 2, 4, 3) for step in range(1, 12)]


def test_wait_and_transfer_add_up_to_the_kernel(store: Path) -> None:
    found = rows(
        store,
        """SELECT wait_clock_ns, transfer_clock_ns, wait_duration_ns, transfer_duration_ns, duration_ns
           FROM _collective_waits WHERE end_ns >= arrive_ns + wait_clock_ns""",
    )
    assert len(found) > 60
    for wait, transfer, wait_by_duration, transfer_by_duration, duration in found:
        assert wait + transfer == wait_by_duration + transfer_by_duration == duration


def test_control4_blames_nobody_although_its_ranks_wait(store: Path) -> None:
    found = report(store, "control4")
    assert (found.verdict, found.findings) == ("none", ())
    assert max(row.wait_ns or 0 for row in found.waits) > 10e6
    last = {row.rank: row.last for row in found.waits}
    assert max(last.values()) < 12


def test_the_json_answer_has_the_promised_keys(store: Path) -> None:
    answer = report_json(report(store, "slow4"))
    assert (answer["job"], answer["verdict"], answer["steps"]) == ("slow4", "straggler", 12)
    assert (answer["ranks_seen"], answer["ranks_expected"], answer["clock_error_ns"]) == ([0, 1, 2, 3], 4, 1000)
    findings = answer["findings"]
    assert isinstance(findings, list)
    assert {"rank", "host", "cause", "regions", "cost_ns_per_step", "caused_wait_ns_per_step", "explanation"} <= set(
        findings[0]
    )
    region_keys = {"region", "phase", "ratio", "ratio_low", "ratio_high", "slowest_share", "steps"}
    assert all(region_keys <= set(region) for region in findings[0]["regions"])
    assert "layers.*.mlp" in findings[0]["explanation"]


def test_every_comparison_can_be_listed_in_every_form(store: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "annotq.cli",
        "stragglers",
        "--db",
        str(store),
        "--job",
        "slow4",
        "--all",
        "--format",
    ]

    def out(form: str) -> str:
        return subprocess.run([*command, form], capture_output=True, text=True, check=True, timeout=60).stdout

    listed = json.loads(out("json"))["evidence"]
    # 4 layers of attn and mlp in two phases, the loss in two, the optimizer, on 4 ranks; the all_reduce is no compute.
    assert len(listed) == (4 * 2 * 2 + 2 + 1) * 4
    assert len(listed) == json.loads(out("json"))["comparisons"]
    assert len(out("csv").splitlines()) == 1 + len(listed)
    slow = {(row["region"], row["phase"]) for row in listed if row["rank"] == 2 and row["ratio"] > 3}
    assert slow == MLP
    assert "3.80x" in out("table")
