"""The collector: gRPC streams in, one DuckDB file, SQL out. Wires the parts and runs them until it is told to stop.

Ship -> receive.py -> batch_queue.py -> decode.py -> writer.py -> batch_load.py -> the store
Query -> answer.py -> question.py -> a read-only cursor on the same store
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

import duckdb
import grpc.aio
import structlog

from annotq.collector.answer import Answer
from annotq.collector.batch_queue import BatchQueue, Call
from annotq.collector.beats import FLUSH_SECONDS, Beats
from annotq.collector.config import ServeConfig
from annotq.collector.instance import Instance
from annotq.collector.metrics import Metrics
from annotq.collector.quarantine import Quarantine
from annotq.collector.receive import Receive
from annotq.collector.security import check_host, check_listening
from annotq.collector.service import Health, Service, make_server
from annotq.collector.writer import Writer

DRAIN_SECONDS = 30.0
# Questions that still run once everything is committed.
LAST_SECONDS = 2.0

log = structlog.get_logger()


async def serve(config: ServeConfig, ready: Callable[[str], None]) -> bool:
    """Serve until SIGTERM or SIGINT, then finish what is queued; whether all of it was committed in time.

    ready: called with HOST:PORT once calls are answered. Raises AnnotqError when it cannot start.
    """
    check_host(config.host)
    check_listening(config)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    instance = Instance(config.db, config.memory, config.questions)
    try:
        return await _serve(config, instance, stop, ready)
    finally:
        instance.close()


async def _serve(config: ServeConfig, instance: Instance, stop: asyncio.Event, ready: Callable[[str], None]) -> bool:
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
    writer.start()
    await server.start()
    await checks.set(True)
    flushing = asyncio.create_task(_flush(beats, queue))
    ready(f"{config.host}:{port}")
    await stop.wait()
    flushing.cancel()
    return await _drain(server, receive, queue, writer, beats, instance)


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
    server: grpc.aio.Server, receive: Receive, queue: BatchQueue, writer: Writer, beats: Beats, instance: Instance
) -> bool:
    """Accept nothing more, commit and acknowledge what is here, leave a file without a write-ahead log."""
    log.info("stopping", queued_batches=queue.batches)
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
