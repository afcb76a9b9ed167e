"""A process that reads traces for another one: a request per line on stdin, answers on stdout.

Answers: any number of {"progress": bytes} lines, then {"info": {...}} followed by four Arrow streams (GPU events, host
spans, annotations, observed nodes), or {"error": [message, hint, exit_code]}. Arrow streams carry their own end.
The process ends when stdin does, and does not outlive a reader that stopped listening: writing then fails.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from io import BufferedIOBase
from pathlib import Path

import pyarrow as pa

from annotq.agent.batches import ANNOTATION, GPU_EVENT, GRAPH_NODE, HOST_SPAN
from annotq.agent.errors import AnnotqError
from annotq.agent.kineto import Trace, read_trace

PROGRESS_SECONDS = 0.2

# Small enough that the other side loads the first rows while the next ones are still being made.
_ROWS_PER_MESSAGE = 25_000


def main() -> None:
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not sys.stdout.buffer: under PYTHONUNBUFFERED that is not buffered. And nobody else may print into the answer.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    sys.stdout = sys.stderr
    for line in sys.stdin.buffer:
        try:
            _answer(json.loads(line), out)
        except BrokenPipeError:
            return


def _answer(request: dict[str, object], out: BufferedIOBase) -> None:
    rank = request["rank"]
    assert rank is None or isinstance(rank, int)
    try:
        trace = read_trace(Path(str(request["path"])), rank=rank, progress=_Progress(out))
    except AnnotqError as error:
        _write_line(out, {"error": [error.message, error.hint, error.exit_code]})
        return
    with trace:
        _write_line(out, {"info": asdict(trace.info)})
        _write_streams(out, trace)


def _write_streams(out: BufferedIOBase, trace: Trace) -> None:
    streams: list[tuple[pa.Schema, Iterable[pa.RecordBatch]]] = [
        (GPU_EVENT, trace.gpu_events()),
        (HOST_SPAN, trace.host_spans()),
        (ANNOTATION, [trace.annotations()]),
        (GRAPH_NODE, [trace.observed_nodes()]),
    ]
    for schema, batches in streams:
        with pa.ipc.new_stream(out, schema) as writer:
            for batch in batches:
                for first in range(0, batch.num_rows, _ROWS_PER_MESSAGE):
                    writer.write_batch(batch.slice(first, _ROWS_PER_MESSAGE))
    out.flush()


class _Progress:
    """Reports bytes read, now and then."""

    def __init__(self, out: BufferedIOBase) -> None:
        self._out = out
        self._next = 0.0

    def __call__(self, read_bytes: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PROGRESS_SECONDS
            _write_line(self._out, {"progress": read_bytes})


def _write_line(out: BufferedIOBase, value: dict[str, object]) -> None:
    out.write(json.dumps(value).encode() + b"\n")
    out.flush()
