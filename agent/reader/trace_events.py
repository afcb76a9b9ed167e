"""The events of a trace that are kept, decoded from a block and turned into columns of plain integers.

msgspec decodes only the fields named here: 0.25 s for 160 MB, where a dictionary per event takes 3 s. Collectives
and annotations written inline need all their arguments; from the block on in which one is met, arguments are decoded as
dictionaries, which costs about a third more.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Union

import msgspec
import numpy as np
from msgspec import Raw

from annotq.agent.reader.exact_ns import MAX_DURATION_NS, Int64s, exact_ns

NULL = -(1 << 63)  # a missing integer in an int64 column

GPU_KINDS = ("kernel", "memcpy", "memset")
# Category (in lower case; older traces write "Kernel", "Memcpy", "Runtime") to the position in GPU_KINDS or to HOST...
_HOST, _ANNOTATION, _LINK = 3, 4, 5
_BUCKETS = {
    "kernel": 0,
    "memcpy": 1,
    "gpu_memcpy": 1,
    "memset": 2,
    "gpu_memset": 2,
    "cuda_runtime": _HOST,
    "cuda_driver": _HOST,
    "runtime": _HOST,
    "user_annotation": _ANNOTATION,
    "fwdbwd": _LINK,
}
_INT_FIELDS = ("device", "stream", "correlation", "bytes", "graph", "node")
_ARGUMENT = {"graph": "graph id", "node": "graph node id"}


class Args(msgspec.Struct, gc=False, rename=_ARGUMENT | {"collective": "Collective name", "text": "str"}):
    """What every trace needs of a GPU event's or a launch's `args`, and the fields that ask for all of them."""

    device: int | None = NULL
    stream: int | None = NULL
    correlation: int | None = NULL
    bytes: int | None = NULL
    graph: int | None = NULL
    node: int | None = NULL
    collective: Any = None
    name: Any = None
    module_fqn: Any = None
    module_name: Any = None
    text: Any = None


class Event(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """One complete ("X") element of traceEvents. `ts` and `dur` stay text, to be read without a float."""

    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Raw = Raw(b"")
    dur: Raw = Raw(b"")
    args: Args | None = None


class FullEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """One complete ("X") element of traceEvents with all its arguments."""

    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Raw = Raw(b"")
    dur: Raw = Raw(b"")
    args: dict[str, Any] | None = None


class OtherEvent(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """An element that is no complete event (flows, instants, metadata: half of a trace); nothing of it is decoded."""

    cat: ClassVar[None] = None
    name: ClassVar[None] = None


class FlowStart(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """The beginning of an arrow between events. A third of a trace is arrows, so only their category is decoded."""

    cat: str | None = None
    name: ClassVar[None] = None


class FlowEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """The end of an arrow between events."""

    cat: str | None = None
    name: ClassVar[None] = None


class LinkStart(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """The beginning of an arrow, with what is wanted of one from a forward operator to its backward one."""

    cat: str | None = None
    tid: Any = None
    id: Any = None
    ts: Raw = Raw(b"")
    name: ClassVar[None] = None


class LinkEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """The end of such an arrow."""

    cat: str | None = None
    tid: Any = None
    id: Any = None
    ts: Raw = Raw(b"")
    name: ClassVar[None] = None


# The other phases of the Trace Event Format. One that is not in it goes the way of a malformed element, and is ignored.
_OTHER_PHASES = [
    msgspec.defstruct(f"Phase{ord(phase)}", [], bases=(OtherEvent,), gc=False, tag_field="ph", tag=phase)
    for phase in "BEIiCbnetPNODSVvRc(),"
]
AnyEvent = Event | FullEvent


def _decoder(lean: bool, linked: bool) -> msgspec.json.Decoder[list[AnyEvent]]:
    arrows = (LinkStart, LinkEnd) if linked else (FlowStart, FlowEnd)
    elements: Any = Union[(Event if lean else FullEvent, *arrows, OtherEvent, *_OTHER_PHASES)]
    return msgspec.json.Decoder(list[elements])


# By what is needed: all arguments of GPU events (lean: False), the arrows from forward to backward (linked: True).
DECODERS = {(lean, linked): _decoder(lean, linked) for lean in (True, False) for linked in (True, False)}
# For an element whose fields have other types than expected: "7" counts as 7.
LENIENT = msgspec.json.Decoder(FullEvent, strict=False)
_NO_ARGS = Args()


class Codes(dict[Any, int]):
    """Numbers values in the order in which they are first met; `list(codes)` gives them back in that order."""

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self)
        return code


@dataclass(frozen=True)
class GpuColumns:
    """n GPU events; int64 arrays [n] (kind int8, name int32: a code), NULL where missing; start_ns without the base."""

    start_ns: Int64s
    duration_ns: Int64s
    kind: Int64s
    name: Int64s
    device: Int64s
    stream: Int64s
    correlation: Int64s
    bytes: Int64s
    graph: Int64s
    node: Int64s


@dataclass(frozen=True)
class HostColumns:
    """n launches or annotations; int64 arrays [n], NULL where missing; start_ns without the base."""

    start_ns: Int64s
    duration_ns: Int64s
    name: Int64s
    thread: Int64s
    process: Int64s
    correlation: Int64s


class Picker:
    """Picks the complete ("X") events of interest out of those of a block."""

    def __init__(self) -> None:
        self._ignored: set[str | None] = {None}

    def __call__(
        self, events: Sequence[AnyEvent]
    ) -> tuple[list[AnyEvent], Int64s, list[AnyEvent], list[AnyEvent], list[Any]]:
        """Return GPU work and its kinds [n], calls of the CUDA API, user annotations, and arrows from forward to backward."""
        picked: list[list[Any]] = [[], [], [], [], [], []]
        # Two thirds of a trace are ignored: they cost one look-up each. The rest is of a handful of categories.
        kept = [event for event in events if event.cat not in self._ignored]
        for category in sorted({event.cat or "" for event in kept}):
            bucket = _bucket(category)
            if bucket is None:
                self._ignored.add(category)
            else:
                picked[bucket] += [event for event in kept if event.cat == category]
        kinds = np.repeat(np.arange(3, dtype=np.int64), [len(bucket) for bucket in picked[:3]])
        return picked[0] + picked[1] + picked[2], kinds, picked[_HOST], picked[_ANNOTATION], picked[_LINK]


def is_wanted(category: object) -> bool:
    """Whether events of this category are kept when they are sound. Arrows are not missed."""
    return isinstance(category, str) and _bucket(category) not in (None, _LINK)


def _bucket(category: str) -> int | None:
    bucket = _BUCKETS.get(category)
    return _BUCKETS.get(category.lower()) if bucket is None else bucket


def needs_all_arguments(events: Sequence[AnyEvent]) -> bool:
    """Whether GPU events decoded lean hold a collective, or graph work with a region's name in its arguments."""
    found = [event.args for event in events if isinstance(event.args, Args)]
    suspects = [a for a in found if a.collective or a.name or a.module_fqn or a.module_name or a.text]
    return any(a.collective or (a.node or 0) > 0 or (a.graph or 0) > 0 for a in suspects)


