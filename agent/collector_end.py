"""The end of `intake` that is a collector: turns what was read of a process's files into numbered batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from annotq.agent.annotations import AnnotationFile
from annotq.agent.batches import ANNOTATION, GPU_EVENT, GRAPH_NODE, HOST_SPAN
from annotq.agent.event_batches import MOST_PIECES, payloads, recut
from annotq.agent.graphs import GraphFile
from annotq.agent.intake import Loaded
from annotq.agent.read_ahead import ReadTrace
from annotq.agent.snapshots import Snapshot
from annotq.agent.valid_text import valid_text
from annotq.agent.wire import SCHEMA_VERSION, sequence_of
from annotq.v1 import collector_pb2 as pb

Deliver = Callable[[pb.Batch], None]

# A collector knows these by the content of the file: a second piece would be known already.
_ONE_MESSAGE = (pb.KIND_ANNOTATION_FILE, pb.KIND_GRAPH_FILE)


class CollectorEnd:
    """Hands the batches of one process to `deliver`, which may block. Batches up to `committed` are there already: they are
    counted, so that the others get the same numbers, but not made.

    Loading says what was sent; whether the collector takes it is known only when it answers.
    """

    def __init__(self, process_id: int, committed: int, deliver: Deliver) -> None:
        self.process_id = process_id
        self.committed = committed
        self.sent_sequence = 0  # of the batch made last, delivered now or before
        self.batches = 0
        self.rows = 0
        self._deliver = deliver
        self._number = 0
        self._part = 0

    def begin_file(self, number: int) -> None:
        """What follows comes from this file of the spool."""
        self._number = number
        self._part = 0

    def is_known(self, sha256: str, rank: int | None) -> bool:
        """False: only the collector can tell, and its answer to the first batch does."""
        return False

    def load_trace(self, trace: ReadTrace) -> Loaded:
        info = trace.info
        self._send(pb.KIND_TRACE_BEGIN, asdict(info))
        self._send_cut(pb.KIND_GPU_EVENTS, trace.gpu_events(), GPU_EVENT)
        self._send_cut(pb.KIND_HOST_SPANS, trace.host_spans(), HOST_SPAN)
        self._send_cut(pb.KIND_TRACE_ANNOTATIONS, [trace.annotations()], ANNOTATION)
        self._send_cut(pb.KIND_TRACE_NODES, [trace.observed_nodes()], GRAPH_NODE)
        self._send(pb.KIND_TRACE_END, {})
        return Loaded(False, info.rank, info.gpu_events, info.graph_events)

    def load_annotations(self, file: AnnotationFile) -> Loaded:
        self._send(pb.KIND_ANNOTATION_FILE, {"path": file.path, "sha256": file.sha256}, file.rows)
        self._send_problems(file.problems)
        return Loaded(False, file.rank, annotated_nodes=file.rows.num_rows)

    def load_graphs(self, file: GraphFile) -> Loaded:
        self._send(pb.KIND_GRAPH_FILE, {"path": file.path, "sha256": file.sha256}, file.rows)
        self._send_problems(file.problems)
        return Loaded(False, file.rank, graph_nodes=file.rows.num_rows)

    def reject_trace(self, path: str, sha256: str, rank: int, reason: str) -> None:
        header = {"path": path, "sha256": sha256, "rank": rank, "reason": reason}
        self._send(pb.KIND_TRACE_REJECTED, header)

    def load_snapshot(self, snapshot: Snapshot) -> Loaded:
        self._send(pb.KIND_SNAPSHOT, asdict(snapshot.info), snapshot.nodes)
        if snapshot.annotations.num_rows:
            header = {"graph_id": snapshot.info.graph_id}
            self._send(pb.KIND_SNAPSHOT_ANNOTATIONS, header, snapshot.annotations)
        self._send_problems(snapshot.problems)
        return Loaded(False, None, annotated_nodes=snapshot.annotations.num_rows, graph_nodes=snapshot.nodes.num_rows)

    def destroy_graphs(self, graph_ids: Sequence[int], time_ns: int) -> None:
        self._send(pb.KIND_GRAPHS_DESTROYED, {"graph_ids": list(graph_ids), "time_ns": time_ns})

    def note(self, text: str) -> None:
        self._send(pb.KIND_NOTE, {"text": text})

    def end_process(self, time_ns: int, how: str) -> None:
        self._send(pb.KIND_PROCESS_END, {"time_ns": time_ns, "how": how})

    def _send_problems(self, problems: Iterable[str]) -> None:
        for problem in problems:
            self.note(problem)

    def _send_cut(self, kind: pb.Kind, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        for table in recut(batches, schema):
            self._send(kind, {}, table)

    def _send(self, kind: pb.Kind, header: dict[str, Any], rows: pa.Table | pa.RecordBatch | None = None) -> None:
        """One batch, or several of the same kind and header where one message cannot hold it.

        Every batch leaves room for MOST_PIECES numbers, so that those after it do not depend on into how many it was cut.
        """
        first = self._part
        self._part += MOST_PIECES
        last = sequence_of(self._number, self._part - 1)
        if last <= self.committed:
            self.sent_sequence = last
            return
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        text = json.dumps(_as_text(header)).encode()
        most = 1 if kind in _ONE_MESSAGE else MOST_PIECES
        for part, payload in enumerate([b""] if table is None else payloads(table, most), first):
            sequence = sequence_of(self._number, part)
            if sequence > self.committed:
                self._deliver(
                    pb.Batch(
                        process_id=self.process_id,
                        sequence=sequence,
                        kind=kind,
                        schema_version=SCHEMA_VERSION,
                        header=text,
                        payload=payload,
                    )
                )
                self.batches += 1
            self.sent_sequence = sequence
        self.rows += 0 if table is None else table.num_rows


def _as_text(value: Any) -> Any:
    """The value with what is no UTF-8 written out, such as bytes of file names: no JSON could carry it."""
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, dict):
        return {_as_text(key): _as_text(field) for key, field in value.items()}
    return [_as_text(item) for item in value] if isinstance(value, (list, tuple)) else value
