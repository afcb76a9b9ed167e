"""Runs simulated jobs through `straggler_report`, over several processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import TypeVar

from simulated_job import Plan, simulate
from simulated_store import MemoryStore
from verdicts import Outcome, judge

from annotq.collector.stragglers import Report, straggler_report

# What `run.py --processes` says.
_processes = 2

One = TypeVar("One")
Answer = TypeVar("Answer")


@cache
def store() -> MemoryStore:
    """The store in memory that this process keeps."""
    return MemoryStore()


def verdict_on(plan: Plan) -> Outcome:
    """The verdict on one job, held against its truth."""
    return judge(report_on(plan), plan)


def report_on(plan: Plan) -> Report:
    """The report of one job."""
    store().hold(simulate(plan))
    return straggler_report(store().ask, "job", 0)


def verdicts(plans: Iterable[Plan]) -> Iterator[tuple[Plan, Outcome]]:
    """In the order of the plans. Jobs in which a wrong rank is blamed are named on stderr, to look at."""
    listed = list(plans)
    for plan, outcome in zip(listed, each(verdict_on, listed), strict=True):
        if outcome.wrong_rank:
            print(f"  wrong rank: {plan}\n    {outcome.named}", file=sys.stderr)
        yield plan, outcome


def use_processes(count: int) -> None:
    global _processes
    _processes = count


def each(work: Callable[[One], Answer], items: list[One]) -> Iterator[Answer]:
    """work(item) for every item, in their order; what has been done is counted on stderr."""
    with ProcessPoolExecutor(_processes) as pool:
        for number, answer in enumerate(pool.map(work, items, chunksize=1), 1):
            if number % 50 == 0 or number == len(items):
                print(f"  {number} of {len(items)}", file=sys.stderr, flush=True)
            yield answer
