"""The same causes in jobs that differ from the usual one: other programs, other windows, other clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from detection import placed
from page import Section, percent
from pool import verdicts
from sample import Sample
from simulated_causes import CauseName
from simulated_job import HostClocks, Plan
from simulated_layout import LAYOUTS
from verdicts import shares

JOBS = 10
SIZE = 0.20
CAUSES: tuple[CauseName, ...] = ("slow_region", "slow_gpu", "late_launch")
TITLE = "Other jobs"

Change = Callable[[Plan], Plan]


def _workload(**changes: object) -> Change:
    return lambda plan: replace(plan, workload=replace(plan.workload, **changes))


def _experts(plan: Plan) -> Plan:
    """Experts on every other rank."""
    return _workload(experts=tuple(range(0, plan.layout.size, 2)))(plan)


def _edges(plan: Plan) -> Plan:
    """Windows that begin and end a step apart."""
    last = plan.steps - 1
    return replace(plan, missing={rank: ((0,), (last,), ())[rank % 3] for rank in range(plan.layout.size)})


def _extra_nodes(plan: Plan) -> Plan:
    """What is slow runs twice, as more nodes of its graph."""
    twice = tuple(replace(cause, size=1.0, extra_nodes=cause.name == "slow_region") for cause in plan.causes)
    return replace(plan, causes=twice)


def _apart(plan: Plan) -> Plan:
    """Four hosts whose clocks nobody knows, up to two minutes apart."""
    layout = replace(plan.layout, ranks_per_host=2)
    return replace(plan, layout=layout, clocks=HostClocks(120_000_000_000, 50_000, known=False))


VARIANTS: dict[str, Change] = {
    "eager loss and all_reduce after each graph": _workload(eager=True),
    "gradients reduced beside the backward, sharded": _workload(overlap=True, reduce="sharded"),
    "experts on every other rank": _experts,
    "windows that begin and end a step apart": _edges,
    "twice the kernels instead of slower ones": _extra_nodes,
    "hosts minutes apart, clocks not known": _apart,
    "one large region a phase and layer": _workload(layers=1, kernels=20),
    "8 layers a stage, 1 kernel each": _workload(layers=8, kernels=1),
}


def variants(sample: Sample) -> Section:
    """A table of variants by causes; the first column is that of nothing wrong."""
    jobs = sample.count(JOBS)
    cells = {
        (name, cause): [_plan(change, cause, sample.seed(7_000_000 + 1000 * number + seed)) for seed in range(jobs)]
        for number, (name, change) in enumerate(VARIANTS.items())
        for cause in (None, *CAUSES)
    }
    answers = (outcome for _, outcome in verdicts(plan for plans in cells.values() for plan in plans))
    outcomes = {key: [next(answers) for _ in plans] for key, plans in cells.items()}
    rows = [("jobs", "nothing wrong: blamed", *(f"{cause} {SIZE:.0%}" for cause in CAUSES))]
    for name in VARIANTS:
        blamed = percent(one.wrong_rank for one in outcomes[name, None])
        rows.append((name, blamed, *(shares(outcomes[name, cause]) for cause in CAUSES)))
    text = f"{jobs} jobs of 2 x 2 x 2 ranks a cell, 20 steps, noise of 5 %."
    return Section(TITLE, text, rows)


def _plan(change: Change, cause: CauseName | None, seed: int) -> Plan:
    plan = change(Plan(seed=seed, layout=LAYOUTS[8]))
    if cause is None:
        return plan
    put_in = placed(cause, SIZE, plan.layout, plan.workload, seed, plan.steps)
    return change(replace(plan, causes=(put_in,)))
