"""Five jobs of four ranks whose steps are CUDA graphs, as annotq recorded them on a GPU; tests/data/README.md has the truth."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from jobs import DATA, rows

RECORDED = DATA / "recorded"
BY_MODULES = ("even", "instantiated_again", "slow_attention")
BY_HAND = ("late_launch", "rotating")
STEPS = (*range(3, 11), *range(14, 22))  # of two profiler windows
ATTENTION = {
    (f"layers.{layer}.{name}", phase)
    for layer in range(2)
    for name in ("attn", "attn.out", "attn.qkv")
    for phase in ("forward", "backward")
}


def annotq(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "annotq.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph_jobs") / "store.duckdb"
    annotq("ingest", *(RECORDED / job for job in sorted(BY_MODULES + BY_HAND)), "--db", path)
    return path


def report(store: Path, job: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(annotq("stragglers", "--db", store, "--job", job, "--format", "json"))
    return answer


def slow_regions(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in answer["findings"] if finding["cause"] == "slow_region"]


def test_job_and_rank_are_what_each_process_said(store: Path) -> None:
    found = rows(store, "SELECT job, list(DISTINCT rank ORDER BY rank) FROM coverage GROUP BY job ORDER BY job")
    assert found == [(job, [0, 1, 2, 3]) for job in sorted(BY_MODULES + BY_HAND)]


@pytest.mark.parametrize(
    ("job", "traces", "graph_events", "matched"),
    [
        ("even", 4, 5_280, 5_280),
        ("instantiated_again", 8, 11_232, 11_232),
        ("slow_attention", 8, 13_440, 13_440),
        ("late_launch", 8, 10_688, 10_176),
        ("rotating", 8, 10_688, 10_176),
    ],
)
def test_the_receipt_is_exact(store: Path, job: str, traces: int, graph_events: int, matched: int) -> None:
    found = rows(
        store,
        """SELECT count(*), sum(gpu_events)::BIGINT, sum(graph_events)::BIGINT, sum(matched)::BIGINT,
                  sum(unannotated)::BIGINT, sum(orphan)::BIGINT, min(status), max(encoding), max(note)
           FROM coverage WHERE job = ?""",
        job,
    )
    unannotated = graph_events - matched
    assert found == [(traces, graph_events, graph_events, matched, unannotated, 0, "complete", "packed", None)]


@pytest.mark.parametrize("job", BY_MODULES)
def test_modules_name_the_work_of_both_directions(store: Path, job: str) -> None:
    found = rows(store, "SELECT DISTINCT region, phase FROM kernels WHERE job = ? AND region LIKE 'layers.%'", job)
    parts = ("attn", "attn.out", "attn.qkv", "mlp", "mlp.down", "mlp.up", "norm")
    both = {
        (f"layers.{layer}.{part}", phase) for layer in (0, 1) for part in parts for phase in ("forward", "backward")
    }
    # The additions of the residual connections are the layer's own.
    assert set(found) == both | {("layers.0", "forward"), ("layers.1", "forward")}
    paths = rows(store, "SELECT DISTINCT region_path FROM kernels WHERE job = ? AND region = 'layers.1.attn.qkv'", job)
    assert paths == [("Net > layers.1 > layers.1.attn > layers.1.attn.qkv",)]


@pytest.mark.parametrize("job", BY_HAND)
def test_what_no_region_by_hand_surrounds_has_no_name(store: Path, job: str) -> None:
    """Eight of a rank's 167 kernels, copies and memsets a step: the loss, the first gradient, the last sums of gradients."""
    named = rows(store, "SELECT DISTINCT region FROM kernels WHERE job = ? AND region IS NOT NULL ORDER BY ALL", job)
    assert [region for (region,) in named] == [
        *(f"layers.{layer}.{part}" for layer in range(2) for part in ("attn", "mlp")),
        "optimizer",
        "reduce",
    ]
    unnamed = rows(
        store, "SELECT rank, step, count(*) FROM kernels WHERE job = ? AND region IS NULL GROUP BY rank, step", job
    )
    assert Counter(count for _, _, count in unnamed) == {8: 4 * 16}


@pytest.mark.parametrize(("job", "steps"), [("even", 8), ("instantiated_again", 16), ("slow_attention", 16)])
def test_collectives_of_ddp_are_paired_without_any_annotation(store: Path, job: str, steps: int) -> None:
    calls = rows(
        store,
        """SELECT list(rank ORDER BY rank), count(DISTINCT last_rank), min(wait_ns) FROM collectives
           WHERE job = ? AND name = 'all_reduce' AND group_name = '0' GROUP BY collective_id""",
        job,
    )
    assert calls == [([0, 1, 2, 3], 1, 0)] * (2 * steps)
    assert rows(store, "SELECT count(*) FROM collectives WHERE job = ?", job) == [(4 * len(calls),)]
    said = rows(store, "SELECT DISTINCT attributes FROM kernels WHERE job = ? AND region = 'allreduce'", job)
    for fields in (json.loads(attributes) for (attributes,) in said):
        assert (fields["Collective name"], fields["dtype"], fields["Group size"]) == ("allreduce", "BFloat16", 4)
        assert (fields["Process Group Name"], fields["Process Group Ranks"]) == ("0", "[0, 1, 2, 3]")
    # The model's 1,578,496 gradients in two buckets.
    assert sorted(json.loads(attributes)["In msg nelems"] for (attributes,) in said) == [525_568, 1_052_928]


