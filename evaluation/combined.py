"""Causes that begin or end within the window, and several causes at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from page import Section, percent
from pool import verdicts
from sample import Sample
from simulated_causes import Cause, CauseName, slow_layers
from simulated_events import FIRST_STEP
from simulated_job import Plan
from simulated_layout import LAYOUTS, Layout
from verdicts import Named, Outcome, shares

STEPS = 20
SPANS = ((0, None), (5, None), (10, None), (15, None), (0, 10), (6, 14))
SIZES = (0.10, 0.30, 1.00)
CAUSES: tuple[CauseName, ...] = ("slow_region", "slow_gpu", "late_launch", "global")
JOBS = 20
# Within so many steps of the true one counts as right, beside the share that is exact.
NEAR = 1
SINCE, SEVERAL = "Since when", "Several at once"


@dataclass(frozen=True)
class Place:
    """Where causes are put: two ranks of the first stage on different hosts, and one of the last stage."""

    first: int
    second: int
    last: int

    @classmethod
    def drawn(cls, layout: Layout, seed: int) -> Place:
        generator = np.random.default_rng([seed, 101])
        first, second = generator.choice(layout.stage(0), 2, replace=False).tolist()
        return cls(first, second, int(generator.choice(layout.stage(layout.pp - 1))))


def since_when(sample: Sample) -> Section:
    """A table of causes by the steps during which they hold."""
    cells = [
        (cause, size, span) for cause in CAUSES for size in SIZES for span in SPANS if cause != "global" or span[0]
    ]
    jobs = sample.count(JOBS)
    plans = [_spanning(*cell, seed, sample) for cell in cells for seed in range(jobs)]
    outcomes = list(verdicts(plans))
    rows = [("cause", *(_steps(*span) for span in SPANS))]
    for cause in CAUSES:
        for size in SIZES:
            values = []
            for span in SPANS:
                of_cell = [pair for pair in outcomes if _is(pair[0].causes[0], cause, size, span)]
                values.append(_since_cell(of_cell))
            rows.append((f"{cause} {size:.0%}", *values))
    text = (
        f"{jobs} jobs of 8 ranks and {STEPS} steps a cell, noise of 5 %; the columns say in which steps the cause holds. "
        f"A cell: right rank and cause / first and last step right within {NEAR} / exactly, in per cent; the last two of the "
        "jobs that are right in rank and cause. A global slowdown of all steps is not one: -."
    )
    return Section(SINCE, text, rows)


def several(sample: Sample) -> Section:
    """A table of combinations."""
    jobs = sample.count(JOBS)
    rows = [("causes", *(f"{ranks} ranks" for ranks in (4, 8, 64)))]
    cells = {
        (name, ranks): [
            _combined(name, ranks, seed, sample) for seed in range(jobs if ranks < 64 else max(1, jobs // 3))
        ]
        for name in COMBINATIONS
        for ranks in (4, 8, 64)
    }
    answers = (outcome for _, outcome in verdicts(plan for plans in cells.values() for plan in plans))
    outcomes = {key: [next(answers) for _ in plans] for key, plans in cells.items()}
    for name in COMBINATIONS:
        rows.append((name, *(shares(outcomes[name, ranks]) for ranks in (4, 8, 64))))
    text = (
        f"{jobs} jobs a cell (a third of it with 64 ranks), {STEPS} steps, noise of 5 %. A cell: any true rank found / "
        "exactly the right ranks / every cause named for its rank / a wrong rank."
    )
    return Section(SEVERAL, text, rows)


COMBINATIONS = (
    "two ranks, slow_gpu 30 % each",
    "slow_region 30 % and slow_gpu 20 % on two ranks",
    "slow_region 50 % and late_launch 20 % on two ranks",
    "slow_gpu 20 % and global 20 % from step 10",
    "slow_region 30 % on a rank, imbalance 20 %",
)


def _combined(name: str, ranks: int, seed: int, sample: Sample) -> Plan:
    layout = LAYOUTS[ranks]
    number = sample.seed(5_000_000 + 1000 * COMBINATIONS.index(name) + 10_000 * ranks + seed)
    at = Place.drawn(layout, number)
    region = slow_layers(layout, at.first, 2)
    causes = (
        (Cause("slow_gpu", 0.3, (at.first,)), Cause("slow_gpu", 0.3, (at.second,))),
        (Cause("slow_region", 0.3, (at.first,), region), Cause("slow_gpu", 0.2, (at.second,))),
        (Cause("slow_region", 0.5, (at.first,), region), Cause("late_launch", 0.2, (at.second,))),
        (Cause("slow_gpu", 0.2, (at.first,)), Cause("global", 0.2, first=10)),
        (Cause("slow_region", 0.3, (at.first,), region), Cause("imbalance", 0.2)),
    )[COMBINATIONS.index(name)]
    return Plan(seed=number, layout=layout, steps=STEPS, causes=causes)


def _spanning(cause: CauseName, size: float, span: tuple[int, int | None], seed: int, sample: Sample) -> Plan:
    place = 10_000 * CAUSES.index(cause) + 1000 * SIZES.index(size) + 100 * SPANS.index(span)
    number = sample.seed(4_000_000 + place + seed)
    layout = LAYOUTS[8]
    rank = Place.drawn(layout, number).first
    ranks = () if cause == "global" else (rank,)
    regions = slow_layers(layout, rank, 2) if cause == "slow_region" else ()
    put_in = Cause(cause, size, ranks, regions, first=span[0], end=span[1])
    return Plan(seed=number, layout=layout, steps=STEPS, causes=(put_in,))


def _is(cause: Cause, name: str, size: float, span: tuple[int, int | None]) -> bool:
    return (cause.name, cause.size, (cause.first, cause.end)) == (name, size, span)


def _steps(first: int, end: int | None) -> str:
    if first == 0 and end is None:
        return "all"
    return f"from {first}" if end is None else f"{first} to {end - 1}"


def _since_cell(outcomes: list[tuple[Plan, Outcome]]) -> str:
    if not outcomes:
        return "-"
    right = [(plan, outcome) for plan, outcome in outcomes if outcome.right]
    near, exact = (percent(_is_since(plan, outcome, within) for plan, outcome in right) for within in (NEAR, 0))
    return f"{percent(outcome.right for _, outcome in outcomes)} / {near} / {exact}"


def _is_since(plan: Plan, outcome: Outcome, within: int) -> bool:
    """Whether first and last step of the true cause are right within so many steps."""
    (cause,) = plan.causes
    (named, *_) = (one for one in outcome.named if one.cause == cause.name)
    end = STEPS if cause.end is None else cause.end
    first, last = _span(named)
    return abs(first - cause.first) <= within and abs(last - (end - 1)) <= within


def _span(named: Named) -> tuple[int, int]:
    first = 0 if named.since_step is None else named.since_step - FIRST_STEP
    return first, STEPS - 1 if named.until_step is None else named.until_step - FIRST_STEP
