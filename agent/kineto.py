"""Reads a Kineto trace (JSON, plain or gzip) into Arrow batches, in one pass and bounded memory.

The file is read and inflated in a thread (file_bytes.py), cut into blocks of whole events (json_blocks.py), decoded and
turned into columns (trace_events.py, event_store.py); GPU events wait in a temporary file until the launches are known
that give them their step and region (attribution.py).

A duration that runs a second past the start of the next event on the same stream is flagged as `overrun`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from annotq.agent.batches import GPU_EVENT, GRAPH_NODE, HOST_SPAN
from annotq.agent.errors import AnnotqError
from annotq.agent.problems import Problems
from annotq.agent.reader.attribution import Attribution, attribute
from annotq.agent.reader.collectives import NONE, SEQUENCE, collective_arrays
from annotq.agent.reader.event_store import BATCH_ROWS, EventStore
from annotq.agent.reader.exact_ns import Int64s
from annotq.agent.reader.file_bytes import FileBytes, file_sha256
from annotq.agent.reader.json_blocks import EventBlocks, NotEventsError
from annotq.agent.reader.launches import take
from annotq.agent.reader.spill import Columns
from annotq.agent.reader.trace_events import GPU_KINDS, NULL
from annotq.agent.reader.trace_header import parse_header
from annotq.agent.reader.trace_info import TraceInfo, trace_info

__all__ = ["Trace", "TraceInfo", "file_sha256", "read_trace"]

_KINDS = pa.array(GPU_KINDS, pa.string())
_PHASES = pa.array(["forward", "backward"], pa.string())
_HOST_KINDS = pa.array(["graph_launch", "launch", "annotation", "step"], pa.string())


class Trace:
    """A trace that has been read. Owns a temporary file: use as a context manager, or call `close`."""

    def __init__(self, info: TraceInfo, store: EventStore, attribution: Attribution) -> None:
        self.info = info
        self._store = store
        self._found = attribution
        self._names = pa.array(list(store.names), pa.string())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete the temporary file; the batches cannot be read any more."""
        self._store.spill.close()

    def gpu_events(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of schema GPU_EVENT, at most 50,000 rows each, each sorted by start_ns (the whole is not)."""
        collectives = collective_arrays(list(self._store.collectives) or [NONE])
        region_names = pa.array(self._found.region_names, pa.string())
        paths = list(dict.fromkeys(self._found.region_paths))
        path_code = {path: i for i, path in enumerate(paths)}
        path_codes = np.array([path_code[path] for path in self._found.region_paths], np.int64)
        is_nccl = np.array([name.lower().startswith("nccl") for name in self._store.names], bool)
        first = 0
        for columns in self._store.spill:
            rows = slice(first, first + len(columns["start_ns"]))
            first = rows.stop
            in_graph = self._found.in_graph[rows]
            region = np.where(in_graph, NULL, self._found.regions(columns["correlation"]))
            backward = self._found.backward(columns["correlation"]) == 1
            # A collective that autograd's thread launches is of all the gradients in it, not of the last one's region.
            region[backward & (is_nccl[columns["name"]] | (columns["collective"] >= 0))] = NULL
            path = np.where(region != NULL, path_codes[np.maximum(region, 0)], NULL) if len(path_codes) else region
            arrays = [
                pa.array(columns["start_ns"] + self.info.base_ns),
                pa.array(columns["duration_ns"]),
                _coded(columns["kind"], _KINDS),
                _coded(columns["name"], self._names),
                _nullable(columns["device"]),
                _nullable(columns["stream"]),
                _nullable(columns["correlation"]),
                pa.array(in_graph),
                _nullable(columns["graph"]),
                _nullable(columns["node"]),
                _nullable(columns["bytes"]),
                _nullable(self._found.steps(columns["correlation"])),
                _coded(region, region_names),
                _coded(path, pa.array(paths, pa.string())),
                _nullable(take(self._found.region_instances, np.where(region == NULL, -1, region))),
                _coded(np.where(region == NULL, NULL, backward.astype(np.int64)), _PHASES),
                pa.array(self._found.overrun[rows]),
                *_collectives(columns, collectives),
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=GPU_EVENT)

    def host_spans(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of schema HOST_SPAN, at most 50,000 rows each, the whole sorted by start_ns."""
        found = self._found
        kinds = np.concatenate([np.where(found.launch_is_graph, 0, 1), np.where(found.annotation_is_step, 3, 2)])
        steps = np.concatenate([found.launch_step, found.annotation_step])
        columns = {
            name: np.concatenate([getattr(found.launches, name), getattr(found.annotations, name)])
            for name in ("start_ns", "duration_ns", "name", "thread")
        }
        # Annotations have no correlation of their own.
        correlation = np.concatenate([found.launches.correlation, np.full(len(found.annotation_step), NULL)])
        order = np.argsort(columns["start_ns"], kind="stable")
        for first in range(0, len(order), BATCH_ROWS):
            rows = order[first : first + BATCH_ROWS]
            arrays = [
                pa.array(columns["start_ns"][rows] + self.info.base_ns),
                pa.array(columns["duration_ns"][rows]),
                _coded(kinds[rows], _HOST_KINDS),
                _coded(columns["name"][rows], self._names),
                _nullable(columns["thread"][rows]),
                _nullable(correlation[rows]),
                _nullable(steps[rows]),
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=HOST_SPAN)

    def observed_nodes(self) -> pa.RecordBatch:
        """Return the distinct graph nodes seen in replays, schema GRAPH_NODE, by graph and node index."""
        rows = self._store.nodes.rows()
        graph, node, kind, name = (
            (np.array(column, np.int64) for column in zip(*rows, strict=True)) if rows else [_NOTHING] * 4
        )
        # Only kernels have names in a graph's own node list; a memcpy's name in a trace is its direction.
        names = _coded(np.where(kind == 0, name, NULL), self._names)
        arrays = [pa.array(graph, pa.int64()), pa.array(node, pa.int64()), _coded(kind, _KINDS), names]
        return pa.RecordBatch.from_arrays(arrays, schema=GRAPH_NODE)

    def annotations(self) -> pa.RecordBatch:
        """Return the annotations that the trace carries itself, schema ANNOTATION; no rows when it carries none."""
        return self._store.inline.batch()


_NOTHING = np.empty(0, np.int64)


def read_trace(path: Path, *, rank: int | None = None, progress: Callable[[int], None] | None = None) -> Trace:
    """Read a trace; the rank is the argument's, else distributedInfo's, else the file name's.

    progress is called with the number of bytes of the file (as on disk) that have been read, a few times per second.
    Raises AnnotqError when nothing of the file can be used; whatever else is wrong is in `info.problems`.
    """
    problems = Problems()
    source = FileBytes(path)
    store = EventStore(problems)
    try:
        blocks = EventBlocks(_reported(source, progress))
        try:
            store.take_in(blocks)
        except NotEventsError as error:
            damage = f" ({source.problem})" if source.problem else ""
            raise AnnotqError(f"{path} is not a trace: it holds {error}{damage}.", _EXPORT_HINT) from None
        header = parse_header(blocks.around)
        cut = not blocks.ended
        if cut and not store.events_read:
            raise AnnotqError(f"{path} ends before its first whole event.", _EXPORT_HINT)
        attribution = attribute(store)
        info = trace_info(path, rank, source, header, store, attribution, problems, cut)
        store.forget_resident()
        return Trace(info, store, attribution)
    except BaseException:
        store.spill.close()
        raise
    finally:
        source.close()


_EXPORT_HINT = "Export it again with torch.profiler's export_chrome_trace."


def _reported(source: FileBytes, progress: Callable[[int], None] | None) -> Iterator[bytes]:
    for chunk in source:
        yield chunk
        if progress is not None:
            progress(source.bytes_read)


def _nullable(values: Int64s) -> pa.Array[Any]:
    return pa.array(values, pa.int64(), mask=values == NULL)


def _coded(codes: Int64s, dictionary: pa.Array[Any]) -> pa.Array[Any]:
    missing = codes < 0
    indices: pa.Array[Any] = pa.array(np.where(missing, 0, codes).astype(np.int32), pa.int32(), mask=missing)
    return pa.DictionaryArray.from_arrays(indices, dictionary)


def _collectives(columns: Columns, distinct: list[pa.Array[Any]]) -> list[pa.Array[Any]]:
    """The collective columns of a batch, from the arrays of the distinct collectives."""
    codes = columns["collective"]
    if not (codes >= 0).any():
        return [pa.nulls(len(codes), values.type) for values in distinct]
    positions: pa.Array[Any] = pa.array(codes, pa.int32(), mask=codes < 0)
    arrays = [values.take(positions) for values in distinct]
    arrays[SEQUENCE] = _nullable(columns["sequence"])
    return arrays
