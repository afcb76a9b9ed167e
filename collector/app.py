"""The collector: gRPC streams in, one DuckDB file, SQL out. Wires the parts and runs them until it is told to stop.

Ship -> receive.py -> batch_queue.py -> decode.py -> writer.py -> batch_load.py -> the store
Query -> answer.py -> question.py -> a read-only cursor on the same store
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress

import duckdb
import grpc.aio
import structlog

from annotq.collector.answer import Answer
from annotq.collector.batch_queue import BatchQueue, Call
from annotq.collector.beats import FLUSH_SECONDS, Beats
from annotq.collector.config import ServeConfig
from annotq.collector.front import Front, FrontFactory, Inside
from annotq.collector.instance import Instance
from annotq.collector.metrics import Metrics
from annotq.collector.quarantine import Quarantine
from annotq.collector.receive import Receive
from annotq.collector.security import check_host, check_listening
from annotq.collector.service import Health, Service, add_own_port, make_server
from annotq.collector.writer import Writer

DRAIN_SECONDS = 30.0
# Questions that still run once everything is committed.
LAST_SECONDS = 2.0

log = structlog.get_logger()


async def serve(
    config: ServeConfig, ready: Callable[[str, str | None], None], make_front: FrontFactory | None = None
) -> bool:
    """Serve until SIGTERM or SIGINT, then finish what is queued; whether all of it was committed in time.

    ready: called with HOST:PORT of gRPC and of the front, if there is one, once both answer. Raises AnnotqError when it
    cannot start.
    """
    check_host(config.host)
    check_listening(config)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    instance = Instance(config.db, config.memory, config.questions)
    try:
        with tempfile.TemporaryDirectory(prefix="annotq-", ignore_cleanup_errors=True) as folder:
            return await _serve(config, instance, stop, ready, make_front, f"unix:{folder}/own")
    finally:
        instance.close()


async def _serve(
    config: ServeConfig,
    instance: Instance,
    stop: asyncio.Event,
    ready: Callable[[str, str | None], None],
    make_front: FrontFactory | None,
    own_endpoint: str,
) -> bool:
    metrics = Metrics()
    queue = BatchQueue(config.queue_bytes)
    metrics.queue_batches.set_function(lambda: queue.batches)
    metrics.queue_bytes.set_function(lambda: queue.bytes)
    checks = Health()
    writer = Writer(instance, queue, Quarantine(config.db), metrics, checks.set, stop.set)
    beats = Beats(metrics, writer.unsettled)
    receive = Receive(queue, beats, metrics)
    answer = Answer(config, instance, queue, writer, metrics)
    server, port = make_server(config, Service(receive, answer), checks)
    if config.metrics is not None:
        log.info("metrics", address=f"{config.metrics[0]}:{metrics.serve(*config.metrics)}")
    front = None
    if make_front is not None:
        add_own_port(server, own_endpoint)
        where = f"{config.host}:{port}"
        front = make_front(Inside(config, answer, metrics.registry, where, own_endpoint, lambda: writer.problem))
    writer.start()
    await server.start()
    try:
        page = None if front is None else await front.start()
        await checks.set(True)
        flushing = asyncio.create_task(_flush(beats, queue))
        ready(f"{config.host}:{port}", page)
        await stop.wait()
        flushing.cancel()
        return await _drain(server, receive, queue, writer, beats, instance, front)
    finally:
        if front is not None:
            await front.stop()


async def _flush(beats: Beats, queue: BatchQueue) -> None:
    """Hand the beats to the writer, every few seconds."""
    while True:
        await asyncio.sleep(FLUSH_SECONDS)
        call = Call(beats.flush().write)
        queue.call(call)
        try:
            await call.done
        except Exception as error:
            log.exception("beats not written", error=str(error))


async def _drain(
    server: grpc.aio.Server,
    receive: Receive,
    queue: BatchQueue,
    writer: Writer,
    beats: Beats,
    instance: Instance,
    front: Front | None,
) -> bool:
    """Accept nothing more, commit and acknowledge what is here, leave a file without a write-ahead log."""
    log.info("stopping", queued_batches=queue.batches)
    if front is not None:
        front.drain()
    stopping = asyncio.create_task(server.stop(DRAIN_SECONDS))
    receive.drain()
    queue.call(Call(beats.flush().write))
    committed = await writer.stop(DRAIN_SECONDS)
    await asyncio.wait({stopping}, timeout=LAST_SECONDS)
    await server.stop(0)
    if committed:
        with suppress(duckdb.Error):  # a question that was cut off may hold it up; the log is read at the next start
            instance.checkpoint()
    log.info("stopped", committed=committed)
    return committed
