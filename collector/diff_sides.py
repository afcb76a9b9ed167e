"""The two sides of a diff: which job, attempt and steps, and how long their regions took in each step."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from annotq.agent.errors import EXIT_USAGE, AnnotqError
from annotq.collector.waits import collective_steps
from annotq.collector.work import Ask, read_work

Floats = NDArray[np.float64]
Key = tuple[str, str | None, str | None]  # part (step, compute, transfer), region, phase

# JOB, JOB@ATTEMPT, JOB@ATTEMPT:STEPS, JOB:STEPS; steps as 0-9,20-29.
_SIDE = re.compile(r"(?P<job>.+?)(?:@(?P<attempt>\d+))?(?::(?P<steps>\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*))?", re.S)

PERIODS = """WITH lasted AS (
    SELECT rank, step, sum(end_ns - begin_ns) AS period_ns
    FROM _step_bounds
    WHERE job = ? AND attempt = ?
    GROUP BY rank, step
)
SELECT step, median(period_ns) AS median_ns, max(period_ns) AS slowest_ns
FROM lasted
GROUP BY step
ORDER BY step"""

# The first step of a trace has no step before it: its period is shorter than the others'.
FIRST_STEPS = """SELECT DISTINCT step
FROM _step_bounds
WHERE job = ? AND attempt = ? AND ordinal = 0"""

# A rank's kernels of one node in one step, in the middle of the ranks; as often as the graph is replayed.
NODES = """SELECT g.fingerprint, w.node_index, min(w.name) AS name, min(w.region) AS region, min(w.phase) AS phase, w.step,
    median(w.duration_ns) * count(*) / count(DISTINCT w.rank) AS median_ns,
    max(w.duration_ns) * count(*) / count(DISTINCT w.rank) AS slowest_ns
FROM _gpu_work AS w
JOIN graph AS g ON g.process_id = w.process_id AND g.graph_id = w.graph_id
WHERE w.job = ? AND w.attempt = ? AND NOT w.communication AND w.step IS NOT NULL AND w.duration_ns IS NOT NULL
    AND g.fingerprint IS NOT NULL
