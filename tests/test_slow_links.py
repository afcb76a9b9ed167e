"""What makes a link slow: every group of a rank, nearly all their collectives, and beyond how far the ranks' ends are apart."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest

from annotq.collector.causes.slow_link import slow_links
from annotq.collector.findings import Finding
from annotq.collector.receipt import Receipt
from annotq.collector.waits import Kind, RankWait

FACTS = Receipt(
    job="job", traces=4, incomplete=0, ranks_seen=(0, 1, 2, 3), ranks_expected=4, hosts=dict.fromkeys(range(4), "node"),
    gpu_events=0, graph_events=0, matched=0, unannotated=0, orphan=0, outside_steps=0, encodings=(), clock_error_ns=1_000,
    notes=(),
)  # fmt: skip
STEPS = range(20)
TRANSFER_NS = 1e6
PAIRS = {"tensor": ((0, 1), (2, 3)), "data": ((0, 2), (1, 3))}
SLOW_OF_RANK_0 = {("tensor", (0, 1)), ("data", (0, 2))}

Transfers = dict[Kind, dict[int, float]]


def kind(region: str, name: str, pair: tuple[int, int]) -> Kind:
    return "all_reduce", region, "forward", name, str(list(pair)), pair[0]


def job(slow: dict[str, float], regions: tuple[str, ...] = ("attn", "mlp")) -> Transfers:
    """Pairs of ranks along two axes; in these regions the groups of rank 0 take so many times as long."""
    noise = np.random.default_rng(1)
    return {
        kind(region, name, pair): {
            step: TRANSFER_NS
            * (slow.get(region, 1.0) if (name, pair) in SLOW_OF_RANK_0 else 1.0)
            * math.exp(noise.normal(0, 0.02))
            for step in STEPS
        }
        for region in regions
        for name, pairs in PAIRS.items()
        for pair in pairs
    }


def waits(transfers: Transfers, apart_ns: float = 0.0) -> list[RankWait]:
    """apart_ns: how far the ends of two ranks lie apart."""
    return [
        RankWait(*one, rank, True, 20, 20, 10, 0, 0, 0, 0.0, TRANSFER_NS, 0.0, TRANSFER_NS, apart_ns)
        for one in transfers
        for rank in json_ranks(one)
    ]


def json_ranks(one: Kind) -> tuple[int, ...]:
    assert one[4] is not None
    return tuple(int(rank) for rank in one[4].strip("[]").split(","))


def found(transfers: Transfers, apart_ns: float = 0.0) -> list[Finding]:
    return slow_links(transfers, waits(transfers, apart_ns), FACTS)


def test_a_rank_all_of_whose_groups_are_slow_has_a_slow_link() -> None:
    (finding,) = found(job({"attn": 1.5, "mlp": 1.5}))
    assert (finding.rank, finding.detail) == (0, "2 groups")
    assert finding.effect == pytest.approx(1.5, abs=0.05)


def test_groups_that_are_slow_in_some_collectives_only_are_no_link() -> None:
    assert found(job({"attn": 1.5})) == []


def test_what_is_less_than_the_ends_of_the_ranks_are_apart_is_no_transfer() -> None:
    slow = job({"attn": 1.5, "mlp": 1.5})
    assert len(found(slow, apart_ns=100_000)) == 1
    assert found(slow, apart_ns=900_000) == []


def test_groups_that_were_never_judged_in_the_same_step_are_not_compared() -> None:
    transfers = job({})
    for (_, _, _, _, _, first), by_step in transfers.items():
        for step in STEPS:
            if (step % 2 == 0) == (first == 0):
                del by_step[step]
    assert found(transfers) == []


def test_the_order_of_the_collectives_changes_nothing() -> None:
    transfers = job({"attn": 1.5, "mlp": 1.5, "loss": 1.5}, ("attn", "mlp", "loss"))
    # Damaged: a group lacks what the others have.
    del transfers[kind("mlp", "data", (1, 3))]
    answers = [found(dict(order)) for order in list(permutations(transfers.items()))[:2000:97]]
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("seed", range(20))
def test_no_finding_is_smaller_than_the_smallest_effect_or_costs_nothing(seed: int) -> None:
    generator = np.random.default_rng(seed)
    transfers = job({"attn": 1.5, "mlp": 1.5})
    for by_step in transfers.values():
        for step in STEPS:
            if generator.random() < 0.5:
                by_step[step] *= generator.choice([0.0, 0.1, 1.0, 30.0])
            if generator.random() < 0.3:
                del by_step[step]
    for finding in found(transfers):
        assert finding.effect >= 1.05
        assert finding.cost_ns_per_step > 0
