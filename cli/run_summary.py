"""What `annotq run` says at the end: who reported, how much, who is slow, and what to ask next."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from annotq.agent import config
from annotq.cli.coverage_line import coverage_line
from annotq.cli.straggler_text import VERDICTS

if TYPE_CHECKING:
    import pyarrow as pa

    from annotq.cli.door import AnyDoor
    from annotq.collector.stragglers import Report

WIDTH = 100

FIVE_LINES = (
    "No rank reported: the training script has to call annotq.agent.start(). README.md shows the five lines for it."
)
SWITCHED_OFF = f"No rank reported: {config.DISABLED} is set, so annotq.agent did nothing."

# What began on this host since the run did: an earlier run may have had the same name. A script may give start() another.
_RECENT = (
    """SELECT job, max(attempt) AS attempt FROM agents WHERE start_ns >= ? AND host = ? GROUP BY job ORDER BY job"""
)
# A container or a launcher may have its ranks on a host of another name: then by the clocks of those hosts.
_OURS = """SELECT job, max(attempt) AS attempt FROM agents WHERE start_ns >= ? AND job = ? GROUP BY job"""

_COUNTS = """SELECT
    (SELECT count(DISTINCT rank) FROM agents WHERE job = ? AND attempt = ?) AS registered,
    (SELECT max(world_size) FROM agents WHERE job = ? AND attempt = ?) AS expected,
    (SELECT coalesce(sum(notes), 0) FROM agents WHERE job = ? AND attempt = ?) AS notes,
    (SELECT count(*) FROM _traces WHERE job = ? AND attempt = ?) AS windows,
    (SELECT count(*) FROM _gpu_work WHERE job = ? AND attempt = ?) AS gpu_events,
    (SELECT count(*) FROM _host_work WHERE job = ? AND attempt = ?) AS host_events"""


def run_summary(door: AnyDoor, where: Sequence[str], job: str, host: str, since_ns: int, refused: int = 0) -> list[str]:
    """The summary as lines. where: the option that leads to the store, for the next commands. since_ns: begin of the run.
    refused: processes of the run that the collector did not take.

    Raises AnnotqError when the store cannot be asked.
    """

    def ask(sql: str, parameters: Sequence[object] = ()) -> pa.Table:
        return door.ask(sql, parameters).table

    recent = ask(_RECENT, [since_ns, host]).to_pylist()
    ours = [row for row in recent if row["job"] == job] or ask(_OURS, [since_ns, job]).to_pylist()
    found = ours or ([] if refused else recent)
    if not found and refused:
        counted = "The rank" if refused == 1 else f"All {refused} ranks"
        taken = "was" if refused == 1 else "were"
        return _wrapped(f"{counted} of this run {taken} refused: what {where[-1]} has of job {job} is of another run.")
    if not found:
        return [SWITCHED_OFF if config.is_disabled() else FIVE_LINES]
    return [line for row in found for line in _of_job(ask, where, row["job"], row["attempt"])]


def _of_job(ask: Any, where: Sequence[str], job: str, attempt: int) -> list[str]:
    counts = ask(_COUNTS, [job, attempt] * 6).to_pylist()[0]
    again = f", attempt {attempt}" if attempt else ""
    of = f" of {counts['expected']}" if counts["expected"] else ""
    lines = [
        f"job {job}{again}: {counts['registered']}{of} ranks, {counts['windows']} profiler windows, "
        f"{counts['gpu_events']:,} GPU events, {counts['host_events']:,} host events"
    ]
    if counts["notes"]:
        lines.append(f"the agents left {counts['notes']} notes: annotq status shows them")
    if counts["windows"]:
        lines.append(coverage_line(ask, job))
    lines += _verdict(ask, job, attempt, counts)
    return [part for line in lines for part in _wrapped(line)] + _next(where, job, counts)


def _verdict(ask: Any, job: str, attempt: int, counts: dict[str, Any]) -> list[str]:
    if not counts["windows"]:
        return [
            "No profiler window came: give torch.profiler on_trace_ready=annotq.agent.trace_handler(), and let its "
            "schedule reach its active steps."
        ]
    if not counts["gpu_events"]:
        return ["No GPU work in it, so no straggler report: steps and host_regions have the times on the host."]
    from annotq.collector.explain import explain_absence, explain_finding
    from annotq.collector.stragglers import straggler_report

    report: Report = straggler_report(ask, job, attempt)
    sentences = [explain_finding(finding) for finding in report.findings] or [explain_absence(report)]
    return [f"{VERDICTS[report.verdict]}: {sentences[0]}", *sentences[1:]]


def _next(where: Sequence[str], job: str, counts: dict[str, Any]) -> list[str]:
    commands = [["status"], ["ranks"]]
    if counts["gpu_events"]:
        commands.append(["stragglers"])
    lines = [shlex.join(["annotq", *command, *where, "--job", job]) for command in commands if counts["registered"]]
    if counts["windows"] and not counts["gpu_events"]:
        name = job.replace("'", "''")
        sql = f"SELECT rank, region, median_ns, ratio FROM host_regions WHERE job = '{name}' ORDER BY total_ns DESC"
        lines.append(f'{shlex.join(["annotq", "query", *where])} "{sql}"')
    return ["next:", *(f"  {line}" for line in lines)]


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False)


def where_option(place: Path | str) -> list[str]:
    """The option that leads the next commands to the same store."""
    return ["--db", str(place)] if isinstance(place, Path) else ["--endpoint", place]
