"""What every rank did in every step, as arrays: the one pass over the events that all causes but the links rest on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from annotq.collector.statistics import Floats

# Runs a query and returns its rows: Door.ask for a file, a remote call for a collector.
Ask = Callable[[str, Sequence[object]], pa.Table]

# 0 stands for no region, -1 for no time: Arrow gives numpy columns without NULL as they are.
REGION_WORK = """SELECT rank, step, coalesce(code, 0) AS code, coalesce(compute_ns, -1) AS compute_ns, start_ns,
    coalesce(end_ns, -1) AS end_ns
FROM _region_work
WHERE job = ? AND attempt = ?"""

REGION_CODES = """SELECT code, region, phase FROM _region_codes
UNION ALL
SELECT code, region, phase FROM _eager_codes"""


@dataclass(frozen=True)
class Work:
    """The compute times of a job attempt, without communication; NaN where a rank did not run.

    regions: (region, phase), sorted. ranks, steps: their numbers, sorted. compute_ns: shape (regions, ranks, steps).
    total_ns: all compute of a step, in regions or not; shape (ranks, steps). start_ns, end_ns: of all work of a step,
    communication included, since origin_ns on the job's common clock; the same shape.
    """

    regions: tuple[tuple[str, str], ...]
    ranks: NDArray[np.int64]
    steps: NDArray[np.int64]
    compute_ns: Floats
    total_ns: Floats
    start_ns: Floats
    end_ns: Floats
    origin_ns: int

    @property
    def step_ns(self) -> float:
        """How long the work of a step usually lasts on a rank, from its first to its last; 0 without any."""
        lasted = self.end_ns - self.start_ns
        return float(np.nanmedian(lasted)) if np.isfinite(lasted).any() else 0.0


def read_work(ask: Ask, job: str, attempt: int) -> Work:
    """Ask for it and lay it out; without any step all arrays are empty."""
    table = ask(REGION_WORK, [job, attempt])
    rank, step, code, compute, start, end = (
        _numbers(table, name) for name in ("rank", "step", "code", "compute_ns", "start_ns", "end_ns")
    )
    ranks, rank = _places(rank)
    steps, step = _places(step)
    computes, ended = compute >= 0, end >= 0
    names, region = _regions(code, computes, ask(REGION_CODES, []))
    shape = (len(ranks), len(steps))
    # Two traces of a rank may hold parts of the same step.
    cell = rank * len(steps) + step
    cells = len(ranks) * len(steps)
    deep = np.where(computes & (region >= 0), region * cells + cell, len(names) * cells)
    times = _sums(deep, compute, len(names) * cells)
    times[np.bincount(deep, minlength=len(names) * cells + 1)[:-1] == 0] = np.nan
    total = _sums(np.where(computes, cell, cells), compute, cells).reshape(shape)
    starts, ends = np.full(shape, np.nan), np.full(shape, np.nan)
    origin = int(start.min()) if len(start) else 0
    np.fmin.at(starts, (rank, step), (start - origin).astype(np.float64))
    np.fmax.at(ends, (rank[ended], step[ended]), (end - origin)[ended].astype(np.float64))
    total[np.isnan(starts)] = np.nan
    return Work(names, ranks, steps, times.reshape(len(names), *shape), total, starts, ends, origin)


def _regions(
    code: NDArray[np.int64], computes: NDArray[np.bool_], codes: pa.Table
) -> tuple[tuple[tuple[str, str], ...], NDArray[np.int64]]:
    """The (region, phase) pairs that compute, sorted, and by row the place of its pair; -1 for work in no region."""
    pairs = {int(row["code"]): (str(row["region"]), str(row["phase"])) for row in codes.to_pylist()}
    lowest, highest = min(pairs, default=0), max(pairs, default=0)
    seen = np.bincount(code[computes] - min(lowest, 0), minlength=max(highest, 0) - min(lowest, 0) + 1) > 0
    # A region may run in graphs and outside of them.
    names = sorted({pair for number, pair in pairs.items() if seen[number - min(lowest, 0)]})
    places = np.full(len(seen), -1, dtype=np.int64)
    for number, pair in pairs.items():
        if seen[number - min(lowest, 0)]:
            places[number - min(lowest, 0)] = names.index(pair)
    return tuple(names), places[code - min(lowest, 0)]


def _places(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different numbers, sorted, and by row the place of its own; quicker than sorting millions of rows."""
    if not len(numbers):
        return numbers, numbers
    lowest = int(numbers.min())
    if int(numbers.max()) - lowest > 10_000_000:
        found, place = np.unique(numbers, return_inverse=True)
        return found, place.astype(np.int64)
    seen = np.bincount(numbers - lowest) > 0
    return np.flatnonzero(seen) + lowest, (np.cumsum(seen) - 1)[numbers - lowest]


def _sums(place: NDArray[np.int64], values: NDArray[np.int64], cells: int) -> Floats:
    """By cell, the sum of its values; the place past the last cell takes those that count nowhere."""
    # numpy's stubs know only the counts that bincount gives without weights.
    found: Floats = np.bincount(place, values, cells + 1)[:-1].astype(np.float64, copy=False)
    return found


def _numbers(table: pa.Table, name: str) -> NDArray[np.int64]:
    return table.column(name).to_numpy().astype(np.int64, copy=False)
