"""The one writer of a collector: a thread that commits batches in groups and then lets their senders know."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import duckdb
import structlog

from annotq.agent.errors import AnnotqError
from annotq.collector.batch_load import REFUSALS, is_logged, load_batch, refuse_batch
from annotq.collector.batch_queue import BatchQueue, Call, Shipment, StaleBatchError
from annotq.collector.commit_group import Group
from annotq.collector.decode import BadBatchError, Decoded, kind_name
from annotq.collector.instance import Instance, is_passing, lacks_memory
from annotq.collector.metrics import Metrics
from annotq.collector.process_state import Processes
from annotq.collector.quarantine import Quarantine
from annotq.collector.unsettled import SettlingError, Unsettled
from annotq.v1.collector_pb2 import Kind

RETRY_SECONDS = 0.5
ROLLBACKS = 5
# Interrupted questions end within milliseconds; if one does not, the process is better started anew.
HUSH_SECONDS = 30.0
# So long questions are kept away after a commit that lacked memory.
STARVING_SECONDS = 5.0

log = structlog.get_logger()
Outcome = tuple["asyncio.Future[Any]", Any]  # the future and its result; an exception is raised in it


class Writer:
    """Owns the writing connection. `problem` says what keeps it from committing just now; empty when nothing does.

    hush(True): stop all questions and let none begin; awaited before the store is opened again, hush(False) after it.
    """

    def __init__(
        self,
        instance: Instance,
        queue: BatchQueue,
        quarantine: Quarantine,
        metrics: Metrics,
        on_health: Callable[[bool], Coroutine[Any, Any, None]],
        on_death: Callable[[], None],
    ) -> None:
        self.hush: Callable[[bool], Coroutine[Any, Any, None]] = _nothing
        self.problem = ""
        self._starving_until = 0.0
        self._doubtful = False  # whether a commit failed since the store was opened
        self.unsettled = Unsettled()
        self.committed_batches = 0
        self.committed_rows = 0
        self.rejected: dict[str, int] = {}
        self.commit_seconds: deque[float] = deque(maxlen=500)
        self._on_health = on_health
        self._on_death = on_death
        self._instance = instance
        self._queue = queue
        self._quarantine = quarantine
        self._metrics = metrics
        self._processes = Processes()
        self._alone = 0  # so many entries get a transaction each, after a group that failed
        self._died = False
        self._stopping = False
        self._giving_up = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="annotq-writer", daemon=True)

    @property
    def starving(self) -> bool:
        """Whether it lacked memory just now, which it shares with the questions, and has not caught up since."""
        return self._queue.batches > 0 and time.monotonic() < self._starving_until

    def start(self) -> None:
        """Begin; what is queued already comes first."""
        self._thread.start()

    async def stop(self, seconds: float) -> bool:
        """Commit what is queued and end; False when it took too long."""
        self._stopping = True
        self._queue.close()
        await asyncio.to_thread(self._thread.join, seconds)
        self._giving_up.set()
        await asyncio.to_thread(self._thread.join, 2 * RETRY_SECONDS)
        self._queue.shut_down()
        done = self._queue.batches == 0 and not self._thread.is_alive() and not self._died
        return done and not self._instance.file_problem()

    def _run(self) -> None:
        try:
            while not self._giving_up.is_set() and self._queue.wait():
                if not self._has_file():
                    continue
                group = Group(self._queue, alone=self._alone > 0)
                try:
                    self._commit(group)
                except Exception as error:
                    if not isinstance(error, duckdb.Error | SettlingError):
                        log.exception("batch failed", error=str(error))
                    self._failed(group, error)
        except BaseException as error:
            # Without its writer the collector is of no use: it ends, and whoever watches over it starts it again.
            log.exception("the writer died", error=str(error))
            self._died = True
            self._loop.call_soon_threadsafe(self._on_death)

    def _has_file(self) -> bool:
        """Whether a commit would last; waits a moment if not, or gives up when the collector is to end."""
        problem = self._instance.file_problem()
        if problem:
            self._set_problem(problem)
            if self._stopping:
                self._giving_up.set()
            self._giving_up.wait(RETRY_SECONDS)
        return not problem

    def _commit(self, group: Group) -> None:
        started = time.monotonic()
        connection = self._instance.writer.connection
        outcomes: list[Outcome] = []
        connection.execute("BEGIN")
        try:
            outcomes += [(call.done, self._call(connection, call)) for call in group.calls()]
            outcomes += [(shipment.done, self._load(connection, group, shipment)) for shipment in group.shipments()]
            self.unsettled.settle(connection, everything=self._queue.is_last)
            connection.execute("COMMIT")
        except BaseException:
            self._processes.rollback()
            self._roll_back(connection)
            raise
        self._processes.commit()
        self.unsettled.committed()
        self._done(group, outcomes, time.monotonic() - started)

    def _roll_back(self, connection: duckdb.DuckDBPyConnection) -> None:
        """End the transaction; without memory even that may fail at first."""
        for _ in range(ROLLBACKS):
            try:
                connection.execute("ROLLBACK")
                return
            except duckdb.Error as error:
                if "no transaction is active" in str(error):  # a commit that failed leaves nothing to roll back
                    return
                problem = str(error)
                self._giving_up.wait(RETRY_SECONDS / ROLLBACKS)
        log.error("cannot roll back", problem=problem)
        self._reopen()

    def _done(self, group: Group, outcomes: Sequence[Outcome], seconds: float) -> None:
        self._alone = max(0, self._alone - 1)
        self.commit_seconds.append(seconds)
        for batch, reason in group.refused:
            self._quarantine.keep(batch, reason, time.time_ns())
            self.rejected[reason] = self.rejected.get(reason, 0) + 1
            self._metrics.rejected(reason)
        self.committed_batches += len(group.taken)
        self.committed_rows += group.rows
        self._metrics.committed(len(group.taken), group.rows, group.bytes, seconds)
        self._queue.finished(group.taken)
        if self.problem:
            self._set_problem("")
        self._loop.call_soon_threadsafe(_resolve, outcomes)

    def _call(self, connection: duckdb.DuckDBPyConnection, call: Call) -> Any:
        try:
            return call.work(connection, self._processes)
        except AnnotqError as error:
            return error

    def _load(self, connection: duckdb.DuckDBPyConnection, group: Group, shipment: Shipment) -> Any:
        """Load one batch; returns its error text, empty when it is in the store."""
        batch = shipment.batch
        state = self._processes.get(batch.process_id)
        assert state is not None, "receive lets only registered processes through"
        if shipment.epoch != state.epoch:
            return StaleBatchError()
        if batch.sequence <= state.committed and is_logged(connection, batch.process_id, batch.sequence):
            return ""
        decoded: Decoded | None = None
        try:
            if batch.sequence <= state.committed:
                raise BadBatchError("order", f"sequence {batch.sequence} after {state.committed}")
            assert shipment.decoded is not None
            decoded = shipment.decoded.result()
            if group.culprit is not None:
                raise group.culprit
            self._processes.put(load_batch(connection, state, batch.sequence, decoded))
        except REFUSALS as error:
            reason, detail = (
                (error.reason, error.detail) if isinstance(error, BadBatchError) else ("conflict", str(error))
            )
            header = decoded.header if decoded else None
            now = time.time_ns()
            self._processes.put(refuse_batch(connection, state, batch, header, reason, detail, now))
            group.refused.append((batch, reason))
            where = f"batch {batch.sequence} ({kind_name(batch.kind)}) of rank {state.rank} of {state.target.job}"
            log.warning("batch refused", batch=where, reason=reason, detail=detail)
            return f"{where}: {detail}"
        group.rows += decoded.rows.num_rows
        if batch.kind == Kind.KIND_TRACE_END:
            self.unsettled.add([state.target])
        return ""

    def _failed(self, group: Group, error: Exception) -> None:
        """Put everything back. A full disk or memory is waited out; else the entries are tried one by one, and a batch
        that fails alone is refused."""
        self._queue.put_back(group.called, group.taken)
        text = str(error).splitlines()[0] if str(error) else repr(error)
        entries = len(group.called) + len(group.taken)
        broken = isinstance(error, duckdb.FatalException | duckdb.InternalException)
        if isinstance(error, SettlingError):
            log.error("steps and clocks are not brought up to date any more", error=text)
        elif lacks_memory(error) or broken:
            self._set_problem(text)
            self._starving_until = time.monotonic() + STARVING_SECONDS
            self._reopen()
        elif is_passing(error):
            self._set_problem(text)
            self._doubtful = True
            self._giving_up.wait(RETRY_SECONDS)
        elif entries == 1 and self._doubtful:
            self._reopen()
        elif entries == 1:
            self._give_up_on(group, error, text)
        self._alone = max(self._alone, entries)

    def _give_up_on(self, group: Group, error: Exception, text: str) -> None:
        """The one entry of a group is at fault."""
        reason = "database" if isinstance(error, duckdb.Error) else "internal"
        again = Group(self._queue, alone=True, culprit=BadBatchError(reason, text))
        if group.called:
            (call,) = again.calls()
            self._loop.call_soon_threadsafe(_resolve, [(call.done, error)])
            return
        try:
            self._commit(again)
        except duckdb.Error as second:
            self._queue.put_back(again.called, again.taken)
            self._set_problem(str(second).splitlines()[0])
            self._giving_up.wait(RETRY_SECONDS)

    def _reopen(self) -> None:
        """Open the store afresh, with no question running; what is committed is read from it again."""
        log.warning("opening the store again")
        asyncio.run_coroutine_threadsafe(self.hush(True), self._loop).result(HUSH_SECONDS)
        while not self._giving_up.is_set():
            try:
                self._instance.reopen()
                self._processes.reload(self._instance.writer.connection)
                self._doubtful = False
                break
            except (AnnotqError, duckdb.Error) as error:
                self._set_problem(str(error))
                self._giving_up.wait(RETRY_SECONDS)
        asyncio.run_coroutine_threadsafe(self.hush(False), self._loop).result(HUSH_SECONDS)

    def _set_problem(self, problem: str) -> None:
        if problem != self.problem:
            log.error("cannot commit", problem=problem) if problem else log.info("commits again")
        changed = bool(problem) != bool(self.problem)
        self.problem = problem
        if changed:
            asyncio.run_coroutine_threadsafe(self._on_health(not problem), self._loop)


async def _nothing(quiet: bool) -> None:
    pass


def _resolve(outcomes: Sequence[Outcome]) -> None:
    for future, result in outcomes:
        if future.done():  # its stream has gone
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
