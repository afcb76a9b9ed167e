"""What an answer rests on: ranks seen of expected, how many kernels have a name, how good the clocks are."""

from __future__ import annotations

from dataclasses import dataclass

from annotq.collector.evidence import Ask

COVERAGE = """SELECT c.*
FROM coverage AS c
JOIN trace AS t ON t.trace_id = c.trace_id
WHERE t.job = ? AND t.attempt = ?
ORDER BY c.rank ASC NULLS LAST, c.trace_id ASC NULLS LAST"""

OUTSIDE = """SELECT count(*) AS events
FROM gpu_event AS e
JOIN _traces AS t ON t.trace_id = e.trace_id
WHERE t.job = ? AND t.attempt = ? AND e.step IS NULL"""

# Not from the view jobs: it counts the steps of all events.
JOB = """SELECT max(p.world_size) AS ranks_expected,
    CASE WHEN count(c.error_ns) = count(*) THEN max(c.error_ns) END AS clock_error_ns
FROM process AS p
LEFT JOIN clock AS c ON c.job = p.job AND c.attempt = p.attempt AND c.host = coalesce(p.host, '')
WHERE p.job = ? AND p.attempt = ?
    AND EXISTS (SELECT 1 FROM trace AS t WHERE t.process_id = p.process_id
                AND t.status NOT IN ('rejected', 'arriving'))"""

CLOCK_NOTES = "SELECT note FROM clock_note WHERE job = ? AND attempt = ?"

RANKS = "SELECT rank, host FROM process WHERE job = ? AND attempt = ? ORDER BY rank ASC NULLS LAST"


@dataclass(frozen=True)
class Receipt:
    """Coverage of one job attempt: counts of GPU events over all its traces, clock error in ns (None: not known).

    outside_steps: launched outside of every step, so that no step of another rank can be held against them.
    """

    job: str
    traces: int
    incomplete: int
    ranks_seen: tuple[int, ...]
    ranks_expected: int | None
    hosts: dict[int, str | None]
    gpu_events: int
    graph_events: int
    matched: int
    unannotated: int
    orphan: int
    outside_steps: int
    encodings: tuple[str, ...]
    clock_error_ns: int | None
    notes: tuple[str, ...]

    @property
    def ranks_missing(self) -> tuple[int, ...]:
        return tuple(sorted(set(range(self.ranks_expected or 0)) - set(self.ranks_seen)))

    def to_json(self) -> dict[str, object]:
        """The counts as they appear under "coverage" in JSON answers."""
        return {
            "gpu_events": self.gpu_events,
            "graph_events": self.graph_events,
            "matched": self.matched,
            "unannotated": self.unannotated,
            "orphan": self.orphan,
            "outside_steps": self.outside_steps,
            "encodings": list(self.encodings),
            "ranks_missing": list(self.ranks_missing),
            "notes": list(self.notes),
        }

    def sentence(self) -> str:
        """One line for the end of a report, in the words of the view coverage."""
        of = f" of {self.ranks_expected}" if self.ranks_expected else ""
        missing = f" (missing: {ranges(self.ranks_missing)})" if self.ranks_missing else ""
        parts = [
            f"{len(self.ranks_seen)}{of} ranks{missing}",
            f"{self.matched:,} of {self.graph_events:,} graph kernels matched",
            f"{self.unannotated:,} unannotated",
            f"{self.orphan:,} orphan",
        ]
        if "inferred" in self.encodings:
            parts.append("node ids inferred")
        unknown = self.clock_error_ns is None
        parts.append("clock error between hosts not known" if unknown else f"clock error {self.clock_error_ns:,} ns")
        if self.outside_steps:
            parts.append(f"{self.outside_steps:,} GPU events outside of steps")
        if self.incomplete:
            parts.append(f"{self.incomplete} of {self.traces} traces not complete (see annotq status)")
        return f"coverage of {self.job}: {', '.join(parts)}"


def receipt(ask: Ask, job: str, attempt: int) -> Receipt:
    """The receipt of one job attempt; all zero when it has no trace."""
    rows = ask(COVERAGE, [job, attempt]).to_pylist()
    usable = [row for row in rows if row["status"] not in ("rejected", "arriving")]
    about = ask(JOB, [job, attempt]).to_pylist()
    hosts = {row["rank"]: row["host"] for row in ask(RANKS, [job, attempt]).to_pylist()}
    return Receipt(
        job=job,
        traces=len(rows),
        incomplete=sum(row["status"] != "complete" for row in rows),
        ranks_seen=tuple(sorted({row["rank"] for row in usable})),
        ranks_expected=about[0]["ranks_expected"] if about else None,
        hosts=hosts,
        gpu_events=sum(row["gpu_events"] for row in rows),
        graph_events=sum(row["graph_events"] for row in rows),
        matched=sum(row["matched"] for row in rows),
        unannotated=sum(row["unannotated"] for row in rows),
        orphan=sum(row["orphan"] for row in rows),
        outside_steps=ask(OUTSIDE, [job, attempt]).to_pylist()[0]["events"],
        encodings=tuple(sorted({row["encoding"] for row in usable})),
        clock_error_ns=about[0]["clock_error_ns"] if about else None,
        notes=(
            *(str(row["note"]) for row in ask(CLOCK_NOTES, [job, attempt]).to_pylist()),
            *(f"rank {row['rank']}: {row['note']}" for row in rows if row["note"]),
        ),
    )


def latest_attempt(ask: Ask, job: str) -> int:
    """The attempt that reports are about unless one is asked for."""
    row = ask("SELECT max(attempt) AS attempt FROM process WHERE job = ?", [job]).to_pylist()[0]
    return int(row["attempt"] or 0)


def ranges(ranks: tuple[int, ...]) -> str:
    """(0, 1, 2, 5) as "0-2, 5"."""
    parts: list[tuple[int, int]] = []
    for rank in ranks:
        if parts and parts[-1][1] == rank - 1:
            parts[-1] = (parts[-1][0], rank)
        else:
            parts.append((rank, rank))
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)