@pytest.mark.parametrize("job", BY_HAND)
def test_a_collective_in_a_region_keeps_the_region_and_its_own_fields(store: Path, job: str) -> None:
    calls = rows(
        store,
        """SELECT region, name, list(rank ORDER BY rank), count(DISTINCT last_rank) FROM collectives
           WHERE job = ? GROUP BY collective_id, region, name""",
        job,
    )
    assert calls == [("reduce", "all_reduce", [0, 1, 2, 3], 1)] * 32


def test_names_hold_across_instantiations_and_for_destroyed_graphs(store: Path) -> None:
    graphs = rows(
        store,
        """SELECT rank, count(*), count(DISTINCT fingerprint), list(nodes ORDER BY graph_id), list(replays ORDER BY graph_id)
           FROM graphs WHERE job = 'instantiated_again' GROUP BY rank ORDER BY rank""",
    )
    # A step before and after its graph was instantiated again, and the forward alone, destroyed before its window's export.
    assert graphs == [(rank, 3, 2, [168, 168, 21], [8, 8, 8]) for rank in range(4)]
    differing = rows(
        store,
        """SELECT rank, fingerprint, node_index FROM kernels JOIN graphs USING (job, attempt, rank, graph_id)
           WHERE job = 'instantiated_again' GROUP BY ALL HAVING count(DISTINCT (region, phase)) <> 1""",
    )
    assert differing == []


def test_rank_1_of_slow_attention_is_slow_there_and_nowhere_else(store: Path) -> None:
    answer = report(store, "slow_attention")
    assert (answer["verdict"], answer["steps"]) == ("straggler", 16)
    (finding,) = slow_regions(answer)
    assert finding["rank"] == 1
    assert {(row["region"], row["phase"]) for row in finding["regions"]} == ATTENTION
    for row in finding["regions"]:
        assert 5 < row["ratio_low"] <= row["ratio"] <= row["ratio_high"] < 6
        assert row["slowest_share"] == 1
    assert finding["cost_ns_per_step"] == pytest.approx(0.76e6, rel=0.02)


@pytest.mark.parametrize("job", ["even", "instantiated_again", "late_launch", "rotating"])
def test_no_other_job_has_a_rank_that_computes_slowly(store: Path, job: str) -> None:
    assert slow_regions(report(store, job)) == []


def test_where_no_rank_is_slow_none_is_blamed(store: Path) -> None:
    """Although, sharing the GPU, one rank launches its work last in every step: by 1.1 ms, and by 15 ms."""
    even, again = report(store, "even"), report(store, "instantiated_again")
    assert (even["verdict"], even["findings"]) == ("none", [])
    # From the second window on every step replays another graph as well: more work for everybody.
    assert again["verdict"] == "none"
    assert [(finding["cause"], finding["rank"], finding["since_step"]) for finding in again["findings"]] == [
        ("global", None, 14)
    ]


def test_rank_2_of_late_launch_starts_late_and_nobody_else_is_blamed(store: Path) -> None:
    answer = report(store, "late_launch")
    assert answer["verdict"] == "straggler"
    (finding,) = answer["findings"]
    assert (finding["cause"], finding["rank"]) == ("late_launch", 2)
    assert 2.5e6 < finding["cost_ns_per_step"] < 3.4e6


def test_ranks_that_sleep_in_turn_are_not_blamed(store: Path) -> None:
    assert report(store, "rotating")["findings"] == []


@pytest.mark.parametrize(
    ("job", "late"),
    [
        ("late_launch", dict.fromkeys(STEPS, 2)),
        ("rotating", {step: step % 4 for step in STEPS}),
    ],
)
def test_the_late_rank_launches_3_ms_after_its_step_began(store: Path, job: str, late: dict[int, int]) -> None:
    found = rows(
        store,
        """SELECT step, rank, launch_ns - host_start_ns FROM replays JOIN steps USING (job, attempt, rank, step)
           WHERE job = ?""",
        job,
    )
    assert len(found) == 4 * 16
    for step, rank, after_ns in found:
        if late[step] == rank:
            assert 3.1e6 < after_ns < 3.4e6
        else:
            assert after_ns < 0.2e6


def test_the_recordings_stay_small() -> None:
    assert sum(path.stat().st_size for path in RECORDED.rglob("*") if path.is_file()) < 6_500_000
