"""Looks at a job again and again: one small question each time, the costly answers from `analysis`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from statistics import median

import msgspec

from annotq.agent.errors import AnnotqError
from annotq.cli.top.analysis import Analysis, RankWork, Windows
from annotq.cli.top.place import Place, rows_of
from annotq.cli.top.rank_sql import jobs_statement, ranks_statement
from annotq.cli.top.rows import RankRow, Snapshot, shown_state
from annotq.cli.top.window import LAST_STEPS, newest_window

# The window of a rank that goes on is waited for, unless it is so many windows behind: some of its were lost.
_LOST_WINDOWS = 2


class NoJobError(AnnotqError):
    """There is nothing to look at yet."""


class _Rank(msgspec.Struct, frozen=True):
    """A row of rank_sql.ranks_statement."""

    now_ns: int
    jobs: int
    attempt: int
    rank: int
    world_size: int | None
    host: str | None
    state: str | None
    seen_ns: int | None
    step: int | None
    step_ns: int | None
    spooled_bytes: int
    dropped_traces: int
    notes: int
    windows: int
    window_step: int | None
    gpu_events: int
    clock_error_ns: int | None


class Watch:
    """Looks at the latest attempt of one job. job None: of the liveliest, chosen at the first look that finds one."""

    def __init__(self, place: Place, job: str | None) -> None:
        self._place = place
        self._wanted = job
        self._job: str | None = None
        self._attempt: int | None = None
        self._durations: dict[int, deque[tuple[int, int]]] = {}
        self.analysis = Analysis(place)

    def look(self, wait: bool) -> Snapshot:
        """How the job is now. wait: with the work and the verdict of now; else with the last ones there are.

        Raises NoJobError while the job is not there, AnnotqError when nobody answers.
        """
        job, ranks = self._ask()
        made = time.monotonic()
        if ranks[0].attempt != self._attempt:
            self._attempt = ranks[0].attempt
            self._durations.clear()
        self._remember(ranks)
        windows = _windows(job, ranks)
        if windows is not None:
            (self.analysis.look if wait else self.analysis.start)(windows)
        return self._snapshot(job, ranks, windows, made)

    def windows(self) -> tuple[str, Windows | None]:
        """The job that is looked at, and what there is to analyse of it. Raises as `look` does."""
        job, ranks = self._ask()
        return job, _windows(job, ranks)

    def _ask(self) -> tuple[str, list[_Rank]]:
        with self._place.door() as door:
            job = self._job or self._choose([str(row["job"]) for row in rows_of(door, jobs_statement())])
            ranks = msgspec.convert(rows_of(door, ranks_statement(job)), list[_Rank])
        if not ranks:
            self._job = None
            raise NoJobError(f"Job {job} is gone from {self._place.name}.", "Choose another one with --job.")
        self._job = job
        return job, ranks

    def _choose(self, jobs: list[str]) -> str:
        if not jobs:
            raise NoJobError(f"There is no job in {self._place.name} yet.", "Record one: annotq run -- COMMAND")
        if self._wanted is None:
            return jobs[0]
        if self._wanted not in jobs:
            raise NoJobError(
                f"There is no job {self._wanted} in {self._place.name}.", f"The jobs are: {', '.join(jobs)}."
            )
        return self._wanted

    def _remember(self, ranks: list[_Rank]) -> None:
        """A single step may be a checkpoint: the last few that were seen tell the usual one."""
        for rank in ranks:
            if rank.step is not None and rank.step_ns:
                seen = self._durations.setdefault(rank.rank, deque(maxlen=LAST_STEPS))
                if not seen or seen[-1] != (rank.step, rank.step_ns):
                    seen.append((rank.step, rank.step_ns))

    def _snapshot(self, job: str, ranks: list[_Rank], windows: Windows | None, made: float) -> Snapshot:
        findings = self.analysis.findings(job, ranks[0].attempt)
        errors = [rank.clock_error_ns for rank in ranks if rank.windows]
        known = [error for error in errors if error is not None]
        return Snapshot(
            place=self._place.name,
            job=job,
            jobs=ranks[0].jobs,
            attempt=ranks[0].attempt,
            now_ns=ranks[0].now_ns,
            made=made,
            ranks=self._rows(ranks, findings.work),
            ranks_expected=max((rank.world_size for rank in ranks if rank.world_size), default=None),
            windows=sum(rank.windows for rank in ranks),
            newest=windows.newest if windows else None,
            clock_error_ns=max(known) if known and len(known) == len(errors) else None,
            totals=findings.totals,
            judgement=findings.judgement,
        )

    def _rows(self, ranks: list[_Rank], work: Mapping[int, RankWork]) -> tuple[RankRow, ...]:
        durations = {rank.rank: self._step_ns(rank, work.get(rank.rank)) for rank in ranks}
        known = [duration for duration in durations.values() if duration]
        usual = median(known) if known else None
        return tuple(_row(rank, durations[rank.rank], usual, work.get(rank.rank)) for rank in ranks)

    def _step_ns(self, rank: _Rank, work: RankWork | None) -> float | None:
        """As announced by the training script; of a rank known from files only, its GPU work of a step."""
        if seen := self._durations.get(rank.rank):
            return float(median(duration for _, duration in seen))
        return work.step_ns if work and rank.state is None else None


def _windows(job: str, ranks: list[_Rank]) -> Windows | None:
    sent = [rank for rank in ranks if rank.window_step is not None]
    most = max((rank.windows for rank in sent), default=0)
    going = [rank for rank in sent if _state(rank, rank.step_ns) in ("running", "ending", None)]
    awaited = [rank for rank in going or sent if rank.windows > most - _LOST_WINDOWS] or sent
    newest = newest_window(job, ranks[0].attempt, [rank.window_step or 0 for rank in awaited])
    if newest is None:
        return None
    return Windows(
        newest,
        sum((rank.window_step or 0) >= newest.last_step for rank in sent),
        sum(rank.windows for rank in ranks),
        sum(rank.gpu_events for rank in ranks),
    )


def _age_ns(rank: _Rank) -> int | None:
    return None if rank.seen_ns is None else max(0, rank.now_ns - rank.seen_ns)


def _state(rank: _Rank, step_ns: float | None) -> str | None:
    return shown_state(rank.state, _age_ns(rank), step_ns)


def _row(rank: _Rank, step_ns: float | None, usual_ns: float | None, work: RankWork | None) -> RankRow:
    return RankRow(
        rank=rank.rank,
        host=rank.host,
        state=_state(rank, step_ns),
        age_ns=_age_ns(rank),
        step=rank.window_step if rank.step is None else rank.step,
        step_ns=step_ns,
        step_ratio=step_ns / usual_ns if step_ns and usual_ns else None,
        compute_ns=work.compute_ns if work else None,
        behind_ns=work.behind_ns if work else None,
        region=work.region if work else None,
        phase=work.phase if work else None,
        ratio=work.ratio if work else None,
        wait_share=work.wait_share if work else None,
        windows=rank.windows,
        spooled_bytes=rank.spooled_bytes,
        dropped_traces=rank.dropped_traces,
        notes=rank.notes,
    )
