"""The ranks of a job as the picture shows them, and what of each there is to draw."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

# Above the largest process id of Linux: stands for one that is not known, or that several hosts use.
FIRST_FREE_PID = 2**22


@dataclass(frozen=True)
class StreamWork:
    """Work of one stream in one trace. start_ns and end_ns: its first and last moment."""

    trace_id: int
    device: int | None
    stream: int | None
    kernels: int
    start_ns: int
    end_ns: int
    unknown: int
    outside_steps: int
    in_no_region: int


@dataclass(frozen=True)
class Trace:
    """One usable trace of a rank: where the file was, and how its clock relates to the common one (see the view _traces)."""

    trace_id: int
    process_id: int
    path: str
    sha256: str
    base_ns: int
    window_start_ns: int | None
    window_end_ns: int | None
    offset_ns: int
    drift_ppb: int
    reference_ns: int
    clock_method: str | None
    clock_error_ns: int | None

    def aligned(self, moment_ns: int) -> int:
        """A moment of the trace's own clock on the common one, in ns."""
        return moment_ns + self.offset_ns + round((moment_ns - self.reference_ns) * self.drift_ppb / 1e9)


@dataclass(frozen=True)
class Rank:
    """A rank with its traces in the order of time and its streams in the order of device and number."""

    rank: int
    host: str | None
    title: str
    description: str
    pid: int
    traces: tuple[Trace, ...]
    work: tuple[StreamWork, ...]

    @property
    def streams(self) -> list[tuple[int | None, int | None]]:
        """(device, stream) of everything drawn."""
        seen = {(work.device, work.stream) for work in self.work}
        return sorted(seen, key=lambda stream: [(part is None, part or 0) for part in stream])


def ranks_of(traces: list[dict[str, Any]], overview: list[dict[str, Any]]) -> list[Rank]:
    """The ranks that have traces, in order. traces and overview: the rows of the questions of those names."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in traces:
        rows.setdefault(row["rank"], []).append(row)
    work: dict[int, list[StreamWork]] = {}
    for row in overview:
        rank = row.pop("rank")
        work.setdefault(rank, []).append(StreamWork(**row))
    used = Counter(of_rank[0]["pid"] for of_rank in rows.values())
    return [
        _rank(rank, rows[rank], tuple(work.get(rank, ())), unique_pid=used[rows[rank][0]["pid"]] == 1)
        for rank in sorted(rows)
    ]


def _rank(rank: int, rows: list[dict[str, Any]], work: tuple[StreamWork, ...], unique_pid: bool) -> Rank:
    host, gpu, pid = rows[0]["host"], rows[0]["gpu"], rows[0]["pid"]
    where = ", ".join(part for part in (host, gpu) if part)
    known = unique_pid and pid is not None and 0 < pid < FIRST_FREE_PID
    parts = [f"process {pid}" if pid is not None else "process not known", f"on {host}" if host else "host not known"]
    return Rank(
        rank=rank,
        host=host,
        title=f"rank {rank} ({where})" if where else f"rank {rank}",
        description=" ".join(parts),
        pid=pid if known else FIRST_FREE_PID + rank,
        traces=tuple(_trace(row) for row in rows),
        work=work,
    )


def _trace(row: dict[str, Any]) -> Trace:
    return Trace(**{name: row[name] for name in Trace.__dataclass_fields__})