def faults(events: Sequence[AnyEvent]) -> dict[int, str]:
    """Say which events cannot be used, by position, and why (a clause)."""
    starts, bad_starts = exact_ns([event.ts for event in events])
    durations, bad_durations = exact_ns([event.dur for event in events])
    found: dict[int, str] = {}
    for i, event in enumerate(events):
        if i in bad_starts or starts[i] <= 0:
            found[i] = f"`ts` is {bad_starts.get(i, '0 or negative')}"
        elif i in bad_durations or durations[i] < 0:
            found[i] = f"`dur` is {bad_durations.get(i, 'negative')}"
        elif durations[i] >= MAX_DURATION_NS:
            found[i] = "`dur` is beyond 64-bit nanoseconds"
        elif event.name is None:
            found[i] = "`name` is missing"
        elif fault := _argument_fault(event):
            found[i] = fault
    return found


def _argument_fault(event: AnyEvent) -> str | None:
    for field in _INT_FIELDS:
        key = _ARGUMENT.get(field, field)
        value = event.args.get(key) if isinstance(event.args, dict) else getattr(event.args or _NO_ARGS, field)
        try:
            number = _integer(value)
        except (TypeError, ValueError):
            return f"`{key}` is not an integer"
        if not NULL <= number < 1 << 63:
            return f"`{key}` is beyond 64-bit integers"
    return None


def _integer(value: object) -> int:
    """An integer or its text; NULL for None. TypeError or ValueError for anything else, a fraction included."""
    if value is None:
        return NULL
    if isinstance(value, (int, str)):
        return int(value)
    raise TypeError(type(value).__name__)


def _integers(values: Sequence[Any]) -> Int64s:
    """n values to int64; TypeError, ValueError or OverflowError for what `faults` would name."""
    # numpy would quietly cut a float down to an integer.
    return np.fromiter(map(_integer, values), np.int64, len(values))


