"""The incoming half of the service: processes announce themselves, ship batches, tell the time and how they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import msgspec
import structlog

from annotq.agent.process_info import ProcessInfo
from annotq.agent.wire import SCHEMA_VERSION
from annotq.collector.batch_queue import BatchQueue, Call, Shipment, StaleBatchError
from annotq.collector.beats import Beats
from annotq.collector.decode import MOST_RANKS
from annotq.collector.metrics import Metrics
from annotq.collector.process_rows import RANK_TAKEN, RankTakenError
from annotq.collector.process_state import ProcessState, register
from annotq.v1 import collector_pb2 as pb

Context = grpc.aio.ServicerContext[Any, Any]
log = structlog.get_logger()


class StreamEnd(Exception):  # noqa: N818 - not an error of ours: the status that a stream ends with
    """Why a stream ends before its sender wanted it to."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


_DRAINING = StreamEnd(grpc.StatusCode.UNAVAILABLE, "the collector is stopping")


class Receive:
    """Register, Ship, SyncClock and Beat of annotq.v1.Collector."""

    def __init__(self, queue: BatchQueue, beats: Beats, metrics: Metrics) -> None:
        self._queue = queue
        self._metrics = metrics
        self._refused: set[str] = set()  # keys of the processes that were counted as refused
        self._beats = beats
        self._registered: dict[int, ProcessState] = {}
        self._holders: dict[int, _Stream] = {}  # the stream that delivers a process
        self._streams: set[_Stream] = set()
        self._draining = False

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterReply:  # noqa: N802
        """Announce a process; the reply says where to resume."""
        if self._draining:
            await context.abort(_DRAINING.code, _DRAINING.text)
        if request.schema_version != SCHEMA_VERSION:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"The shipper writes batches of version {request.schema_version}, this collector reads {SCHEMA_VERSION}: "
                "install the same annotq on both sides.",
            )
        try:
            info = _process_info(request.process)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"The process is not described: {error}.")
        call = Call(lambda connection, processes: register(connection, processes, info, request.layout))
        self._queue.call(call)
        try:
            state: ProcessState = await call.done
        except RankTakenError as error:
            self._count_refused(info)
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, f"{error.message}\n{error.hint}")
        self._registered[state.process_id] = state
        log.info("process registered", job=info.job, attempt=info.attempt, rank=info.rank, host=info.host, pid=info.pid)
        return pb.RegisterReply(process_id=state.process_id, committed_sequence=state.committed)

    async def Ship(self, request_iterator: AsyncIterator[pb.Batch], context: Context) -> AsyncIterator[pb.Ack]:  # noqa: N802
        """Take batches in and acknowledge each once it is committed, in the order of the batches."""
        stream = _Stream()
        self._streams.add(stream)
        stream.reading = asyncio.create_task(self._read(request_iterator, stream))
        try:
            async for ack in stream.acks():
                yield ack
        except StreamEnd as end:
            await context.abort(end.code, end.text)
        finally:
            stream.reading.cancel()
            self._streams.discard(stream)
            for process_id in [process_id for process_id, holder in self._holders.items() if holder is stream]:
                del self._holders[process_id]

    async def SyncClock(self, request: pb.Ping, context: Context) -> pb.Pong:  # noqa: N802
        """The collector's time, twice: on receipt and just before the answer."""
        received = time.time_ns()
        return pb.Pong(received_ns=received, answered_ns=time.time_ns())

    async def Beat(self, request: pb.BeatRequest, context: Context) -> pb.BeatReply:  # noqa: N802
        """How the processes of one node are."""
        self._beats.take(request, self._registered, time.time_ns())
        return pb.BeatReply()

    def drain(self) -> None:
        """Read no more batches. The streams end once what they sent is acknowledged."""
        self._draining = True
        for stream in self._streams:
            stream.reading.cancel()
            stream.pending.put_nowait(_DRAINING)

    def _count_refused(self, info: ProcessInfo) -> None:
        """A shipper may ask again and again; a process counts once."""
        if info.key in self._refused:
            return
        if len(self._refused) >= MOST_RANKS:
            self._refused.clear()
        self._refused.add(info.key)
        self._metrics.rejected(RANK_TAKEN)
        log.warning("process refused", job=info.job, attempt=info.attempt, rank=info.rank, host=info.host, pid=info.pid)

    async def _read(self, requests: AsyncIterator[pb.Batch], stream: _Stream) -> None:
        try:
            while not self._draining:
                await self._queue.room()
                batch = await anext(requests, None)
                if batch is None:
                    stream.pending.put_nowait(None)
                    return
                self._take(batch, stream)
        except StreamEnd as end:
            stream.pending.put_nowait(end)
        except Exception as error:  # what gRPC raises when the other side is gone
            log.info("stream broke off", error=repr(error))
            stream.pending.put_nowait(None)

    def _take(self, batch: pb.Batch, stream: _Stream) -> None:
        state = self._registered.get(batch.process_id)
        if state is None:
            text = f"Process {batch.process_id} is not registered here; Register comes first."
            raise StreamEnd(grpc.StatusCode.FAILED_PRECONDITION, text)
        if self._queue.overloaded:
            raise StreamEnd(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "The collector has too many batches waiting; try again later."
            )
        holder = self._holders.get(batch.process_id)
        if holder is not stream:
            if holder is not None:
                holder.cut_off(
                    StreamEnd(grpc.StatusCode.ABORTED, f"Another stream delivers process {batch.process_id} now.")
                )
            self._holders[batch.process_id] = stream
        shipment = Shipment(batch, state.epoch, asyncio.get_running_loop().create_future())
        self._queue.put(shipment)
        stream.pending.put_nowait(_Awaited(batch.process_id, batch.sequence, shipment.done))


