"""Who waited for whom at the collectives, as sums that fit on a screen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from annotq.collector.statistics import medians
from annotq.collector.work import Ask

# One pass over all collectives, the most expensive question of a report. Regions that differ in their numbers only
# (layers.0.attn, layers.1.attn) are one kind; the name stays as it is where there is one such region.
COLLECTIVE_STEPS = """WITH folded AS (
    SELECT family, call, coalesce(regexp_replace(region, '[0-9]+', '*', 'g'), '') AS pattern, region, phase, group_name,
        group_ranks, first_rank, synchronizing
    FROM _collective_families
    WHERE job = ? AND attempt = ?
),
kinds AS (
    SELECT call, pattern, phase, group_name, group_ranks, first_rank, synchronizing,
        CASE WHEN count(DISTINCT region) = 1 THEN min(region) WHEN pattern <> '' THEN pattern END AS region,
        row_number() OVER (ORDER BY call ASC NULLS LAST, pattern ASC NULLS LAST, phase ASC NULLS LAST,
            group_name ASC NULLS LAST, first_rank ASC NULLS LAST, group_ranks ASC NULLS LAST, synchronizing DESC) AS kind
    FROM folded
    GROUP BY call, pattern, phase, group_name, group_ranks, first_rank, synchronizing
),
numbered AS (
    SELECT f.family, k.kind
    FROM folded AS f
    JOIN kinds AS k
        ON k.call = f.call AND k.pattern = f.pattern AND k.phase IS NOT DISTINCT FROM f.phase
        AND k.group_name IS NOT DISTINCT FROM f.group_name AND k.group_ranks IS NOT DISTINCT FROM f.group_ranks
        AND k.synchronizing = f.synchronizing
),
summed AS (
    SELECT n.kind, w.rank, w.step,
        count(*) AS collectives,
        count(w.method) AS judged,
        count(*) FILTER (WHERE w.last_rank = w.rank AND w.method IS NOT NULL) AS last,
        count(*) FILTER (WHERE w.disjoint) AS disjoint,
        count(*) FILTER (WHERE w.not_judged = 'rank missing') AS rank_missing,
        count(*) FILTER (WHERE w.not_judged = 'replay cut by the window') AS replay_cut,
        sum(CASE w.method WHEN 'clock' THEN w.wait_clock_ns WHEN 'duration' THEN w.wait_duration_ns END) AS wait_ns,
        sum(CASE w.method WHEN 'clock' THEN w.transfer_clock_ns WHEN 'duration' THEN w.transfer_duration_ns END)
            AS transfer_ns,
        sum(CASE WHEN w.method IS NOT NULL THEN w.wait_duration_ns END) AS wait_duration_ns,
        sum(CASE WHEN w.method IS NOT NULL THEN w.transfer_duration_ns END) AS transfer_duration_ns,
        sum(abs(w.disagreement_ns)) AS disagreement_ns,
        sum(w.caused_ns) AS caused_ns
    FROM _collective_waits AS w
    JOIN numbered AS n ON n.family = w.family
    WHERE w.job = ? AND w.attempt = ?
    GROUP BY n.kind, w.rank, w.step
)
SELECT s.*, k.call AS name, k.region, k.phase, k.group_name, k.group_ranks, k.first_rank AS group_first_rank,
    k.synchronizing
FROM summed AS s
JOIN kinds AS k ON k.kind = s.kind
ORDER BY s.kind ASC NULLS LAST, s.rank ASC NULLS LAST, s.step ASC NULLS LAST"""

# Columns of a step that are counts, and sums of times, in the order of RankWait's fields of these names.
COUNTS = ("collectives", "judged", "last", "disjoint", "rank_missing", "replay_cut")
TIMES = ("wait_ns", "transfer_ns", "wait_duration_ns", "transfer_duration_ns", "disagreement_ns")

# name, region, phase, group_name, group_ranks, group_first_rank
Kind = tuple[str, str | None, str | None, str | None, str | None, int]
Sums = NDArray[np.float64]


@dataclass(frozen=True)
class RankWait:
    """One rank at one kind of collective. Times in ns: per step the mean of the judged ones, then the median over the steps;
    None when none could be judged.

    wait_ns and transfer_ns are what the view `collectives` shows, wait_duration_ns and transfer_duration_ns the formula by
    duration behind them. disagreement_ns: how far the waits by clock and by duration are apart, None where the clock error
    is not known. synchronizing: whether the kind makes every rank wait at all. Of those not judged, rank_missing lack a
    rank (it sent no trace, or its window ends earlier), replay_cut lie in a replay that the window of a rank holds in part.
    """

    name: str
    region: str | None
    phase: str | None
    group_name: str | None
    group_ranks: str | None
    group_first_rank: int
    rank: int
    synchronizing: bool
    collectives: int
    judged: int
    last: int
    disjoint: int
    rank_missing: int
    replay_cut: int
    wait_ns: float | None
    transfer_ns: float | None
    wait_duration_ns: float | None
    transfer_duration_ns: float | None
    disagreement_ns: float | None

    @property
    def kind(self) -> Kind:
        """What the rows of the same collectives on other ranks have in common."""
        return self.name, self.region, self.phase, self.group_name, self.group_ranks, self.group_first_rank

    @property
    def title(self) -> str:
        """What to call these collectives: "all_reduce in grads.all_reduce"."""
        return f"{self.name} in {self.region}" if self.region else self.name

    @property
    def group(self) -> str:
        """The process group by name and lowest rank, such as "tp@4": groups of one name may exist side by side."""
        return f"{self.group_name or '?'}@{self.group_first_rank}"


@dataclass(frozen=True)
class CausedWait:
    """How long the others waited for a rank: per step in which it was last, the mean over the waiting ranks, added up over
    the step's collectives; then the median over those steps."""

    rank: int
    steps: int
    wait_ns: float


