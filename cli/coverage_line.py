"""The join receipt in one line, printed under every report."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from annotq.collector.evidence import Ask


def coverage_line(ask: Ask, job: str) -> str:
    """Ranks seen of expected, graph kernels with a region of all, what has none, and the clock error; latest attempt."""
    from annotq.collector.receipt import latest_attempt, receipt

    return receipt(ask, job, latest_attempt(ask, job)).sentence()
