"""The jobs of a collector as its page lists them: one question, cheap enough to be asked again every few seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from annotq.cli.statement import Statement, equals, select
from annotq.cli.status_sql import SILENT_AFTER_NS

MOST_JOBS = 200
# A rank that gave no sign for so long is not waited for: the page of its job stands still.
LOST_AFTER_NS = 3_600 * 1_000_000_000

# Not from the view jobs, which counts the steps of all events: seconds in a large store. `version` changes whenever a report
# of the job attempt could: with what was loaded, and with what became of its ranks.
_JOBS = """(
WITH traced AS (
    SELECT job, attempt,
        count(DISTINCT rank) FILTER (WHERE status NOT IN ('rejected', 'arriving')) AS ranks_seen,
        min(first_step + step_offset) FILTER (WHERE status NOT IN ('rejected', 'arriving')) AS first_step,
        max(last_step + step_offset) FILTER (WHERE status NOT IN ('rejected', 'arriving')) AS last_step,
        max(window_end_ns) FILTER (WHERE status NOT IN ('rejected', 'arriving')) AS window_end_ns,
        concat(count(*), '.', count(*) FILTER (WHERE status = 'arriving'), '.', sum(trace_id)) AS version
    FROM trace
    GROUP BY job, attempt
),
logged AS (
    SELECT process_id, count(*) AS batches
    FROM batch_log
    GROUP BY process_id
),
reported AS (
    SELECT p.job, p.attempt,
        max(p.world_size) AS ranks_expected,
        count(DISTINCT p.rank) FILTER (WHERE p.process_key IS NOT NULL) AS ranks_registered,
        concat(count(*), '.', count(p.ended), '.', count(*) FILTER (WHERE NOT h.alive), '.', sum(l.batches)) AS version
    FROM process AS p
    LEFT JOIN heartbeat AS h ON h.process_id = p.process_id
    LEFT JOIN logged AS l ON l.process_id = p.process_id
    GROUP BY p.job, p.attempt
),
agent AS (
    SELECT job, attempt,
        count(*) FILTER (WHERE state = 'running') AS running,
        count(*) FILTER (WHERE state = 'ending') AS ending,
        count(*) FILTER (WHERE state = 'stopped') AS stopped,
        count(*) FILTER (WHERE state = 'gone') AS gone,
        max(step) AS agent_step,
        max(seen_ns) AS seen_ns,
        min(start_ns) AS start_ns
    FROM agents
    GROUP BY job, attempt
)
SELECT
    r.job, r.attempt, coalesce(t.ranks_seen, 0) AS ranks_seen, r.ranks_registered, r.ranks_expected,
    coalesce(a.running, 0) AS running, coalesce(a.ending, 0) AS ending, coalesce(a.stopped, 0) AS stopped,
    coalesce(a.gone, 0) AS gone, t.first_step, t.last_step, a.agent_step, a.seen_ns, t.window_end_ns,
    coalesce(greatest(a.seen_ns, t.window_end_ns), a.start_ns, 0) AS last_ns,
    concat(r.version, '-', t.version) AS version
FROM reported AS r
LEFT JOIN traced AS t ON t.job = r.job AND t.attempt = r.attempt
LEFT JOIN agent AS a ON a.job = r.job AND a.attempt = r.attempt
) AS listed"""


@dataclass(frozen=True)
class JobRow:
    """A job attempt. Ranks: seen have a usable trace, registered have an agent; running to gone count the agents' states.

    first_step, last_step: of the usable traces; agent_step: the last one that an agent announced. seen_ns: the last sign of
    any rank, by the collector's clock; window_end_ns: the end of the last profiler window, by its host's. version: another
    one whenever a report of it could be another.
    """

    job: str
    attempt: int
    ranks_seen: int
    ranks_registered: int
    ranks_expected: int | None
    running: int
    ending: int
    stopped: int
    gone: int
    first_step: int | None
    last_step: int | None
    agent_step: int | None
    seen_ns: int | None
    window_end_ns: int | None
    last_ns: int
    version: str

    def state(self, now_ns: int) -> str:
        """running, silent (its running ranks gave no sign for 30 s), ending, gone (a rank died), stopped, files (no agent)."""
        if not self.ranks_registered:
            return "files"
        if self.running:
            return "silent" if now_ns - (self.seen_ns or now_ns) >= SILENT_AFTER_NS else "running"
        if self.ending:
            return "ending"
        return "gone" if self.gone else "stopped"

    def goes_on(self, now_ns: int) -> bool:
        """Whether more of it may come: a rank runs, or files of it are on their way."""
        return bool(self.running or self.ending) and now_ns - (self.seen_ns or now_ns) < LOST_AFTER_NS


def jobs_statement(job: str | None = None, attempt: int | None = None) -> Statement:
    """The newest job attempts first, MOST_JOBS and one more; of one job, or one attempt of it."""
    found = select(
        ", ".join(JobRow.__dataclass_fields__),
        _JOBS,
        [equals("job", job), equals("attempt", attempt)],
        "last_ns DESC, job, attempt DESC",
    )
    return Statement(f"{found.sql}\nLIMIT {MOST_JOBS + 1}", found.parameters)


def job_rows(table: list[dict[str, Any]]) -> list[JobRow]:
    """The rows of an answer to jobs_statement."""
    return [JobRow(**row) for row in table]