@dataclass(frozen=True)
class _Awaited:
    """A batch whose commit is awaited; done gives the error text, empty when it is committed."""

    process_id: int
    sequence: int
    done: asyncio.Future[str]


class _Stream:
    """One call of Ship: what it still has to acknowledge, in order, and how it ends."""

    def __init__(self) -> None:
        self.pending: asyncio.Queue[_Awaited | StreamEnd | None] = asyncio.Queue()
        self.reading: asyncio.Task[None]
        self._cut: asyncio.Future[StreamEnd] = asyncio.get_running_loop().create_future()

    def cut_off(self, end: StreamEnd) -> None:
        """End the stream at once, whatever is pending."""
        self.reading.cancel()
        if not self._cut.done():
            self._cut.set_result(end)

    async def acks(self) -> AsyncIterator[pb.Ack]:
        """The acknowledgements; ends when the sender is done and all is acknowledged. Raises StreamEnd."""
        while True:
            item = await self._unless_cut(self.pending.get())
            if item is None:
                return
            if isinstance(item, StreamEnd):
                raise item
            try:
                error = await self._unless_cut(item.done)
            except StaleBatchError:
                raise StreamEnd(
                    grpc.StatusCode.ABORTED, "The process was registered again with another layout."
                ) from None
            yield pb.Ack(process_id=item.process_id, sequence=item.sequence, error=error)

    async def _unless_cut(self, awaited: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(awaited)
        await asyncio.wait({task, self._cut}, return_when=asyncio.FIRST_COMPLETED)
        if self._cut.done():
            task.cancel()
            raise self._cut.result()
        return task.result()


def _process_info(process: pb.Process) -> ProcessInfo:
    """Raises ValueError for fields that make no sense."""
    if not process.job or process.rank < 0 or process.attempt < 0:
        raise ValueError(f"job {process.job!r}, attempt {process.attempt}, rank {process.rank}")
    if process.HasField("world_size") and not process.rank < process.world_size <= MOST_RANKS:
        raise ValueError(f"rank {process.rank} of {process.world_size}")
    try:
        info = ProcessInfo(
            job=process.job,
            attempt=process.attempt,
            rank=process.rank,
            host=process.host,
            pid=process.pid,
            start_ns=process.start_ns,
            world_size=process.world_size if process.HasField("world_size") else None,
            local_rank=process.local_rank if process.HasField("local_rank") else None,
            gpu=process.gpu if process.HasField("gpu") else None,
            versions=msgspec.json.decode(process.versions_json or "{}", type=dict[str, str]),
            coordinates=msgspec.json.decode(process.coordinates_json or "{}", type=dict[str, int]),
            annotation_ids=process.annotation_ids or "none",
        )
    except msgspec.MsgspecError as error:
        raise ValueError(f"versions or coordinates: {error}") from None
    if process.key != info.key:
        raise ValueError(f"key {process.key!r} is not that of the other fields, {info.key}")
    return info
