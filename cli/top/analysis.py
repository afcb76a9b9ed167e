"""What costs too much for every refresh: the work of the newest window, and the verdict. Asked when windows came, and paced."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock, Thread
from typing import TYPE_CHECKING

import msgspec

from annotq.agent.errors import AnnotqError
from annotq.cli.top.place import Place, answer, rows_of
from annotq.cli.top.rows import Judgement, WorkTotals
from annotq.cli.top.window import Window
from annotq.cli.top.work_sql import bounds_statement, work_statement

if TYPE_CHECKING:
    import pyarrow as pa

# The part of the time that questions about work, and those for the verdict, may keep the answering machine busy.
WORK_SHARE = 0.1
VERDICT_SHARE = 0.05

# GPU events of a job attempt from which on its verdict is left to `annotq stragglers`: it reads the whole run.
MOST_EVENTS = 20_000_000


class RankWork(msgspec.Struct, frozen=True):
    """A row of work_sql.work_statement."""

    rank: int
    steps: int
    step_ns: float | None
    compute_ns: float | None
    region: str | None
    phase: str | None
    ratio: float | None
    behind_ns: float | None
    wait_share: float | None
    collectives: int
    judged: int
    graph_events: int
    named: int


@dataclass(frozen=True)
class Windows:
    """What there is to analyse. complete: ranks that have sent the newest window; traces, gpu_events: of the whole attempt."""

    newest: Window
    complete: int
    traces: int
    gpu_events: int


@dataclass(frozen=True)
class Findings:
    """The last answers: of the newest window by rank, and the verdict; both may be of a little earlier."""

    work: dict[int, RankWork]
    totals: WorkTotals | None
    judgement: Judgement | None


_NOTHING = Findings({}, None, None)


class _Paced:
    """Keeps a question to its share of the time, and to times when there is something new.

    problem: why the last try failed, else empty.
    """

    def __init__(self, share: float) -> None:
        self.problem = ""
        self._share = share
        self._seen: object = None
        self._not_before = 0.0

    def run(self, about: object, ask: Callable[[], None]) -> None:
        """Ask unless `about` is what the last answer was about, or it is too early."""
        began = time.monotonic()
        if about == self._seen or began < self._not_before:
            return
        try:
            ask()
            self._seen, self.problem = about, ""
        except AnnotqError as error:
            self.problem = error.message
        finally:
            self._not_before = time.monotonic() + (time.monotonic() - began) * (1 / self._share - 1)


class Analysis:
    """Analyses in a thread of its own, one question at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._work_pace = _Paced(WORK_SHARE)
        self._verdict_pace = _Paced(VERDICT_SHARE)
        self._busy = Lock()
        self._about: tuple[str, int] | None = None
        self._findings = _NOTHING
        self._bug = ""

    @property
    def problem(self) -> str:
        """Why the last questions failed, else empty."""
        return self._bug or self._work_pace.problem or self._verdict_pace.problem

    def findings(self, job: str, attempt: int) -> Findings:
        """The last ones about this attempt."""
        return self._findings if self._about == (job, attempt) else _NOTHING

    def start(self, windows: Windows) -> None:
        """Look at the windows in the background, unless an earlier look is still under way."""
        if self._busy.acquire(blocking=False):
            Thread(target=self._run, args=(windows,), name="annotq-analysis", daemon=True).start()

    def look(self, windows: Windows) -> None:
        """The same at once."""
        with self._busy:
            self._look(windows)

    def _run(self, windows: Windows) -> None:
        try:
            self._look(windows)
        except Exception as error:  # a traceback would be written across the picture
            self._bug = f"{type(error).__name__}: {error}"
        finally:
            self._busy.release()

    def _look(self, windows: Windows) -> None:
        about = (windows.newest.job, windows.newest.attempt)
        if about != self._about:
            self._findings, self._about = _NOTHING, about
        self._work_pace.run((windows.newest, windows.complete), lambda: self._ask_work(windows.newest))
        self._verdict_pace.run((about, windows.traces), lambda: self._ask_verdict(windows))

    def _ask_work(self, window: Window) -> None:
        with self._place.door() as door:
            (bounds,) = rows_of(door, bounds_statement(window))
            if bounds["start_ns"] is None or bounds["end_ns"] is None:
                return
            statement = work_statement(
                window, msgspec.convert(bounds["start_ns"], int), msgspec.convert(bounds["end_ns"], int)
            )
            work = msgspec.convert(rows_of(door, statement), list[RankWork])
        totals = WorkTotals(
            window,
            len(work),
            sum(row.graph_events for row in work),
            sum(row.named for row in work),
            sum(row.collectives for row in work),
            sum(row.judged for row in work),
        )
        self._findings = Findings({row.rank: row for row in work}, totals, self._findings.judgement)

    def _ask_verdict(self, windows: Windows) -> None:
        from annotq.collector.explain import explain_verdict
        from annotq.collector.stragglers import straggler_report

        window = windows.newest
        if why := _not_judged(windows.gpu_events):
            judgement = Judgement(None, why, time.monotonic())
        else:
            with self._place.door() as door:

                def ask(sql: str, parameters: Sequence[object]) -> pa.Table:
                    return answer(door, sql, parameters)

                report = straggler_report(ask, window.job, window.attempt)
            judgement = Judgement(report.verdict, explain_verdict(report), time.monotonic())
        self._findings = Findings(self._findings.work, self._findings.totals, judgement)


def _not_judged(gpu_events: int) -> str:
    """Why there is no verdict on so many events; empty when there may be one."""
    if gpu_events == 0:
        return "there is no GPU work to compare; the view host_regions compares what the hosts did."
    if gpu_events > MOST_EVENTS:
        return f"{gpu_events:,} GPU events are too many to judge again and again; annotq stragglers does it once."
    return ""