@dataclass(frozen=True)
class CollectiveSteps:
    """The collectives of a job attempt, summed by (kind, rank, step); rows are sorted so. Empty without any."""

    table: pa.Table

    def rank_waits(self) -> list[RankWait]:
        """One row per (kind of collective, rank)."""
        if self.table.num_rows == 0:
            return []
        kind, rank = self._floats("kind"), self._floats("rank")
        first = np.flatnonzero(np.append(True, (np.diff(kind) != 0) | (np.diff(rank) != 0)))
        counts = [np.add.reduceat(self._floats(name), first).astype(np.int64).tolist() for name in COUNTS]
        times = [self._usual(name, first) for name in TIMES]
        synchronizing = self.table.column("synchronizing").take(first).to_pylist()
        return [
            RankWait(
                *self._kinds[int(kind[row])],
                int(rank[row]),
                bool(synchronizing[place]),
                *(count[place] for count in counts),
                *(time[place] for time in times),
            )
            for place, row in enumerate(first.tolist())
        ]

    def caused_waits(self) -> dict[int, CausedWait]:
        """By rank; a rank that was never last is missing, and so is what happened outside of steps."""
        caused, rank, step = self._floats("caused_ns"), self._floats("rank"), self._floats("step")
        known = ~np.isnan(caused) & ~np.isnan(step)
        keys, place = np.unique(np.stack([rank[known], step[known]]), axis=1, return_inverse=True)
        sums = np.bincount(place.ravel(), weights=caused[known], minlength=keys.shape[1])
        found = {}
        for number in np.unique(keys[0]):
            own = sums[keys[0] == number]
            found[int(number)] = CausedWait(int(number), len(own), float(np.median(own)))
        return found

    def transfers(self) -> dict[Kind, dict[int, float]]:
        """By kind (as RankWait.kind), the transfers of each step, by duration, added up; in ns."""
        sums, step, rank = self._floats("transfer_duration_ns"), self._floats("step"), self._floats("rank")
        found: dict[Kind, dict[int, float]] = {}
        first = rank == self._floats("group_first_rank")  # a transfer is the same on every rank of its collective
        kind = self._floats("kind")
        for row in np.flatnonzero(first & ~np.isnan(sums) & ~np.isnan(step)).tolist():
            found.setdefault(self._kinds[int(kind[row])], {})[int(step[row])] = float(sums[row])
        return found

    @cached_property
    def _cache(self) -> dict[str, Sums]:
        return {}

    def _floats(self, name: str) -> Sums:
        """A column of numbers, NULL as NaN."""
        if name not in self._cache:
            values = self.table.column(name).cast(pa.float64())
            self._cache[name] = values.to_numpy(zero_copy_only=False).astype(np.float64)
        return self._cache[name]

    @cached_property
    def _kinds(self) -> dict[int, Kind]:
        """What each number in the column kind stands for; looked up once each, the names are long."""
        numbers, rows = np.unique(self._floats("kind"), return_index=True)
        columns = ("name", "region", "phase", "group_name", "group_ranks", "group_first_rank")
        few = self.table.select(columns).take(rows).to_pylist()
        return {
            int(number): (
                row["name"],
                row["region"],
                row["phase"],
                row["group_name"],
                row["group_ranks"],
                row["group_first_rank"],
            )
            for number, row in zip(numbers, few, strict=True)
        }

    def _usual(self, name: str, first: NDArray[np.intp]) -> list[float | None]:
        """By (kind, rank), the median over its steps of the mean of a step; None where no step has one.

        first: the first row of each. All medians at once, a row per (kind, rank): one by one they take ten times as long.
        """
        sums, judged = self._floats(name), self._floats("judged")
        known = ~np.isnan(sums) & (judged > 0)
        means = np.divide(sums, judged, out=np.full(len(sums), np.nan), where=known)
        lengths = np.diff(np.append(first, len(sums)))
        by_step = np.full((len(first), int(lengths.max())), np.nan)
        by_step[np.arange(by_step.shape[1]) < lengths[:, None]] = means
        return [None if np.isnan(usual) else usual for usual in medians(by_step)[:, 0].tolist()]


def collective_steps(ask: Ask, job: str, attempt: int) -> CollectiveSteps:
    """Ask for the collectives of one job attempt."""
    return CollectiveSteps(ask(COLLECTIVE_STEPS, [job, attempt, job, attempt]))


def titles(waits: Iterable[RankWait]) -> dict[Kind, str]:
    """What to call the collectives of each kind: with their phase where several phases of one region have them."""
    rows = {row.kind: row for row in waits}
    phases: dict[str, set[str | None]] = {}
    for row in rows.values():
        phases.setdefault(row.title, set()).add(row.phase)
    return {
        kind: f"{row.title} {row.phase}" if row.phase and len(phases[row.title]) > 1 else row.title
        for kind, row in rows.items()
    }


def group_members(waits: Iterable[RankWait]) -> dict[tuple[object, ...], tuple[int, ...]]:
    """By (group_name, group_ranks, group_first_rank), the ranks that take part in the group's collectives, sorted."""
    found: dict[tuple[object, ...], set[int]] = {}
    for row in waits:
        found.setdefault((row.group_name, row.group_ranks, row.group_first_rank), set()).add(row.rank)
    return {group: tuple(sorted(ranks)) for group, ranks in found.items()}
