"""What only the whole trace tells of an event: its step, eager region and replay, and whether its duration can be."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from annotq.agent.fingerprint import fingerprint
from annotq.agent.reader.backward import forward_regions
from annotq.agent.reader.event_store import EventStore
from annotq.agent.reader.exact_ns import Int64s
from annotq.agent.reader.graph_ids import Bools
from annotq.agent.reader.launches import Lookup, Spans, take
from annotq.agent.reader.spill import Columns
from annotq.agent.reader.trace_events import GPU_KINDS, NULL, HostColumns

# A kernel cannot run on while the next one of its stream runs: a duration that says so is wrong, or the stream is.
OVERRUN_NS = 1_000_000_000
_PIECE = 1 << 18

_STEP = re.compile(r"ProfilerStep#(\d{1,18})")


@dataclass(frozen=True)
class Attribution:
    """Per-trace look-ups from a correlation, and per-event flags [n] in the order of the spill."""

    step_source: str  # profiler, replay, none
    encoding: str  # packed, split, absent, none
    steps: Lookup  # correlation to step
    regions: (
        Lookup  # correlation of a launch to the position of the innermost annotation around it, or its forward operator
    )
    backward: Lookup  # correlation of a launch to 1 where the annotation is around its forward operator only
    in_graph: Bools
    overrun: Bools
    region_names: list[str]  # by annotation
    region_paths: list[str]
    region_instances: Int64s  # by annotation: how many of its name began before it
    launches: HostColumns  # those that led to GPU work, and all graph launches
    launch_is_graph: Bools
    launch_step: Int64s
    annotations: HostColumns
    annotation_step: Int64s  # the number of a ProfilerStep, else that of the step around it
    annotation_is_step: Bools


def attribute(store: EventStore) -> Attribution:
    """Look at everything that was read."""
    names = list(store.names)
    events = store.resident()
    annotations = store.annotations()
    numbers = np.array([_step_number(name) for name in names], np.int64)[annotations.name.astype(np.int64)]
    is_step = numbers != NULL
    launches, is_graph = _useful_launches(store.launches(), events["correlation"], names)
    in_graph, encoding = _graph_work(store, events, launches, is_graph)
    steps = _spans(annotations, is_step, numbers)
    regions = _spans(annotations, ~is_step, annotations.name.astype(np.int64))
    around = regions.innermost(launches.start_ns, launches.thread)
    inherited = np.where(around >= 0, -1, forward_regions(store.links(), regions, launches))
    around = np.maximum(around, inherited)
    if is_step.any():
        source = "profiler"
        launch_step = steps.around(launches.start_ns)
        step_of = Lookup(launches.correlation, launch_step)
    else:
        replays = _Replays(events, in_graph, launches)
        source = "replay" if len(replays) else "none"
        step_of = replays.ordinals(store, encoding)
        launch_step = np.where(is_graph, step_of(launches.correlation), NULL)
    return Attribution(
        step_source=source,
        encoding=encoding,
        steps=step_of,
        regions=Lookup(launches.correlation, np.where(around >= 0, around, NULL)),
        backward=Lookup(launches.correlation, np.where(inherited >= 0, 1, NULL)),
        in_graph=in_graph,
        overrun=_overruns(events, in_graph, names),
        region_names=[names[code] for code in regions.value.tolist()],
        region_paths=regions.paths(names),
        region_instances=regions.ordinals(),
        launches=launches,
        launch_is_graph=is_graph,
        launch_step=launch_step,
        annotations=annotations,
        annotation_step=np.where(is_step, numbers, steps.around(annotations.start_ns)),
        annotation_is_step=is_step,
    )


def _step_number(name: str) -> int:
    found = _STEP.fullmatch(name)
    return int(found.group(1)) if found else NULL


def _spans(columns: HostColumns, chosen: Bools, values: Int64s) -> Spans:
    starts = columns.start_ns[chosen]
    return Spans(starts, starts + columns.duration_ns[chosen], columns.thread[chosen], values[chosen])


def _select(columns: HostColumns, chosen: Bools) -> HostColumns:
    return HostColumns(**{name: column[chosen] for name, column in vars(columns).items()})


def _useful_launches(calls: HostColumns, correlations: Int64s, names: list[str]) -> tuple[HostColumns, Bools]:
    """Keep the calls that led to GPU work and all graph launches; says which are graph launches."""
    # cudaGraphLaunch, cuGraphLaunch, cudaGraphLaunch_v10000, hipGraphLaunch, and the _ptsz forms.
    launches_graph = np.array(["GraphLaunch" in name for name in names], bool)
    is_graph = launches_graph[calls.name.astype(np.int64)] if len(names) else np.zeros(0, bool)
    led_to_work = np.zeros(len(is_graph), bool)
    for first in range(0, len(correlations), _PIECE):
        led_to_work |= np.isin(calls.correlation, correlations[first : first + _PIECE])
    useful = is_graph | (led_to_work & (calls.correlation > 0))
    return _select(calls, useful), is_graph[useful]


def _graph_work(store: EventStore, events: Columns, launches: HostColumns, is_graph: Bools) -> tuple[Bools, str]:
    """Say which events are graph work and how the trace writes their ids."""
    in_graph: Bools = events["in_graph"].astype(bool)
    if store.counts.packed or store.counts.split:
        return in_graph, "packed" if store.counts.packed else "split"
    correlation = events["correlation"]
    if len(launches.correlation):
        shared = np.isin(correlation, launches.correlation[is_graph])
    else:
        # Without any launch, only graph work shares a correlation.
        _, inverse, counts = np.unique(correlation, return_inverse=True, return_counts=True)
        shared = counts[inverse] > 1
    in_graph = in_graph | (shared & (correlation > 0))
    return in_graph, "absent" if in_graph.any() else "none"


def _overruns(events: Columns, in_graph: Bools, names: list[str]) -> Bools:
    """Flag kernels that end more than OVERRUN_NS after the next event of their stream begins.

    NCCL kernels in graphs are left out: parallel branches of a graph may be reported on one stream, and a collective
    that waits for another rank really lasts that long.
    """
    result = np.zeros(len(in_graph), bool)
    starts, durations, lanes = events["start_ns"], events["duration_ns"], events["lane"]
    for lane in np.unique(lanes).tolist():
        order = np.flatnonzero(lanes == lane)
        order = order[np.argsort(starts[order], kind="stable")]
        # In pieces that overlap by one: whole columns of temporary arrays would double what the reader needs.
        for first in range(0, len(order) - 1, _PIECE):
            piece = order[first : first + _PIECE + 1]
            this, following = piece[:-1], piece[1:]
            result[this] = starts[this] + durations[this] - starts[following] > OVERRUN_NS
    is_nccl = np.array(["nccl" in name.lower() for name in names], bool)
    suspects = np.flatnonzero(result)
    excused = is_nccl[events["name"][suspects].astype(np.int64)] & in_graph[suspects] if len(suspects) else suspects
    result[suspects] = (events["kind"][suspects] == 0) & ~excused.astype(bool)
    return result


class _Replays:
    """The graph replays of a trace, by launch or, where that is not in it, by first kernel."""

    def __init__(self, events: Columns, in_graph: Bools, launches: HostColumns) -> None:
        self._events = events
        self._rows = np.flatnonzero(in_graph & (events["correlation"] > 0))
        correlation = events["correlation"][self._rows]
        order = np.lexsort((events["start_ns"][self._rows], correlation))
        self._rows = self._rows[order]
        self.correlation, self._first = np.unique(correlation[order], return_index=True)
        first_kernel = events["start_ns"][self._rows[self._first]] if len(self._rows) else np.empty(0, np.int64)
        launched = Lookup(launches.correlation, launches.start_ns)(self.correlation)
        self._begin = np.where(launched != NULL, launched, first_kernel)

    def __len__(self) -> int:
        return len(self.correlation)

    def ordinals(self, store: EventStore, encoding: str) -> Lookup:
        """Number the replays of each graph (by fingerprint) from 0 in the order of their launches."""
        prints = self._by_sequence(store) if encoding == "absent" else self._by_nodes(store)
        seen: dict[str, int] = {}
        ordinals = np.full(len(self), NULL, np.int64)
        for i in np.argsort(self._begin, kind="stable").tolist():
            ordinals[i] = seen.get(prints[i], 0)
            seen[prints[i]] = seen.get(prints[i], 0) + 1
        return Lookup(self.correlation, ordinals)

    def _by_nodes(self, store: EventStore) -> list[str]:
        """The fingerprint of each replay's graph, over the nodes seen in any of its replays."""
        names = list(store.names)
        nodes: dict[int, tuple[list[str], list[str | None]]] = {}
        for graph, _, kind, name in store.nodes.rows():
            kinds_names = nodes.setdefault(graph, ([], []))
            kinds_names[0].append(GPU_KINDS[kind])
            kinds_names[1].append(names[name] if kind == 0 else None)
        prints = {graph: fingerprint(*kinds_names) for graph, kinds_names in nodes.items()}
        graphs = self._events["graph"][self._rows[self._first]].tolist()
        return [prints.get(graph, str(graph)) for graph in graphs]

    def _by_sequence(self, store: EventStore) -> list[str]:
        """Without ids the kernels in the order in which they ran stand for the graph."""
        names = list(store.names)
        kinds = self._events["kind"][self._rows].tolist()
        codes = self._events["name"][self._rows].tolist()
        ends = [*self._first[1:].tolist(), len(self._rows)]
        prints = []
        known: dict[tuple[int, ...], str] = {}
        for start, end in zip(self._first.tolist(), ends, strict=True):
            key = tuple(codes[start:end])
            if key not in known:
                texts = [names[code] if kind == 0 else None for code, kind in zip(key, kinds[start:end], strict=True)]
                known[key] = fingerprint([GPU_KINDS[kind] for kind in kinds[start:end]], texts)
            prints.append(known[key])
        return prints


__all__ = ["Attribution", "attribute", "take"]
