"""The straggler scores of NVIDIA's Resiliency Extension, by its formula, on a simulated job.

Relative GPU score of a rank: over its kernels, the shortest median of any rank over the rank's own median, averaged with the
time spent in each kernel as the weight; NCCL kernels left out. Relative score of a section: shortest median over own
median. A score below 0.75 names the rank. Source: ReportGenerator and Report.identify_stragglers in
src/nvidia_resiliency_ext/straggler/reporting.py of github.com/NVIDIA/nvidia-resiliency-ext.

Here a kernel is a graph node, a section a (region, phase). What only some ranks run is compared among those, in favour of
the scores: the extension leaves out kernels that not every rank has run. Its individual scores compare a rank with its
own earlier reports, which a single window does not have.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from simulated_job import SimulatedJob

THRESHOLD = 0.75


def gpu_scores(job: SimulatedJob) -> NDArray[np.float64]:
    """Relative GPU score by rank."""
    weighted, weights = np.zeros(job.plan.layout.size), np.zeros(job.plan.layout.size)
    for ran in job.ran:
        if ran.operation.computes:
            medians = np.median(ran.duration_ns, axis=2)
            spent = ran.duration_ns.sum(axis=2)
            ranks = ran.operation.ranks
            weighted[ranks] += (medians.min(axis=1, keepdims=True) / medians * spent).sum(axis=0)
            weights[ranks] += spent.sum(axis=0)
    return weighted / weights


def section_scores(job: SimulatedJob) -> dict[tuple[str, str], NDArray[np.float64]]:
    """Relative score by (region, phase) and rank; NaN where the rank does not run it."""
    found = {}
    for ran in job.ran:
        if ran.operation.computes:
            medians = np.median(ran.time_ns, axis=1)
            scores = np.full(job.plan.layout.size, np.nan)
            scores[ran.operation.ranks] = medians.min() / medians
            found[ran.operation.region, ran.operation.phase] = scores
    return found


def named_by_gpu(job: SimulatedJob) -> frozenset[int]:
    return _below(gpu_scores(job))


def named_by_section(job: SimulatedJob) -> frozenset[int]:
    return frozenset[int]().union(*(_below(scores) for scores in section_scores(job).values()))


def _below(scores: NDArray[np.float64]) -> frozenset[int]:
    return frozenset(np.flatnonzero(scores < THRESHOLD).tolist())
