"""The answer for one job attempt: the verdict, the findings, and everything that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from annotq.collector.causes.slow_rank import Slowness
from annotq.collector.detectable import FEWEST_STEPS, detectable, largest, q_values
from annotq.collector.evidence import Evidence, RegionEvidence
from annotq.collector.findings import Finding, RegionFinding, Verdict
from annotq.collector.receipt import Receipt
from annotq.collector.undecided import worth_naming
from annotq.collector.waits import RankWait


@dataclass(frozen=True)
class Report:
    """The answer for one job attempt.

    reason: why the verdict is inconclusive, else empty. findings: the costliest first. held_up: regions that are slower
    on a rank only because single kernels lasted too long; real time, but not slow code. comparison: every comparison
    made, and slowness the tests of it. too_small: ranks that are slow beyond chance, but at a cost that nobody would act
    on; the costliest first.
    """

    job: str
    attempt: int
    verdict: Verdict
    reason: str
    findings: tuple[Finding, ...]
    held_up: tuple[RegionFinding, ...]
    comparison: Evidence
    slowness: Slowness
    waits: tuple[RankWait, ...]
    receipt: Receipt
    too_small: tuple[Finding, ...] = ()

    @property
    def steps(self) -> int:
        return self.comparison.steps

    @cached_property
    def detectable(self) -> float | None:
        """Factor from which a slow rank would have shown in a usual region; None when nothing could be compared."""
        return detectable(self.slowness)

    @cached_property
    def smallest_cost_ns(self) -> float:
        """Time per step from which a slow rank is a finding, of the rank that needs the most."""
        ranks = range(len(self.comparison.work.ranks))
        return max((worth_naming(self.comparison, rank, self.receipt) for rank in ranks), default=0.0)

    @cached_property
    def closest(self) -> RegionEvidence | None:
        """The comparison over all steps with the largest effect, None without any."""
        place = largest(self.slowness)
        return None if place is None else self._row(*place)

    @cached_property
    def not_judged(self) -> tuple[int, ...]:
        """Ranks with data that have too few steps in common with the others in every region."""
        look = self.slowness.whole_run
        if look is None:
            return self.receipt.ranks_seen
        judged = self.comparison.work.ranks[(look.regions.counts >= FEWEST_STEPS).any(axis=0)]
        return tuple(sorted(set(self.receipt.ranks_seen) - set(judged.tolist())))

    @cached_property
    def evidence(self) -> list[RegionEvidence]:
        """Each (region, phase, rank) over all steps, in that order, with its q value. Many in a large job."""
        return [self._row(region, rank) for region, rank in np.argwhere(self.comparison.compared).tolist()]

    @cached_property
    def _q_values(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return q_values(self.slowness)

    def _row(self, region: int, rank: int) -> RegionEvidence:
        assert self.slowness.whole_run is not None
        noise = self.slowness.whole_run.regions.noise
        return self.comparison.row(region, rank, noise, q_value=float(self._q_values[region, rank]))
