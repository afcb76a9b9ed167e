"""What one refresh shows, as data: the ranks and what they have in common."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

from annotq.cli.top.window import Window

if TYPE_CHECKING:
    from annotq.collector.findings import Verdict

# As `annotq status` has it, or three of the rank's own steps where these are longer.
SILENT_AFTER_NS = 30_000_000_000


@dataclass(frozen=True)
class RankRow:
    """One rank. None: not known (yet).

    state: running, silent (running, without a sign of life for longer than usual), ending, stopped, gone; None for a rank
    known from files only. age_ns: since its last sign of life. step_ns: of its last steps; step_ratio: the same over the
    median of the ranks. The others are of the newest window, see work_sql.work_statement.
    """

    rank: int
    host: str | None
    state: str | None
    age_ns: int | None
    step: int | None
    step_ns: float | None
    step_ratio: float | None = None
    compute_ns: float | None = None
    behind_ns: float | None = None
    region: str | None = None
    phase: str | None = None
    ratio: float | None = None
    wait_share: float | None = None
    windows: int = 0
    spooled_bytes: int = 0
    dropped_traces: int = 0
    notes: int = 0


@dataclass(frozen=True)
class WorkTotals:
    """What the numbers of the newest window rest on, over its ranks."""

    window: Window
    ranks: int
    graph_events: int
    named: int
    collectives: int
    judged: int


@dataclass(frozen=True)
class Judgement:
    """The straggler report in a line.

    verdict: as in findings.Verdict; None: there is none, `sentence` says why. made: time.monotonic() of it.
    """

    verdict: Verdict | None
    sentence: str
    made: float


@dataclass(frozen=True)
class Snapshot:
    """One refresh. clock_error_ns None: some host's clock is not aligned, or no window came yet.

    jobs: how many there are in the place. newest: what `totals` and the ranks' work will be about, unless they are already;
    None: no window holds steps. made: time.monotonic() when it was answered; now_ns: the answerer's clock.
    """

    place: str
    job: str
    jobs: int
    attempt: int
    now_ns: int
    made: float
    ranks: tuple[RankRow, ...]
    ranks_expected: int | None
    windows: int
    newest: Window | None
    clock_error_ns: int | None
    totals: WorkTotals | None
    judgement: Judgement | None

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Expected ranks that neither an agent nor a trace has shown."""
        return tuple(sorted(set(range(self.ranks_expected or 0)) - {row.rank for row in self.ranks}))

    @cached_property
    def newest_step(self) -> int | None:
        return max((row.step for row in self.ranks if row.step is not None), default=None)

    @cached_property
    def states(self) -> dict[str, int]:
        """Ranks by state, in the order of a rank's life; states that no rank is in are left out."""
        counts = {name: sum(row.state == name for row in self.ranks) for name in STATES}
        return {name: count for name, count in counts.items() if count}

    @cached_property
    def steps_per_second(self) -> float | None:
        """By the median step of the ranks that run; None when none does: a job that hangs has no speed."""
        durations = [row.step_ns for row in self.ranks if row.state == "running" and row.step_ns]
        return 1e9 / median(durations) if durations else None


STATES = ("running", "silent", "ending", "stopped", "gone")


def shown_state(state: str | None, age_ns: int | None, step_ns: float | None) -> str | None:
    """The state of the view agents, with `silent` told apart from `running`."""
    if state == "running" and age_ns is not None and age_ns >= max(SILENT_AFTER_NS, 3 * (step_ns or 0)):
        return "silent"
    return state
