"""Tensor- and data-parallel jobs whose ranks take turns on one GPU, recorded; tests/data/README.md has the truth.

Their waits and transfers say nothing about links, and half of a job's ranks may replay another graph than the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jobs import DATA, ask_of
from typer.testing import CliRunner

from annotq.cli.main import app
from annotq.cli.straggler_text import straggler_text
from annotq.collector.query import Door, Limits
from annotq.collector.report import Report
from annotq.collector.report_json import report_json
from annotq.collector.stragglers import straggler_report

JOBS = ("dp_tp_rotating", "dp_tp_attention30", "dp_tp_launch10ms", "dp_tp_even")


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    store = tmp_path_factory.mktemp("one_gpu") / "store.duckdb"
    folders = [str(DATA / "recorded" / job) for job in JOBS]
    assert CliRunner().invoke(app, ["ingest", *folders, "--db", str(store)]).exit_code == 0
    with Door(store, Limits(rows=1_000_000)) as opened:
        yield opened


def report(door: Door, job: str) -> Report:
    return straggler_report(ask_of(door), job, 0)


def test_collectives_pair_where_ranks_replay_different_graphs_in_a_step(door: Door) -> None:
    # 16 steps of 4 ranks; in each 8 calls of the tensor pair (2 layers, attention and MLP, both phases), 2 of the data pair.
    rows = door.ask(
        "SELECT count(*), count(not_judged) FROM collectives WHERE job = 'dp_tp_rotating'"
    ).table.to_pylist()
    assert list(rows[0].values()) == [16 * 4 * (8 + 2), 0]


def test_ranks_that_take_turns_in_one_kind_of_region_are_an_imbalance(door: Door) -> None:
    found = report(door, "dp_tp_rotating")
    (finding,) = found.findings
    assert (found.verdict, finding.cause, finding.detail) == ("imbalance", "imbalance", "layers.*.attn forward")
    assert dict(zip(finding.ranks, finding.slowest, strict=True)) == {0: 4, 1: 4, 2: 4, 3: 4}
    # 35.2 us are added to the attention of each of two layers.
    assert finding.cost_ns_per_step == pytest.approx(2 * 35_232, rel=0.03)


@pytest.mark.parametrize("job", JOBS)
def test_no_link_is_blamed_and_the_report_is_whole_json(door: Door, job: str) -> None:
    found = report(door, job)
    assert "slow_link" not in {finding.cause for finding in found.findings}
    answer: dict[str, Any] = json.loads(json.dumps(report_json(found, every=True), allow_nan=False))
    assert answer["job"] == job


def test_a_late_host_is_the_only_finding(door: Door) -> None:
    (finding,) = report(door, "dp_tp_launch10ms").findings
    assert (finding.cause, finding.rank) == ("late_launch", 1)
    assert finding.cost_ns_per_step == pytest.approx(10e6, rel=0.05)


def test_one_ratio_with_its_own_interval_and_share_of_steps_stands_for_the_regions(door: Door) -> None:
    (finding,) = report(door, "dp_tp_attention30").findings
    assert (finding.cause, finding.rank) == ("slow_region", 1)
    assert {(row.evidence.region, row.evidence.phase) for row in finding.regions} == {
        ("layers.0.attn", "forward"),
        ("layers.1.attn", "forward"),
    }
    assert finding.effect_low is not None and finding.effect_high is not None
    assert finding.effect_low <= finding.effect <= finding.effect_high
    assert "slowest in all 16 steps" in straggler_text(report(door, "dp_tp_attention30")).replace("\n", " ")


def test_collectives_of_one_region_in_several_phases_have_several_names(door: Door) -> None:
    text = straggler_text(report(door, "dp_tp_even"))
    rows = [line.split() for line in text.splitlines() if line.startswith("  all_reduce in ")]
    # Up to "0 of 16": the name, the group and the rank.
    assert len(rows) == len({tuple(row[: row.index("of") - 1]) for row in rows}) == 20
    assert "all_reduce in layers.*.attn backward of group 1@0: 32 collectives" in text
