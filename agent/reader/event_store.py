"""Takes in a trace block by block: GPU events go to the spill, launches and annotations stay in memory as arrays."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from annotq.agent.problems import Problems
from annotq.agent.reader.backward import LinkColumns
from annotq.agent.reader.collectives import NONE, SEQUENCE, CollectiveValues, collective_values
from annotq.agent.reader.exact_ns import Int64s
from annotq.agent.reader.graph_ids import ObservedNodes, graph_ids
from annotq.agent.reader.inline import InlineAnnotations
from annotq.agent.reader.json_blocks import Block, Element, EventBlocks
from annotq.agent.reader.spill import Columns, Spill
from annotq.agent.reader.trace_events import (
    DECODERS,
    LENIENT,
    NULL,
    AnyEvent,
    Codes,
    FullEvent,
    GpuColumns,
    HostColumns,
    Picker,
    faults,
    gpu_columns,
    host_columns,
    is_wanted,
    link_columns,
    needs_all_arguments,
)

BATCH_ROWS = 50_000

_NARROW = {"kind": pa.int8(), "name": pa.int32(), "collective": pa.int32()}
_COLUMNS = [*(field.name for field in fields(GpuColumns)), "collective", "sequence"]
SPILL_SCHEMA = pa.schema([pa.field(name, _NARROW.get(name, pa.int64())) for name in _COLUMNS])
# What the whole trace is looked at for, after reading: steps, replays, overruns.
_RESIDENT = ("start_ns", "duration_ns", "kind", "name", "lane", "correlation", "in_graph", "graph")


@dataclass(frozen=True)
class IdCounts:
    """How many events write their graph ids in which way; see `graph_ids.py`."""

    packed: int = 0
    split: int = 0
    nodes_alone: int = 0
    contradictions: int = 0


class EventStore:
    """Collects the kept events of one trace. Counts and reports what it drops; raises nothing for a bad event."""

    def __init__(self, problems: Problems) -> None:
        self.names = Codes()
        self.collectives = Codes()  # of CollectiveValues without the sequence
        self.spill = Spill(SPILL_SCHEMA)
        self.nodes = ObservedNodes()
        self.inline = InlineAnnotations()
        self.counts = IdCounts()
        self.events_read = 0
        self.dropped = 0
        self._problems = problems
        self._pick = Picker()
        self._lean = True
        self._linked = False
        self._waiting: list[Columns] = []
        self._waiting_rows = 0
        self.lanes = Codes()  # of (device, stream)
        self._resident: dict[str, list[np.ndarray]] = {name: [] for name in _RESIDENT}
        self._launches: list[HostColumns] = []
        self._annotations: list[HostColumns] = []
        self._links: list[tuple[Int64s, Int64s, Int64s, Int64s]] = []

    def take_in(self, blocks: EventBlocks) -> None:
        """Read all blocks."""
        held: list[AnyEvent] = []
        for block in blocks:
            events = self._add(*self._decode(block, blocks))
            self.events_read += len(events)
            # Freed only when the next block is decoded, the memory is reused instead of being returned to the system
            # and taken again, which costs a quarter of the decoding time.
            held = events
        del held
        for offset, message in blocks.damaged:
            self._problems.add(
                f"event dropped, its JSON is damaged ({_kind(message)})", f"at byte {offset} ({message})"
            )
        self.dropped += len(blocks.damaged)
        self._flush()
        self.spill.finish()

    def resident(self) -> Columns:
        """The columns of all GPU events that stay in memory, in the order of the spill; lane is a code."""
        for name, parts in self._resident.items():
            if len(parts) != 1:
                self._resident[name] = [np.concatenate(parts) if parts else np.empty(0, np.int64)]
        return {name: parts[0] for name, parts in self._resident.items()}

    def forget_resident(self) -> None:
        """Free them: 45 bytes per GPU event."""
        for parts in self._resident.values():
            parts.clear()
        self._launches.clear()
        self._annotations.clear()
        self._links.clear()
        _give_back()

    def launches(self) -> HostColumns:
        """All calls of the CUDA API that have a correlation."""
        return _concatenated(self._launches)

    def annotations(self) -> HostColumns:
        """All user annotations, profiler steps included."""
        return _concatenated(self._annotations)

    def links(self) -> LinkColumns:
        """All ends of arrows between forward and backward operators."""
        nothing = (np.empty(0, np.int64),) * 4
        return LinkColumns(*(np.concatenate(parts) for parts in zip(*(self._links or [nothing]), strict=True)))

    def _decode(self, block: Block, blocks: EventBlocks) -> tuple[list[AnyEvent], bytes]:
        """Return the events of a block, and its array where all of it decoded."""
        try:
            return self._decode_array(block.array), block.array
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        if block.elements is None:
            block = blocks.rescue(block)
            try:
                return self._decode_array(block.array), block.array
            except (msgspec.DecodeError, UnicodeDecodeError):
                pass
        decoded = [self._decode_one(element) for element in block.elements or ()]
        return [event for event in decoded if event is not None], b""

    def _decode_array(self, array: bytes) -> list[AnyEvent]:
        return DECODERS[self._lean, self._linked].decode(array)

    def _decode_one(self, element: Element) -> AnyEvent | None:
        """Decode an element of a block in which something is wrong; None when it is dropped."""
        try:
            return LENIENT.decode(element.text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = str(error)
        try:
            # A UTF-8 fault hides the rest: repaired first, whatever else is wrong comes up then.
            repaired = element.text.decode(errors="replace").encode()
            if repaired != element.text:
                event = LENIENT.decode(repaired)
                self._problems.add("invalid UTF-8 replaced by U+FFFD", f"in the event at byte {element.offset}")
                return event
            category = msgspec.json.decode(element.text, type=_Category).cat
        except (msgspec.DecodeError, UnicodeDecodeError):
            category = None
        if category is None or is_wanted(category):
            self.dropped += 1
            cause = f"event dropped, its JSON is damaged ({_kind(message)})"
            self._problems.add(cause, f"at byte {element.offset} ({message})")
        return None

    def _add(self, events: list[AnyEvent], array: bytes) -> list[AnyEvent]:
        """Take in the events of a block and return them, decoded again from its array where more arguments count."""
        gpu, kinds, calls, annotations, links = self._pick(events)
        if self._lean and array and needs_all_arguments(gpu):
            self._lean = False
            return self._add(self._decode_array(array), array)
        if links and array and not self._linked:
            self._linked = True
            return self._add(self._decode_array(array), array)
        if gpu:
            self._add_gpu(gpu, kinds, events)
        if calls:
            self._launches.append(self._host(calls, events))
        if annotations:
            self._annotations.append(self._host(annotations, events))
        if links and self._linked:
            self._links.append(link_columns(links))
        return events

    def _add_gpu(self, gpu: list[AnyEvent], kinds: Int64s, events: list[AnyEvent]) -> None:
        try:
            columns = gpu_columns(gpu, kinds, self.names)
        except (ValueError, TypeError, OverflowError):
            bad = self._drop(gpu, events)
            kinds = np.delete(kinds, list(bad))
            gpu = [event for i, event in enumerate(gpu) if i not in bad]
            columns = gpu_columns(gpu, kinds, self.names)
        collective = np.full(len(gpu), -1, np.int64)
        sequence = np.full(len(gpu), NULL, np.int64)
        if gpu and isinstance(gpu[0], FullEvent):
            ids = graph_ids(columns.graph, columns.node)
            in_graph = ids.in_graph.tolist()
            for i, event in enumerate(gpu):
                arguments: dict[str, Any] = event.args or {}  # type: ignore[assignment]
                if kinds[i] == 0 and "Collective name" in arguments:
                    collective[i], sequence[i] = self._collective(collective_values(arguments))
                if in_graph[i]:
                    self.inline.add(int(ids.graph[i]), int(ids.node[i]), arguments)
        self._waiting.append({**vars(columns), "collective": collective, "sequence": sequence})
        self._waiting_rows += len(gpu)
        if self._waiting_rows >= BATCH_ROWS:
            self._flush()

    def _collective(self, values: CollectiveValues) -> tuple[int, int]:
        sequence = values[SEQUENCE]
        rest = (*values[:SEQUENCE], None, *values[SEQUENCE + 1 :])
        return self.collectives[rest], sequence if isinstance(sequence, int) else NULL

    def _host(self, found: list[AnyEvent], events: list[AnyEvent]) -> HostColumns:
        try:
            return host_columns(found, self.names)
        except (ValueError, TypeError, OverflowError):
            bad = self._drop(found, events)
            return host_columns([event for i, event in enumerate(found) if i not in bad], self.names)

    def _drop(self, found: list[AnyEvent], events: list[AnyEvent]) -> set[int]:
        """Report the events that cannot be used; returns their positions in `found`."""
        reasons = faults(found)
        position = {id(event): i for i, event in enumerate(events)}
        for i, reason in reasons.items():
            number = self.events_read + position[id(found[i])]
            where = f"event {number} ({found[i].cat} {(found[i].name or '')[:80]!r})"
            self._problems.add(f"event dropped, {reason}", where)
        self.dropped += len(reasons)
        return set(reasons)

    def _flush(self) -> None:
        if not self._waiting_rows:
            return
        columns = {name: np.concatenate([part[name] for part in self._waiting]) for name in self._waiting[0]}
        self._waiting, self._waiting_rows = [], 0
        order = np.argsort(columns["start_ns"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
        ids = graph_ids(columns["graph"], columns["node"])
        columns |= {"in_graph": ids.in_graph, "graph": ids.graph, "node": ids.node}
        self.nodes.add(ids, columns["kind"], columns["name"])
        counted = {
            field.name: getattr(self.counts, field.name) + getattr(ids, field.name) for field in fields(IdCounts)
        }
        self.counts = IdCounts(**counted)
        for start in range(0, len(order), BATCH_ROWS):
            self.spill.append({name: column[start : start + BATCH_ROWS] for name, column in columns.items()})
        lanes = zip(columns["device"].tolist(), columns["stream"].tolist(), strict=True)
        columns["lane"] = np.fromiter(map(self.lanes.__getitem__, lanes), np.int32, len(order))
        for name, parts in self._resident.items():
            parts.append(columns[name])


def _give_back() -> None:
    """Return freed memory to the system before the loading begins, which needs it: glibc keeps it otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class _Category(msgspec.Struct):
    cat: str | None = None


def _kind(message: str) -> str:
    """The decoder's message without its place, so that equal faults are counted together."""
    return message.removeprefix("JSON is malformed: ").split(" (byte ")[0].split(" - at ")[0]


def _concatenated(parts: list[HostColumns]) -> HostColumns:
    names = [field.name for field in fields(HostColumns)]
    if not parts:
        return HostColumns(**{name: np.empty(0, np.int64) for name in names})
    return HostColumns(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


__all__ = ["BATCH_ROWS", "NONE", "EventStore", "IdCounts"]