GROUP BY g.fingerprint, w.node_index, w.step
ORDER BY g.fingerprint, w.node_index, w.step"""


@dataclass(frozen=True)
class Side:
    """One side: steps None means all that the store holds."""

    job: str
    attempt: int
    steps: tuple[tuple[int, int], ...] | None

    @property
    def title(self) -> str:
        ranges = ",".join(f"{first}-{last}" for first, last in self.steps or ())
        return f"{self.job}@{self.attempt}" + (f":{ranges}" if ranges else "")

    def holds(self, step: int) -> bool:
        return self.steps is None or any(first <= step <= last for first, last in self.steps)


@dataclass(frozen=True)
class Times:
    """A time of each step, in ns and in the order of the steps: the median of the ranks, and that of the slowest rank."""

    median_ns: Floats
    slowest_ns: Floats


@dataclass(frozen=True)
class Node:
    """A graph node that both sides may have: graphs of one fingerprint have the same nodes."""

    fingerprint: str
    node_index: int
    name: str | None
    region: str | None
    phase: str | None


def read_side(ask: Ask, text: str) -> Side:
    """What JOB, JOB@ATTEMPT or JOB@ATTEMPT:STEPS stands for; the latest attempt where none is said.

    Raises AnnotqError for a job or attempt that is not there, or a step range that is not one.
    """
    found = ask("SELECT DISTINCT job, attempt FROM process ORDER BY job, attempt", []).to_pylist()
    attempts: dict[str, list[int]] = {}
    for row in found:
        attempts.setdefault(str(row["job"]), []).append(int(row["attempt"]))
    if text in attempts:  # a name that looks like a range is a name
        return Side(text, attempts[text][-1], None)
    match = _SIDE.fullmatch(text)
    job = match["job"] if match else text
    if match is None or job not in attempts:
        known = ", ".join(attempts) or "none, the store is empty"
        raise AnnotqError(
            f"There is no job {job}.", f"Write JOB, JOB@ATTEMPT or JOB@ATTEMPT:0-9. The jobs are: {known}."
        )
    attempt = int(match["attempt"]) if match["attempt"] else attempts[job][-1]
    if attempt not in attempts[job]:
        known = ", ".join(map(str, attempts[job]))
        raise AnnotqError(f"Job {job} has no attempt {attempt}.", f"The attempts are: {known}.")
    return Side(job, attempt, _ranges(match["steps"]))


def _ranges(text: str | None) -> tuple[tuple[int, int], ...] | None:
    if text is None:
        return None
    ranges = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise AnnotqError(f"{part} is no range of steps.", "The smaller number comes first: 0-9.", EXIT_USAGE)
        ranges.append((int(first), int(last or first)))
    return tuple(ranges)


def check_steps(ask: Ask, side: Side) -> None:
    """Raises AnnotqError (usage) where the attempt has steps, and none of those that the side chooses."""
    steps = [int(row["step"]) for row in ask(PERIODS, [side.job, side.attempt]).to_pylist()] if side.steps else []
    if steps and not any(map(side.holds, steps)):
        raise AnnotqError(
            f"{side.title} holds no step.",
            f"The steps of {side.job}@{side.attempt} are {steps[0]} to {steps[-1]}.",
            EXIT_USAGE,
        )


def region_series(ask: Ask, side: Side) -> dict[Key, Times]:
    """By (part, region, phase), how long it took in each step.

    step: from the end of one step's work to the end of the next (without the first of a window, which has none before it,
    unless it is the only one). compute: of the region's kernels, without communication. transfer: of the region's
    collectives, without the wait; median and slowest are those of the groups that do the same.
    """
    about = [side.job, side.attempt]
    rows: dict[Key, list[tuple[float, float]]] = {}
    first = {int(row["step"]) for row in ask(FIRST_STEPS, about).to_pylist()}
    chosen = [row for row in ask(PERIODS, about).to_pylist() if side.holds(int(row["step"]))]
    for row in [row for row in chosen if int(row["step"]) not in first] or chosen:
        rows.setdefault(("step", None, None), []).append((row["median_ns"], row["slowest_ns"]))
    work = read_work(ask, side.job, side.attempt)
    inside = np.array([side.holds(int(step)) for step in work.steps], dtype=np.bool_)
    for (region, direction), times in zip(work.regions, work.compute_ns[:, :, inside], strict=True):
        ran = times[:, ~np.isnan(times).all(axis=0)]
        if ran.shape[1]:
            both = np.stack([np.nanmedian(ran, axis=0), np.nanmax(ran, axis=0)], axis=1)
            rows["compute", region, direction] = [(float(median), float(slowest)) for median, slowest in both]
    groups: dict[Key, dict[int, list[float]]] = {}
    for (name, where, phase, *_), by_step in collective_steps(ask, side.job, side.attempt).transfers().items():
        for step, transfer in by_step.items():
            if side.holds(step):
                groups.setdefault((f"transfer ({name})", where, phase), {}).setdefault(step, []).append(transfer)
    for key, of_groups in groups.items():
        rows[key] = [(float(np.median(of_groups[step])), max(of_groups[step])) for step in sorted(of_groups)]
    return {key: _times(values) for key, values in rows.items()}


def node_series(ask: Ask, side: Side) -> dict[Node, Times]:
    """By node, how long its kernels took on one rank in each step. Graphs only."""
    names: dict[tuple[str, int], Node] = {}
    rows: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row in ask(NODES, [side.job, side.attempt]).to_pylist():
        if side.holds(int(row["step"])):
            key = (str(row["fingerprint"]), int(row["node_index"]))
            names.setdefault(key, Node(*key, row["name"], row["region"], row["phase"]))
            rows.setdefault(key, []).append((row["median_ns"], row["slowest_ns"]))
    return {names[key]: _times(values) for key, values in rows.items()}


def _times(rows: list[tuple[float, float]]) -> Times:
    values = np.array(rows, dtype=np.float64)
    return Times(values[:, 0], values[:, 1])
