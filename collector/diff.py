"""What changed from one job, attempt or window to another: time per step, region by region or node by node."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from annotq.collector.diff_sides import Times
from annotq.collector.shift import Shift, inflation_of, shift

K = TypeVar("K", bound=Hashable)

# A region below this share of the step does not fail a gate: what it costs is not worth a red build.
SMALLEST_SHARE = 0.01
# Two runs of the same code differ by about this much, steadily: smaller changes are real and mean nothing.
SMALLEST_EFFECT = 0.01
# The slowest of many ranks varies by itself; smaller changes of it alone are not named.
SLOWEST_EFFECT = 0.05
# Of a gate that fails although nothing got slower by more than its limit, over all that it compares.
FALSE_ALARMS = 0.01


@dataclass(frozen=True)
class Change(Generic[K]):
    """One region (or node) on both sides. Times in ns per step, medians over the steps; None where a side lacks it.

    a_ns, b_ns: the ranks' median. low_ns, high_ns: 95 % interval of difference_ns, None with too few steps for one.
    slowest_a_ns, slowest_b_ns: the slowest rank. surely_ns: what the difference exceeds with so much confidence that of all
    comparisons made together one in a hundred diffs is wrong; None as low_ns.
    change: slower or faster (by 1 % and more, and the interval excludes 0), same, unsure (no interval), new, vanished;
    "slower on some ranks" and "faster on some ranks" where that holds for the slowest rank, by 5 % and more, and not for the
    ranks' median.
    """

    key: K
    change: str
    a_ns: float | None
    b_ns: float | None
    difference_ns: float
    low_ns: float | None
    high_ns: float | None
    slowest_a_ns: float | None
    slowest_b_ns: float | None
    surely_ns: float | None
    steps_a: int
    steps_b: int

    @property
    def ratio(self) -> float | None:
        """b over a, of the ranks' medians."""
        return self.b_ns / self.a_ns if self.a_ns and self.b_ns is not None else None

    @property
    def size_ns(self) -> float:
        """What it is ranked by: the larger of the differences of the ranks' median and of the slowest rank."""
        slowest = (self.slowest_b_ns or 0) - (self.slowest_a_ns or 0)
        return max(abs(self.difference_ns), abs(slowest))


def changes(a: Mapping[K, Times], b: Mapping[K, Times]) -> list[Change[K]]:
    """One per key of either side, the largest difference first."""
    both = [key for key in a if key in b]
    inflation = max(inflation_of(side[key].median_ns for key in both) for side in (a, b)) if both else 1.0
    sure = 1 - 2 * FALSE_ALARMS / max(len(both), 1)
    found = [_change(key, a[key], b[key], inflation, sure) for key in both]
    found += [_lone(key, times, None) for key, times in a.items() if key not in b]
    found += [_lone(key, None, times) for key, times in b.items() if key not in a]
    return sorted(found, key=lambda row: -row.size_ns)


def _change(key: K, a: Times, b: Times, inflation: float, sure: float) -> Change[K]:
    usual = shift(a.median_ns, b.median_ns, inflation)
    slowest = shift(a.slowest_ns, b.slowest_ns, inflation)
    slowest_a, slowest_b = float(np.median(a.slowest_ns)), float(np.median(b.slowest_ns))
    a_ns, b_ns = float(np.median(a.median_ns)), float(np.median(b.median_ns))
    change = _word(usual, SMALLEST_EFFECT * a_ns)
    if change == "same":
        word = _word(slowest, SLOWEST_EFFECT * slowest_a)
        change = change if word in ("same", "unsure") else f"{word} on some ranks"
    return Change(
        key=key,
        change=change,
        a_ns=a_ns,
        b_ns=b_ns,
        difference_ns=usual.difference,
        low_ns=usual.low,
        high_ns=usual.high,
        slowest_a_ns=slowest_a,
        slowest_b_ns=slowest_b,
        surely_ns=shift(a.median_ns, b.median_ns, inflation, sure).low,
        steps_a=len(a.median_ns),
        steps_b=len(b.median_ns),
    )


def _word(found: Shift, smallest_ns: float) -> str:
    if found.low is None or found.high is None:
        return "unsure"
    if abs(found.difference) < smallest_ns:
        return "same"
    return "slower" if found.low > 0 else "faster" if found.high < 0 else "same"


def _lone(key: K, a: Times | None, b: Times | None) -> Change[K]:
    """What only one side has."""
    medians = [None if side is None else float(np.median(side.median_ns)) for side in (a, b)]
    slowest = [None if side is None else float(np.median(side.slowest_ns)) for side in (a, b)]
    return Change(
        key=key,
        change="new" if a is None else "vanished",
        a_ns=medians[0],
        b_ns=medians[1],
        difference_ns=(medians[1] or 0) - (medians[0] or 0),
        low_ns=None,
        high_ns=None,
        slowest_a_ns=slowest[0],
        slowest_b_ns=slowest[1],
        surely_ns=None,
        steps_a=0 if a is None else len(a.median_ns),
        steps_b=0 if b is None else len(b.median_ns),
    )


def over_limit(rows: list[Change[K]], step_ns: float, limit: float) -> list[Change[K]]:
    """Those that certainly got slower by more than `limit` (0.05: 5 %) and take at least 1 % of the step of side a."""
    return [
        row
        for row in rows
        if row.a_ns is not None
        and row.a_ns >= SMALLEST_SHARE * step_ns
        and row.surely_ns is not None
        and row.surely_ns > limit * row.a_ns
    ]
