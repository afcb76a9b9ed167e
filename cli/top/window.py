"""Which steps are the newest over which the ranks can be compared."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

# Steps at the end of the window that are looked at: enough for a median, few enough to ask again and again.
LAST_STEPS = 5

# Of the ranks, that have to be there: the last few percent of a large job's windows may be minutes late.
ARRIVED = 0.9


@dataclass(frozen=True)
class Window:
    """The last steps of the newest profiler window of a job attempt, both ends included."""

    job: str
    attempt: int
    first_step: int
    last_step: int


def newest_window(job: str, attempt: int, last_steps: Collection[int]) -> Window | None:
    """The newest steps that nearly all ranks have sent. last_steps: of each rank, its newest step in a profiler window."""
    if not last_steps:
        return None
    last = sorted(last_steps)[int((1 - ARRIVED) * (len(last_steps) - 1))]
    return Window(job, attempt, max(0, last - LAST_STEPS + 1), last)
