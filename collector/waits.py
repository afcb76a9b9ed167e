"""Who waited for whom at the collectives, as sums that fit on a screen."""

from __future__ import annotations

from dataclasses import dataclass

from annotq.collector.evidence import Ask

WAITS = """SELECT name, region, phase, group_name, group_ranks, group_first_rank, rank,
    count(*) AS collectives,
    count(*) FILTER (WHERE method IS NOT NULL) AS judged,
    count(*) FILTER (WHERE last_rank = rank AND method IS NOT NULL) AS last,
    count(*) FILTER (WHERE disjoint) AS disjoint,
    median(CASE method WHEN 'clock' THEN wait_clock_ns WHEN 'duration' THEN wait_duration_ns END) AS wait_ns,
    median(CASE method WHEN 'clock' THEN transfer_clock_ns WHEN 'duration' THEN transfer_duration_ns END) AS transfer_ns,
    median(CASE WHEN method IS NOT NULL THEN wait_clock_ns END) AS wait_clock_ns,
    median(CASE WHEN method IS NOT NULL THEN transfer_clock_ns END) AS transfer_clock_ns,
    median(CASE WHEN method IS NOT NULL THEN wait_duration_ns END) AS wait_duration_ns,
    median(CASE WHEN method IS NOT NULL THEN transfer_duration_ns END) AS transfer_duration_ns
FROM _collective_waits
WHERE job = ? AND attempt = ?
GROUP BY name, region, phase, group_name, group_ranks, group_first_rank, rank
ORDER BY name ASC NULLS LAST, region ASC NULLS LAST, phase ASC NULLS LAST, group_name ASC NULLS LAST,
    group_first_rank ASC NULLS LAST, group_ranks ASC NULLS LAST, rank ASC NULLS LAST"""

CAUSED = """WITH per_step AS (
    SELECT step, last_rank,
        sum(CASE method WHEN 'clock' THEN wait_clock_ns ELSE wait_duration_ns END)
            / count(DISTINCT CASE WHEN rank <> last_rank THEN rank END) AS wait_ns
    FROM _collective_waits
    WHERE job = ? AND attempt = ? AND method IS NOT NULL AND step IS NOT NULL
    GROUP BY step, last_rank
)
SELECT last_rank AS rank, count(*) AS steps, median(wait_ns) AS wait_ns
FROM per_step
GROUP BY last_rank
ORDER BY last_rank ASC NULLS LAST"""


@dataclass(frozen=True)
class RankWait:
    """One rank at one kind of collective: medians in ns over the judged instances, None when none could be judged.

    wait_ns and transfer_ns are what the view `collectives` shows; the other four are the two formulas behind them.
    """

    name: str
    region: str | None
    phase: str | None
    group_name: str | None
    group_ranks: str | None
    group_first_rank: int
    rank: int
    collectives: int
    judged: int
    last: int
    disjoint: int
    wait_ns: float | None
    transfer_ns: float | None
    wait_clock_ns: float | None
    transfer_clock_ns: float | None
    wait_duration_ns: float | None
    transfer_duration_ns: float | None

    @property
    def kind(self) -> tuple[str | int | None, ...]:
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
    """How long the others waited for a rank: per step in which it was last, mean over the waiting ranks, then median."""

    rank: int
    steps: int
    wait_ns: float


def rank_waits(ask: Ask, job: str, attempt: int) -> list[RankWait]:
    """One row per (kind of collective, rank)."""
    return [RankWait(**row) for row in ask(WAITS, [job, attempt]).to_pylist()]


def caused_waits(ask: Ask, job: str, attempt: int) -> dict[int, CausedWait]:
    """By rank; a rank that was never last is missing."""
    rows = ask(CAUSED, [job, attempt]).to_pylist()
    return {row["rank"]: CausedWait(row["rank"], row["steps"], float(row["wait_ns"] or 0)) for row in rows}
