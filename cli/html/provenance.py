"""What the page rests on: who sent data and who did not, which windows, versions and clocks, how much has a name."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from annotq.cli.html.figure import Figure
from annotq.cli.html.rendering import TIMES, count, duration, percent, render
from annotq.cli.html.subject import Subject
from annotq.cli.statement import Statement
from annotq.cli.time_columns import utc_text

ANCHOR, TITLE = "provenance", "What this rests on"
PROBLEMS_SHOWN, NAMES_SHOWN = 20, 8

PROCESSES = """SELECT rank, world_size, host, gpu, versions
FROM process
WHERE job = ? AND attempt = ?
ORDER BY rank"""

TRACES = """SELECT rank, path, status, note, step_source, first_step + step_offset AS first_step,
    last_step + step_offset AS last_step, window_start_ns, window_end_ns
FROM trace
WHERE job = ? AND attempt = ?
ORDER BY rank, window_start_ns"""

CLOCKS = "SELECT host, method, error_ns FROM clock WHERE job = ? AND attempt = ? ORDER BY host"

AGENTS = """SELECT state, count(*) AS ranks, max(step) AS step, max(seen_ns) AS seen_ns
FROM agents
WHERE job = ? AND attempt = ?
GROUP BY state
ORDER BY state"""

ATTEMPTS = "SELECT DISTINCT attempt FROM process WHERE job = ? ORDER BY attempt"

VERSIONS = {
    "torch": "torch",
    "cuda": "CUDA",
    "cuda_runtime": "CUDA runtime",
    "cuda_driver": "driver for CUDA",
    "nccl": "NCCL",
}


@dataclass(frozen=True)
class Coverage:
    """Graph kernels by what is known of them, in percent of all."""

    matched: float
    unannotated: float
    orphan: float


@dataclass(frozen=True)
class Fact:
    """A line of the list; `warning` is set apart from the rest."""

    name: str
    text: str
    warning: str = ""
    coverage: Coverage | None = None


def figure(subject: Subject) -> Figure:
    from annotq.collector.receipt import CLOCK_NOTES, COVERAGE, JOB, OUTSIDE

    about = (subject.job, subject.attempt)
    queries = [Statement(sql, about) for sql in (PROCESSES, TRACES, CLOCKS, AGENTS)]
    processes, traces, clocks, agents = (subject.questions.rows(query).to_pylist() for query in queries)
    attempts = [int(row["attempt"]) for row in subject.questions.ask(ATTEMPTS, [subject.job]).to_pylist()]
    facts = [
        _job(subject, attempts),
        _ranks(subject, processes),
        *_agents(agents),
        _hosts(processes),
        _windows(traces),
        *_versions(processes),
        _coverage(subject),
        _outside(subject),
        _clock(subject, clocks),
        _traces(traces),
        Fact(
            "Made",
            f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC by annotq {version('annotq')} from {subject.questions.door.name}",
        ),
    ]
    problems = [
        *(note for note in subject.verdict.receipt.notes if not note.startswith("rank ")),
        *(f"rank {row['rank']}, {row['path']}: {row['status']}{_because(row['note'])}" for row in traces
          if row["status"] not in ("complete", "arriving") or row["note"]),
    ]  # fmt: skip
    body = render(
        "provenance.html",
        facts=[fact for fact in facts if fact.text or fact.warning],
        problems=problems[:PROBLEMS_SHOWN],
        left_out=len(problems) - PROBLEMS_SHOWN,
    )
    return Figure(
        ANCHOR, TITLE, "", body, [*queries, *(Statement(sql, about) for sql in (COVERAGE, JOB, OUTSIDE, CLOCK_NOTES))]
    )


def _because(note: str | None) -> str:
    return f" ({note})" if note else ""


def _job(subject: Subject, attempts: list[int]) -> Fact:
    others = f" of {len(attempts)} ({', '.join(map(str, attempts))})" if len(attempts) > 1 else ""
    return Fact("Job", f"{subject.job}, attempt {subject.attempt}{others}")


def _ranks(subject: Subject, processes: list[dict[str, Any]]) -> Fact:
    from annotq.collector.receipt import ranges

    seen = subject.verdict.receipt.ranks_seen
    # The receipt knows what traces say; before the first one only the agents do.
    expected = max((row["world_size"] for row in processes if row["world_size"] is not None), default=None)
    if not expected:
        return Fact("Ranks", f"{len(seen):,} sent a usable trace; how many there are is not known")
    text = f"{len(seen):,} of {expected:,} sent a usable trace"
    missing = tuple(sorted(set(range(expected)) - set(seen)))
    return Fact("Ranks", text, f"missing: {ranges(missing)}" if missing else "")


def _agents(rows: list[dict[str, Any]]) -> list[Fact]:
    """Only for a job whose processes reported themselves."""
    if not rows:
        return []
    text = ", ".join(f"{row['ranks']:,} {row['state']}" for row in rows)
    seen = max((row["seen_ns"] for row in rows if row["seen_ns"] is not None), default=None)
    step = max((row["step"] for row in rows if row["step"] is not None), default=None)
    text += f"; last step announced: {step}" if step is not None else ""
    return [Fact("Agents", text + (f"; last sign of life {_moment(seen)}" if seen is not None else ""))]


def _hosts(processes: list[dict[str, Any]]) -> Fact:
    hosts = Counter(row["host"] for row in processes if row["host"])
    gpus = Counter(row["gpu"] for row in processes if row["gpu"])
    text = f"{len(hosts):,} ({_some(hosts)})" if hosts else "not known"
    return Fact(
        "Hosts",
        text + (f"; {', '.join(f'{number:,} {TIMES} {name}' for name, number in gpus.most_common(4))}" if gpus else ""),
    )


def _windows(traces: list[dict[str, Any]]) -> Fact:
    usable = [row for row in traces if row["status"] not in ("rejected", "arriving")]
    if not usable:
        return Fact("Profiler windows", "none has arrived yet")
    ranks = len({row["rank"] for row in usable})
    steps = Counter(f"{row['first_step']} to {row['last_step']}" for row in usable if row["first_step"] is not None)
    starts = [row["window_start_ns"] for row in usable if row["window_start_ns"] is not None]
    ends = [row["window_end_ns"] for row in usable if row["window_end_ns"] is not None]
    said = ", ".join(
        name if number == ranks else f"{name} ({number} ranks)" for name, number in steps.most_common(NAMES_SHOWN)
    )
    more = f" and {len(steps) - NAMES_SHOWN} others" if len(steps) > NAMES_SHOWN else ""
    text = f"{len(usable):,} traces of {ranks:,} ranks; " + (f"steps {said}{more}" if steps else "no steps")
    if starts and ends:
        text += f"; {duration(max(ends) - min(starts))} from {_moment(min(starts))} on, by the hosts' clocks"
    return Fact("Profiler windows", text)


def _versions(processes: list[dict[str, Any]]) -> list[Fact]:
    """What differs between ranks is a warning: it may be the reason why one is slow."""
    from annotq.collector.receipt import ranges

    found: dict[str, dict[str, list[int]]] = {}
    for row in processes:
        for key, value in _parsed(row["versions"]).items():
            if key in VERSIONS:
                found.setdefault(key, {}).setdefault(_readable(key, str(value)), []).append(row["rank"])
    same = [f"{VERSIONS[key]} {next(iter(found[key]))}" for key in VERSIONS if len(found.get(key, ())) == 1]
    differing = [
        f"{VERSIONS[key]} differs: "
        + ", ".join(f"{value} (ranks {ranges(tuple(ranks))})" for value, ranks in found[key].items())
        for key in VERSIONS
        if len(found.get(key, ())) > 1
    ]
    if not found:
        return [Fact("Versions", "the traces do not say")]
    return [Fact("Versions", ", ".join(same), "; ".join(differing))]


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _readable(key: str, value: str) -> str:
    """13010 is how CUDA writes 13.1."""
    if key in ("cuda_driver", "cuda_runtime") and value.isdecimal():
        return f"{int(value) // 1000}.{int(value) % 1000 // 10}"
    return value


def _coverage(subject: Subject) -> Fact:
    receipt = subject.verdict.receipt
    if not receipt.graph_events:
        return Fact("Coverage", f"no work of CUDA graphs among {receipt.gpu_events:,} GPU events")
    share = receipt.matched / receipt.graph_events
    text = (
        f"{count(receipt.matched)} of {count(receipt.graph_events)} graph kernels matched ({percent(share)}), "
        f"{count(receipt.unannotated)} unannotated, {count(receipt.orphan)} orphan"
    )
    inferred = "; node ids inferred" if "inferred" in receipt.encodings else ""
    matched, unannotated, orphan = (
        round(100 * part / receipt.graph_events, 3) for part in (receipt.matched, receipt.unannotated, receipt.orphan)
    )
    return Fact("Coverage", text + inferred, coverage=Coverage(matched, unannotated, orphan))


def _outside(subject: Subject) -> Fact:
    receipt = subject.verdict.receipt
    outside = receipt.outside_steps
    text = (
        f"{count(outside)} of {count(receipt.gpu_events)} GPU events were launched outside of every step; "
        "no comparison holds them"
    )
    return Fact("Outside of steps", text if outside else "")


def _clock(subject: Subject, clocks: list[dict[str, Any]]) -> Fact:
    methods = {
        "same_host": "all ranks on one clock",
        "ping": "pings to the collector",
        "collectives": "ends of collectives",
        "none": "nothing to align them by",
    }
    used = _some(Counter(methods.get(row["method"], row["method"]) for row in clocks))
    error = subject.verdict.receipt.clock_error_ns
    if subject.no_trace or not clocks:
        return Fact("Clock error", "not known yet")
    if error is None:
        return Fact("Clock error", f"method: {used}", "not known: waits are judged by durations alone")
    if {row["method"] for row in clocks} == {"same_host"}:
        return Fact("Clock error", f"{duration(error)} at most: {used}")
    return Fact("Clock error", f"{duration(error)} at most between hosts; method: {used}")


def _traces(traces: list[dict[str, Any]]) -> Fact:
    states = Counter(row["status"] for row in traces)
    bad = {name: number for name, number in states.items() if name != "complete"}
    warning = ", ".join(f"{number:,} {name}" for name, number in sorted(bad.items()))
    return Fact("Traces", f"{states['complete']:,} complete" if traces else "none", warning)


def _some(counts: Counter[str]) -> str:
    names = sorted(counts)
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def _moment(ns: int) -> str:
    return f"{(utc_text(ns) or '')[:19]} UTC"
