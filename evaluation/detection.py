"""How often a cause that was put in is found, named right, and blamed on the right rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import numpy as np
from page import Section, percent
from pool import verdicts
from sample import Sample
from simulated_causes import Cause, CauseName, slow_layers
from simulated_job import Plan
from simulated_layout import LAYOUTS, STAGED_LAYOUTS, Layout
from simulated_program import Workload
from verdicts import Outcome, shares

SIZES = (0.02, 0.05, 0.10, 0.20, 0.50, 1.00, 3.00)
STEPS = (3, 6, 12, 20, 50, 200)
# Jobs of a cell, by ranks; --jobs multiplies them.
JOBS = {2: 20, 4: 20, 8: 20, 64: 8, 512: 3}
CAUSES: tuple[CauseName, ...] = ("slow_region", "slow_gpu", "late_launch", "imbalance", "slow_link", "stage", "global")
AIMED = 0.10

Key = TypeVar("Key")


def planned(cause: CauseName, size: float, ranks: int, seed: int, steps: int = 20) -> Plan | None:
    """A job with one cause, in a place that the seed chooses. None where the cause cannot show: a link of two ranks."""
    layout = STAGED_LAYOUTS[ranks] if cause == "stage" else LAYOUTS[ranks]
    if cause == "slow_link" and ranks == 2:
        return None
    plan = Plan(seed=seed, layout=layout, steps=steps)
    return replace(plan, causes=(placed(cause, size, layout, plan.workload, seed, steps),))


def placed(cause: CauseName, size: float, layout: Layout, workload: Workload, seed: int, steps: int) -> Cause:
    """slow_region takes the MLPs of all layers of the rank or, every other time, its first one alone; late_launch a rank of
    the first stage, as others begin a step waiting anyway; global begins in the middle of the window."""
    generator = np.random.default_rng([seed, 100])
    rank = int(generator.integers(layout.size))
    match cause:
        case "slow_region":
            regions = slow_layers(layout, rank, workload.layers)
            return Cause(cause, size, (rank,), regions[: 1 if seed % 2 else None])
        case "late_launch":
            return Cause(cause, size, (int(generator.choice(layout.stage(0))),))
        case "stage":
            return Cause(cause, size, tuple(layout.stage(int(generator.integers(layout.pp))).tolist()))
        case "imbalance":
            return Cause(cause, size)
        case "global":
            return Cause(cause, size, first=steps // 2)
        case _:
            return Cause(cause, size, (rank,))


def by_size(cause: CauseName, sample: Sample) -> Section:
    """The table of one cause: sizes by ranks."""
    cells = {(size, ranks): _plans(cause, size, ranks, sample) for size in SIZES for ranks in LAYOUTS}
    outcomes = _outcomes(cells)
    rows = [("size", *(f"{ranks} ranks" for ranks in LAYOUTS))]
    rows += [(f"{size:.0%}", *(shares(outcomes[size, ranks]) for ranks in LAYOUTS)) for size in SIZES]
    aimed = [outcome for (size, _), cell in outcomes.items() if size >= AIMED for outcome in cell]
    text = (
        f"{_counted(LAYOUTS, sample)} 20 steps, noise of 5 %. From 10 % on, all ranks together: right rank and cause "
        f"in {percent(one.right for one in aimed)} % of {len(aimed)} jobs, a wrong rank in "
        f"{percent(one.wrong_rank for one in aimed)} %."
    )
    return Section(title_of(cause), text, rows)


def by_steps(sample: Sample) -> Section:
    """Fewer and more steps, for the causes that blame a rank."""
    causes: tuple[CauseName, ...] = ("slow_region", "slow_gpu", "late_launch", "imbalance")
    sizes, ranks = (0.10, 0.30), (2, 8)
    cells = {
        (cause, size, count, steps): [
            plan
            for seed in range(sample.count(JOBS[count]))
            if (plan := planned(cause, size, count, sample.seed(7000 + seed), steps))
        ]
        for cause in causes
        for size in sizes
        for count in ranks
        for steps in STEPS
    }
    outcomes = _outcomes(cells)
    rows = [("cause, size, ranks", *(f"{steps} steps" for steps in STEPS))]
    for cause in causes:
        for size in sizes:
            for count in ranks:
                values = (shares(outcomes[cause, size, count, steps]) for steps in STEPS)
                rows.append((f"{cause} {size:.0%}, {count} ranks", *values))
    return Section("Steps", f"{_counted(ranks, sample)} Noise of 5 %.", rows)


def title_of(cause: CauseName) -> str:
    return f"Found: {cause}"


def _plans(cause: CauseName, size: float, ranks: int, sample: Sample) -> list[Plan]:
    first = sample.seed(100_000 * ranks + 1000 * CAUSES.index(cause) + 100 * SIZES.index(size))
    plans = (planned(cause, size, ranks, first + seed) for seed in range(sample.count(JOBS[ranks])))
    return [plan for plan in plans if plan]


def _outcomes(cells: dict[Key, list[Plan]]) -> dict[Key, list[Outcome]]:
    """The jobs of all cells in one go, so that both processes are busy to the end."""
    answers = (outcome for _, outcome in verdicts(plan for plans in cells.values() for plan in plans))
    return {key: [next(answers) for _ in plans] for key, plans in cells.items()}


def _counted(ranks: Iterable[int], sample: Sample) -> str:
    return "Jobs of a cell: " + ", ".join(f"{sample.count(JOBS[count])} of {count} ranks" for count in ranks) + "."