def _typed_integers(values: list[int | None]) -> Int64s:
    """n integers, as the lean decoder checked them, to int64; OverflowError for what `faults` would name."""
    try:
        # Half the time of np.array; it would cut floats, but the decoder lets none through.
        return np.fromiter(values, np.int64, len(values))
    except TypeError:
        return _integers(values)


def _arguments(events: Sequence[AnyEvent]) -> list[Int64s]:
    """The columns of _INT_FIELDS."""
    if events and isinstance(events[0], FullEvent):
        dictionaries: list[dict[str, Any]] = [event.args or {} for event in events]  # type: ignore[misc]
        keys = [_ARGUMENT.get(field, field) for field in _INT_FIELDS]
        return [_integers([args.get(key, NULL) for args in dictionaries]) for key in keys]
    found: list[Any] = [event.args for event in events]
    if None in found:
        found = [_NO_ARGS if args is None else args for args in found]
    # Spelled out: an attribute by name in a variable takes twice as long.
    return [
        _typed_integers([args.device for args in found]),
        _typed_integers([args.stream for args in found]),
        _typed_integers([args.correlation for args in found]),
        _typed_integers([args.bytes for args in found]),
        _typed_integers([args.graph for args in found]),
        _typed_integers([args.node for args in found]),
    ]


def _times(events: Sequence[AnyEvent]) -> tuple[Int64s, Int64s]:
    starts, bad_starts = exact_ns([event.ts for event in events])
    durations, bad_durations = exact_ns([event.dur for event in events])
    if bad_starts or bad_durations or (len(events) and (starts.min() <= 0 or not _in_range(durations))):
        raise ValueError("times")
    return starts, durations


def _in_range(durations: Int64s) -> bool:
    return bool(durations.min() >= 0 and durations.max() < MAX_DURATION_NS)


def gpu_columns(events: Sequence[AnyEvent], kinds: Int64s, names: Codes) -> GpuColumns:
    """Turn GPU events into columns; ValueError, TypeError or OverflowError when `faults` has something to say."""
    starts, durations = _times(events)
    device, stream, correlation, size, graph, node = _arguments(events)
    for column, attribute in ((device, "pid"), (stream, "tid")):
        for i in np.flatnonzero(column == NULL).tolist():
            column[i] = as_id(getattr(events[i], attribute))
    size[kinds == 0] = NULL
    name = _names(events, names)
    return GpuColumns(starts, durations, kinds.astype(np.int8), name, device, stream, correlation, size, graph, node)


def host_columns(events: Sequence[AnyEvent], names: Codes) -> HostColumns:
    """Turn launches or annotations into columns; errors as in `gpu_columns`."""
    starts, durations = _times(events)
    threads = _ids([event.tid for event in events])
    processes = _ids([event.pid for event in events])
    correlation = _arguments(events)[_INT_FIELDS.index("correlation")]
    return HostColumns(starts, durations, _names(events, names), threads, processes, correlation)


def link_columns(links: Sequence[LinkStart | LinkEnd]) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """The fields of LinkColumns; arrows that cannot be read are left out."""
    starts, bad = exact_ns([link.ts for link in links])
    good = [
        i
        for i, link in enumerate(links)
        if i not in bad and isinstance(link.id, (int, str)) and isinstance(link.tid, (int, str))
    ]
    kept = [links[i] for i in good]
    begins = np.fromiter((isinstance(link, LinkStart) for link in kept), np.int64, len(kept))
    return starts[good], _ids([link.tid for link in kept]), _ids([link.id for link in kept]), begins


def _ids(values: list[int | str | None]) -> Int64s:
    try:
        return np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([as_id(value) for value in values], np.int64)


def _names(events: Sequence[AnyEvent], names: Codes) -> Int64s:
    found = [event.name for event in events]
    if None in found:
        raise ValueError("name")
    return np.fromiter(map(names.__getitem__, found), np.int32, len(found))


def as_id(value: int | str | None) -> int:
    """A pid, tid, device or stream as int64: "1260" is 1260, another text a negative number made of it."""
    if value is None:
        return NULL
    if isinstance(value, str):
        try:
            number = int(value)
        except ValueError:
            return _text_id(value)
        return as_id(number)
    return value if NULL < value < 1 << 63 else _text_id(str(value))


def _text_id(text: str) -> int:
    return -1 - zlib.crc32(text.encode(errors="surrogatepass"))
