"""What a comparison knows of each side: who ran it on what, how long steps, ranks and regions took, and what was found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from annotq.cli.html.comparison_times import RankTimes, SideParts, StepTime, rank_times, side_parts, step_times
from annotq.cli.html.findings import COLOURS, WORDS
from annotq.cli.html.questions import Questions
from annotq.cli.statement import Statement
from annotq.collector.diff_sides import Key, Side, Times, region_series
from annotq.collector.explain import explain_absence, explain_finding, explain_single_kernels
from annotq.collector.receipt import Receipt, receipt
from annotq.collector.stragglers import straggler_report
from annotq.collector.work import Ask, read_work

if TYPE_CHECKING:
    import pyarrow as pa

_MACHINES = """SELECT host, gpu, versions, count(*) AS ranks
FROM process
WHERE job = ? AND attempt = ?
GROUP BY host, gpu, versions
ORDER BY host ASC NULLS LAST, gpu ASC NULLS LAST, versions ASC NULLS LAST"""

_WINDOWS = """SELECT count(*) AS traces, min(window_start_ns) AS start_ns, max(window_end_ns) AS end_ns,
    min(first_step + step_offset) AS first_step, max(last_step + step_offset) AS last_step,
    string_agg(DISTINCT step_source, ', ' ORDER BY step_source) AS step_source
FROM trace
WHERE job = ? AND attempt = ? AND status NOT IN ('rejected', 'arriving')"""

_CLOCKS = """SELECT method, count(*) AS hosts, max(error_ns) AS error_ns
FROM clock
WHERE job = ? AND attempt = ?
GROUP BY method
ORDER BY method"""


@dataclass(frozen=True)
class Machines:
    """What a side ran on: each as a sorted text per different value, versions by what they are of."""

    hosts: tuple[str, ...]
    gpus: tuple[str, ...]
    versions: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Windows:
    """Profiler windows: how many traces, from when to when in ns since the epoch, their first and last step, and where
    steps come from."""

    traces: int
    start_ns: int | None
    end_ns: int | None
    first_step: int | None
    last_step: int | None
    step_source: str | None


@dataclass(frozen=True)
class Clock:
    """How the hosts' clocks were brought together, and the largest bound of their error in ns; None: not known."""

    methods: tuple[str, ...]
    error_ns: int | None


@dataclass(frozen=True)
class Judged:
    """What annotq stragglers says. verdict: in words; colour: bad, good or none; sentences: the findings, or why there are none.

    ranks: those of the findings, the costliest finding first. statements: what was asked for it.
    """

    verdict: str
    colour: str
    sentences: tuple[str, ...]
    ranks: tuple[int, ...]
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Compared:
    """One side of the comparison. series: as diff takes them. steps: those that are timed. judged: the whole attempt."""

    side: Side
    receipt: Receipt
    machines: Machines
    windows: Windows
    clock: Clock
    series: dict[Key, Times]
    steps: tuple[StepTime, ...]
    ranks: tuple[RankTimes, ...]
    judged: Judged
    parts: SideParts

    @property
    def title(self) -> str:
        return self.side.title

    @property
    def most_steps(self) -> int:
        """Of any region."""
        return max((len(times.median_ns) for times in self.series.values()), default=0)

    @property
    def has_data(self) -> bool:
        return bool(self.series)

    @property
    def steps_text(self) -> str:
        """The steps asked for, as in "0-9, 20-29"; empty for all."""
        return self.title.partition(":")[2] if self.side.steps is not None else ""


