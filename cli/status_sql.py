"""The SQL behind `annotq status`: rows of (topic, item, value), one shape for every format.

The only report that reads tables: no view shows the store itself, what was refused or what the agents said.
"""

from __future__ import annotations

from annotq.cli.statement import Statement

# A running process gives a sign at every step, its shipper every 2 s, the collector writes it down every 5 s.
SILENT_AFTER_NS = 30_000_000_000

# Of silent and gone ranks, notes, refused batches and problems.
_MOST_ROWS = 20
_RANKS_NAMED = 8

_AGE = """CASE WHEN age_ns < 120000000000 THEN concat(age_ns // 1000000000, ' s')
                WHEN age_ns < 7200000000000 THEN concat(age_ns // 60000000000, ' min')
                ELSE concat(age_ns // 3600000000000, ' h') END"""

_ROWS = f"""
WITH now AS (SELECT CAST(? AS BIGINT) AS now_ns),
     picked AS (SELECT * FROM trace WHERE ? OR job = ?),
     agent AS (
    SELECT a.*, concat(job, ' attempt ', attempt) AS run, n.now_ns - a.seen_ns AS age_ns,
           a.state = 'running' AND n.now_ns - a.seen_ns >= {SILENT_AFTER_NS} AS silent
    FROM agents AS a CROSS JOIN now AS n WHERE ? OR job = ?
),
     expected AS (SELECT job, attempt, max(world_size) AS ranks FROM agent GROUP BY job, attempt),
     absent AS (
    SELECT e.job, e.attempt, e.rank
    FROM (SELECT job, attempt, range AS rank FROM expected, range(expected.ranks)) AS e
    WHERE NOT EXISTS (SELECT 1 FROM agent AS a WHERE a.job = e.job AND a.attempt = e.attempt AND a.rank = e.rank)
),
     missing AS (
    SELECT job, attempt, concat(' (missing: ', array_to_string(list_slice(list(rank ORDER BY rank), 1, {_RANKS_NAMED}), ', '),
                                CASE WHEN count(*) > {_RANKS_NAMED} THEN ', ...' ELSE '' END, ')') AS ranks
    FROM absent GROUP BY job, attempt
),
     registered AS (
    SELECT a.job, a.attempt, concat(
               'attempt ', a.attempt, ': ', count(*), ' of ' || max(e.ranks), ' ranks registered', max(m.ranks),
               ', ' || nullif(count(*) FILTER (WHERE state = 'running'), 0) || ' running',
               ', ' || nullif(count(*) FILTER (WHERE silent), 0) || ' of them silent',
               ', ' || nullif(count(*) FILTER (WHERE state = 'ending'), 0) || ' ending',
               ', ' || nullif(count(*) FILTER (WHERE state = 'stopped'), 0) || ' stopped',
               ', ' || nullif(count(*) FILTER (WHERE state = 'gone'), 0) || ' gone',
               ', ' || nullif(sum(spooled_bytes) FILTER (WHERE state IN ('running', 'ending')), 0) || ' bytes on the nodes',
               ', ' || nullif(sum(dropped_traces), 0) || ' traces dropped for space') AS value
    FROM agent AS a
    JOIN expected AS e ON e.job = a.job AND e.attempt = a.attempt
    LEFT JOIN missing AS m ON m.job = a.job AND m.attempt = a.attempt
    GROUP BY a.job, a.attempt
),
     silent AS (
    SELECT run, rank, concat('rank ', rank, ' silent for ', {_AGE}, ' (host ', host, ', step ' || step, ')') AS value
    FROM agent WHERE silent ORDER BY age_ns DESC, run, rank LIMIT {_MOST_ROWS}
),
     gone AS (
    SELECT run, rank, concat('rank ', rank, ' died without a word (host ', host, ', step ' || step, ')') AS value
    FROM agent WHERE state = 'gone' ORDER BY seen_ns DESC NULLS LAST, run, rank LIMIT {_MOST_ROWS}
),
     scope AS (
    SELECT process_id, rank, concat(job, ' attempt ', attempt) AS run FROM process WHERE ? OR job = ?
),
     said AS (
    SELECT s.run, s.rank, concat('rank ', s.rank, ': ', n.note) AS value
    FROM agent_note AS n JOIN scope AS s ON s.process_id = n.process_id
    ORDER BY n.sequence DESC, s.run, s.rank LIMIT {_MOST_ROWS}
),
     refused AS (
    SELECT s.run, s.rank, concat('rank ', s.rank, ': ', r.kind, ': ', r.reason, ', ', r.detail) AS value
    FROM rejected_batch AS r JOIN scope AS s ON s.process_id = r.process_id
    ORDER BY r.rejected_ns DESC, s.run, s.rank LIMIT {_MOST_ROWS}
),
     problem AS (
    SELECT * FROM picked WHERE note IS NOT NULL ORDER BY window_end_ns DESC NULLS LAST LIMIT {_MOST_ROWS}
),
     clocks AS (
    SELECT job, concat('attempt ', attempt, ': ', count(*), CASE WHEN count(*) = 1 THEN ' host' ELSE ' hosts' END, ', ',
                       string_agg(DISTINCT method, ', ' ORDER BY method), ', error ',
                       CASE WHEN count(error_ns) = count(*) THEN concat(max(error_ns), ' ns') ELSE 'not known' END) AS value
    FROM clock WHERE ? OR job = ? GROUP BY job, attempt
),
     answer AS (
    SELECT 1 AS place, 'store' AS topic, 'file' AS item, ? AS value, 0 AS rank
    UNION ALL SELECT 2, 'store', 'size_bytes', ?, 0
    UNION ALL SELECT 3, 'store', 'schema_version', schema_version::VARCHAR, 0 FROM store_version
    UNION ALL SELECT 4, 'store', 'created_by', 'annotq ' || created_by, 0 FROM store_version
    COLLECTOR
    UNION ALL SELECT 100, 'job', job, concat('attempt ', attempt, ': ', ranks_seen, ' of ' || ranks_expected, ' ranks, ',
                                             traces, ' traces, ', steps, ' steps, ', gpu_events, ' GPU events'), 0
              FROM jobs WHERE ? OR job = ?
    UNION ALL SELECT 101, 'clock', job, value, 0 FROM clocks
    UNION ALL SELECT 102, 'agents', job, value, 0 FROM registered
    UNION ALL SELECT 103, 'silent', run, value, rank FROM silent
    UNION ALL SELECT 104, 'gone', run, value, rank FROM gone
    UNION ALL SELECT 105, 'agent note', run, value, rank FROM said
    UNION ALL SELECT 106, 'refused batch', run, value, rank FROM refused
    UNION ALL SELECT 107, 'traces', status, count(*)::VARCHAR, 0 FROM picked GROUP BY status
    UNION ALL SELECT 108, 'problem', path, note, rank FROM problem
)
SELECT topic, item, value FROM answer ORDER BY place, item, rank, value
"""


def status_statement(
    job: str | None, file: str, size_bytes: int, now_ns: int, collector: list[tuple[str, str]]
) -> Statement:
    """What is in the store, as SQL. job None: all jobs. collector: (item, value) rows about the collector itself."""
    scope: tuple[object, ...] = (job is None, job or "")
    about = "\n    ".join(f"UNION ALL SELECT {5 + i}, 'collector', ?, ?, 0" for i in range(len(collector)))
    facts = [text for row in collector for text in row]
    return Statement(
        _ROWS.strip().replace("COLLECTOR", about),
        (now_ns, *scope, *scope, *scope, *scope, file, str(size_bytes), *facts, *scope),
    )
