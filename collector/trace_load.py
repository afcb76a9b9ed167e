"""How a trace gets into the store: begin, any number of pieces, end.

`annotq ingest` does all of it in one transaction, the collector over several. Until the end the trace's status is
'arriving' and no view shows its events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from annotq.agent.errors import AnnotqError
from annotq.agent.kineto import TraceInfo
from annotq.collector.align import update_clocks
from annotq.collector.infer import infer_node_ids
from annotq.collector.nested_graphs import check_nested
from annotq.collector.process_rows import differ, ensure_process, merge_process
from annotq.collector.rows import Target, forget_trace, insert_trace, remember, renumber_steps, stored_path
from annotq.collector.store import id_of


@dataclass(frozen=True)
class Arrived:
    """What came in of a trace so far: GPU events and the range of their steps (None: no event in a step)."""

    gpu_events: int = 0
    first_step: int | None = None
    last_step: int | None = None

    def __add__(self, other: Arrived) -> Arrived:
        firsts = [step for step in (self.first_step, other.first_step) if step is not None]
        lasts = [step for step in (self.last_step, other.last_step) if step is not None]
        return Arrived(self.gpu_events + other.gpu_events, min(firsts, default=None), max(lasts, default=None))


def arrived(batch: pa.RecordBatch) -> Arrived:
    """What one batch of schema GPU_EVENT adds."""
    return Arrived(batch.num_rows, *ends(batch.column("step")))


def ends(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> tuple[int | None, int | None]:
    """The smallest and the largest value of a column; None without any."""
    found: Any = pc.min_max(column).as_py()
    return found["min"], found["max"]


def arrived_so_far(connection: duckdb.DuckDBPyConnection, trace_id: int) -> Arrived:
    """The same from the store, for a trace whose earlier batches another process took in."""
    sql = "SELECT count(*), min(step), max(step) FROM gpu_event WHERE trace_id = ?"
    ((count, first, last),) = connection.execute(sql, [trace_id]).fetchall()
    return Arrived(count, first, last)


def is_known(connection: duckdb.DuckDBPyConnection, target: Target, sha256: str, rank: int | None) -> bool:
    """Whether this job attempt holds a file of this content, for that rank or (rank None) for any."""
    query = """SELECT count(*) FROM source_file f JOIN process p USING (process_id)
               WHERE f.sha256 = ? AND p.job = ? AND p.attempt = ? AND p.rank = coalesce(?, p.rank)"""
    ((count,),) = connection.execute(query, [sha256, target.job, target.attempt, rank]).fetchall()
    return bool(count)


def begin_trace(connection: duckdb.DuckDBPyConnection, target: Target, info: TraceInfo) -> int:
    """Make the trace's row and return its id. Raises AnnotqError when another file already claims the rank for that time.

    Changes nothing when it raises. A trace of this process whose end never came is forgotten.
    """
    process_id = target.process_id(info.rank)
    replaced = _check_claim(connection, info, process_id)
    forget_arriving(connection, process_id)
    if replaced is not None:
        forget_trace(connection, replaced)
    ensure_process(connection, target, info.rank)
    merge_process(connection, info, process_id)
    trace_id = id_of(process_id, info.sha256)
    insert_trace(connection, info, trace_id, process_id, target)
    return trace_id


def end_trace(connection: duckdb.DuckDBPyConnection, trace_id: int, status: str, found: Arrived) -> None:
    """Make the trace count, with `status` (complete or partial). What its job needs afterwards: `settle`."""
    ((process_id, sha256, path, promised),) = connection.execute(
        "SELECT process_id, sha256, path, gpu_events FROM trace WHERE trace_id = ?", [trace_id]
    ).fetchall()
    note = None
    if found.gpu_events < promised:
        status = "partial"
        note = f"Only {found.gpu_events:,} of {promised:,} GPU events arrived."
    if not found.gpu_events:
        # A window without GPU work, as of a job on CPUs, has the steps of the host.
        sql = "SELECT min(step), max(step) FROM host_span WHERE trace_id = ? AND kind = 'step'"
        found = Arrived(0, *connection.execute(sql, [trace_id]).fetchall()[0])
    connection.execute(
        """UPDATE trace SET status = ?, first_step = ?, last_step = ?, gpu_events = ?,
               note = nullif(concat_ws(' ', note, ?), '') WHERE trace_id = ?""",
        [status, found.first_step, found.last_step, found.gpu_events, note, trace_id],
    )
    connection.execute("DELETE FROM arriving WHERE trace_id = ?", [trace_id])
    remember(connection, process_id, sha256, path, "trace")
    infer_node_ids(connection, process_id)
    check_nested(connection, process_id)


def settle(connection: duckdb.DuckDBPyConnection, target: Target) -> None:
    """Bring the steps and clocks of a job attempt up to date after traces of it ended."""
    renumber_steps(connection, target)
    update_clocks(connection, target.job, target.attempt)


def forget_arriving(connection: duckdb.DuckDBPyConnection, process_id: int) -> None:
    """Take out whatever trace of this process began and did not end."""
    begun = "SELECT trace_id FROM trace WHERE process_id = ? AND status = 'arriving'"
    for (trace_id,) in connection.execute(begun, [process_id]).fetchall():
        forget_trace(connection, trace_id)
    connection.execute("DELETE FROM arriving WHERE process_id = ?", [process_id])


def reject_trace(
    connection: duckdb.DuckDBPyConnection, target: Target, rank: int, path: str, sha256: str, reason: str
) -> None:
    """Leave a row for a trace that could not be used, so that coverage shows it. A later good read replaces it."""
    process_id = ensure_process(connection, target, rank)
    trace_id = id_of(process_id, sha256)
    path = stored_path(path)
    connection.execute(
        "DELETE FROM trace WHERE process_id = ? AND path = ? AND status = 'rejected'", [process_id, path]
    )
    if connection.execute("SELECT 1 FROM trace WHERE trace_id = ?", [trace_id]).fetchall():
        return
    connection.execute(
        """INSERT INTO trace VALUES (?, ?, ?, ?, ?, ?, ?, 0, NULL, NULL, 'none', FALSE, 'none', 0,
           'rejected', 0, 0, 0, 0, ?, NULL, NULL)""",
        [trace_id, process_id, target.job, target.attempt, rank, path, sha256, stored_path(reason)],
    )


def _check_claim(connection: duckdb.DuckDBPyConnection, info: TraceInfo, process_id: int) -> int | None:
    """The id of a trace that this one replaces (the same path, read only in part before), or None.

    Raises AnnotqError when another process, or another file for the same time, is there under this rank.
    """
    claimed = connection.execute(
        "SELECT host, pid, process_key FROM process WHERE process_id = ?", [process_id]
    ).fetchall()
    earlier = connection.execute(
        """SELECT trace_id, path, status, window_start_ns < ? AND window_end_ns > ? FROM trace
           WHERE process_id = ? AND status NOT IN ('rejected', 'arriving') ORDER BY 4 DESC, path""",
        [info.window_end_ns, info.window_start_ns, process_id],
    ).fetchall()
    if not earlier or not claimed:
        return None
    ((host, pid, key),) = claimed
    for trace_id, path, status, _ in earlier:
        if path == stored_path(info.path) and status == "partial":
            return int(trace_id)
    _, path, _, overlaps = earlier[0]
    twice = f"{info.path}: rank {info.rank} is claimed twice:"
    hint = "For another run of the job use --attempt N or --job NAME; for a wrong rank --rank N."
    # An agent's process is told by its key; the trace may name the host differently.
    if key is None and (differ(host, info.host) or differ(pid, info.pid)):
        mine, theirs = f"process {info.pid} on {info.host}", f"process {pid} on {host}"
        raise AnnotqError(f"{twice} this is {mine}, {path} is {theirs}.", hint)
    if overlaps:
        raise AnnotqError(f"{twice} its window overlaps that of {path}.", hint)
    return None