class Remembered:
    """Asks, and remembers the answers: the findings and the comparison rest on the same questions."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._answers: dict[tuple[str, tuple[object, ...]], pa.Table] = {}

    def __call__(self, sql: str, parameters: Sequence[object]) -> pa.Table:
        """All rows. Raises AnnotqError as Questions.ask does."""
        key = (sql, tuple(parameters))
        if key not in self._answers:
            self._answers[key] = self._questions.ask(sql, parameters)
        return self._answers[key]

    def forget(self) -> None:
        self._answers.clear()


def both_sides(questions: Questions, before: Side, after: Side) -> tuple[Compared, Compared]:
    """Both, from the store. What one attempt holds is asked once."""
    ask = Remembered(questions)
    first = second = _compared(ask, before, _judged(questions, ask, before))
    if after != before:
        if (after.job, after.attempt) == (before.job, before.attempt):
            second = _compared(ask, after, first.judged)
        else:
            ask.forget()
            second = _compared(ask, after, _judged(questions, ask, after))
    # The answers of a large job take hundreds of megabytes, which cutting its steps into parts needs.
    ask.forget()
    named = (*second.judged.ranks, *first.judged.ranks)
    cut = _with_parts(ask, first, named)
    return cut, cut if second is first else _with_parts(ask, second, named)


def _compared(ask: Ask, side: Side, judged: Judged) -> Compared:
    """All but the parts."""
    steps = step_times(ask, side)
    return Compared(
        side=side,
        receipt=receipt(ask, side.job, side.attempt),
        machines=_machines(ask, side),
        windows=_windows(ask, side),
        clock=_clock(ask, side),
        series=region_series(ask, side),
        steps=steps,
        ranks=rank_times(ask, side, [row.step for row in steps]),
        judged=judged,
        parts=SideParts(None, (), ()),
    )


def _with_parts(ask: Ask, found: Compared, named: Sequence[int]) -> Compared:
    """named: ranks whose steps are cut into parts in any case."""
    steps = [row.step for row in found.steps]
    return replace(found, parts=side_parts(ask, found.side, found.ranks, steps, named))


def provenance_statements(side: Side) -> list[Statement]:
    """Where the machines, windows and clocks of a side come from; the coverage is that of the view."""
    coverage = """SELECT status, encoding, count(*) AS traces, sum(gpu_events) AS gpu_events, sum(graph_events) AS graph_events,
    sum(matched) AS matched, sum(unannotated) AS unannotated, sum(orphan) AS orphan
FROM coverage
WHERE trace_id IN (SELECT trace_id FROM trace WHERE job = ? AND attempt = ?)
GROUP BY status, encoding
ORDER BY status, encoding"""
    return [Statement(sql, (side.job, side.attempt)) for sql in (_MACHINES, _WINDOWS, _CLOCKS, coverage)]


def _machines(ask: Ask, side: Side) -> Machines:
    rows = ask(_MACHINES, [side.job, side.attempt]).to_pylist()
    versions: dict[str, set[str]] = {}
    for row in rows:
        for name, version in _object(row["versions"]).items():
            versions.setdefault(name, set()).add(str(version))
    return Machines(
        hosts=tuple(dict.fromkeys(str(row["host"]) for row in rows if row["host"])),
        gpus=tuple(sorted({str(row["gpu"]) for row in rows if row["gpu"]})),
        versions={name: tuple(sorted(found)) for name, found in sorted(versions.items())},
    )


def _object(text: str | None) -> dict[str, object]:
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}


def _windows(ask: Ask, side: Side) -> Windows:
    return Windows(**ask(_WINDOWS, [side.job, side.attempt]).to_pylist()[0])


def _clock(ask: Ask, side: Side) -> Clock:
    rows = ask(_CLOCKS, [side.job, side.attempt]).to_pylist()
    errors = [row["error_ns"] for row in rows]
    known = bool(errors) and None not in errors
    return Clock(tuple(str(row["method"]) for row in rows), max(errors) if known else None)


def _judged(questions: Questions, ask: Ask, side: Side) -> Judged:
    before = len(questions.asked)
    if not len(read_work(ask, side.job, side.attempt).steps):
        nothing = "No verdict: no rank has GPU work in a step."
        return Judged(WORDS["inconclusive"], COLOURS["inconclusive"], (nothing,), (), tuple(questions.asked[before:]))
    report = straggler_report(ask, side.job, side.attempt)
    sentences = [explain_finding(finding) for finding in report.findings]
    if report.verdict in ("none", "inconclusive"):
        sentences.insert(0, explain_absence(report))
    return Judged(
        verdict=WORDS[report.verdict],
        colour=COLOURS[report.verdict],
        sentences=(*sentences, *map(explain_single_kernels, report.held_up)),
        ranks=tuple(dict.fromkeys(rank for finding in report.findings for rank in finding.ranks)),
        statements=tuple(questions.asked[before:]),
    )
