"""What the writer remembers of each process between batches: how far it is, which trace it is sending."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import duckdb

from annotq.agent.process_info import ProcessInfo
from annotq.collector.process_rows import RankTakenError, note_rank_taken, register_process
from annotq.collector.rows import Target
from annotq.collector.trace_load import Arrived, arrived_so_far, forget_arriving

_NOTHING = Arrived()


@dataclass(frozen=True)
class Arriving:
    """The trace that a process is sending. trace_id None: known already or refused, what follows of it is ignored."""

    begin_sequence: int
    trace_id: int | None
    status: str | None
    found: Arrived = _NOTHING


@dataclass(frozen=True)
class ProcessState:
    """One process as far as its batches are committed.

    committed: its last sequence, 0 before the first. epoch: how often its unfinished trace was begun again from a shipper
    that cuts differently; batches of an earlier epoch mean something else.
    """

    process_id: int
    target: Target
    rank: int
    committed: int = 0
    epoch: int = 0
    arriving: Arriving | None = None


class Processes:
    """The states of all processes. Changes are tentative until `commit`, as those of the transaction around them."""

    def __init__(self) -> None:
        self._settled: dict[int, ProcessState] = {}
        self._tentative: dict[int, ProcessState] = {}

    def get(self, process_id: int) -> ProcessState | None:
        return self._tentative.get(process_id) or self._settled.get(process_id)

    def put(self, state: ProcessState) -> None:
        self._tentative[state.process_id] = state

    def commit(self) -> None:
        self._settled.update(self._tentative)
        self._tentative.clear()

    def rollback(self) -> None:
        self._tentative.clear()

    def reload(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Take from the store again how far each process is."""
        committed = dict(
            connection.execute("SELECT process_id, max(sequence) FROM batch_log GROUP BY process_id").fetchall()
        )
        arriving = _arriving(connection)
        for process_id, state in self._settled.items():
            self._settled[process_id] = replace(
                state, committed=committed.get(process_id, 0), arriving=arriving.get(process_id)
            )


def register(
    connection: duckdb.DuckDBPyConnection, processes: Processes, info: ProcessInfo, layout: str
) -> ProcessState:
    """Announce a process and return where it stands. Raises RankTakenError when another process holds its rank.

    The store keeps that it was refused. A shipper with another layout numbers the pieces of an unfinished trace differently:
    that trace begins again.
    """
    try:
        process_id = register_process(connection, info)
    except RankTakenError as error:
        note_rank_taken(connection, info, error.message, time.time_ns())
        raise
    state = processes.get(process_id) or _stored(connection, process_id, info)
    ((before,),) = connection.execute("SELECT layout FROM process WHERE process_id = ?", [process_id]).fetchall()
    if before != layout:
        connection.execute("UPDATE process SET layout = ? WHERE process_id = ?", [layout, process_id])
        if before is not None and state.arriving is not None:
            state = _begun_again(connection, state, state.arriving.begin_sequence)
    processes.put(state)
    return state


def _stored(connection: duckdb.DuckDBPyConnection, process_id: int, info: ProcessInfo) -> ProcessState:
    """The state as an earlier run of the collector left it."""
    arriving = _arriving(connection, process_id).get(process_id)
    target = Target(info.job, info.attempt)
    return ProcessState(process_id, target, info.rank, _committed(connection, process_id), arriving=arriving)


def _arriving(connection: duckdb.DuckDBPyConnection, process_id: int | None = None) -> dict[int, Arriving]:
    """The unfinished traces, of one process or of all, by process."""
    begun = connection.execute(
        "SELECT process_id, begin_sequence, trace_id, status FROM arriving WHERE process_id = coalesce(?, process_id)",
        [process_id],
    ).fetchall()
    return {
        process_id: Arriving(
            begin_sequence, trace_id, status, _NOTHING if trace_id is None else arrived_so_far(connection, trace_id)
        )
        for process_id, begin_sequence, trace_id, status in begun
    }


def _begun_again(connection: duckdb.DuckDBPyConnection, state: ProcessState, sequence: int) -> ProcessState:
    forget_arriving(connection, state.process_id)
    connection.execute("DELETE FROM batch_log WHERE process_id = ? AND sequence >= ?", [state.process_id, sequence])
    committed = _committed(connection, state.process_id)
    return replace(state, committed=committed, epoch=state.epoch + 1, arriving=None)


def _committed(connection: duckdb.DuckDBPyConnection, process_id: int) -> int:
    sql = "SELECT coalesce(max(sequence), 0) FROM batch_log WHERE process_id = ?"
    ((sequence,),) = connection.execute(sql, [process_id]).fetchall()
    return int(sequence)
