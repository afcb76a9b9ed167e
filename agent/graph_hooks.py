"""torch's CUDA graph hooks, turned into files of the spool. Only instantiation and destruction: a replay runs nothing of ours."""

from __future__ import annotations

import time
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from annotq.agent.child_graphs import add_nested, nested_nodes
from annotq.agent.graph_snapshots import GraphLives, graph_snapshot
from annotq.agent.unnamed_nodes import with_unnamed
from annotq.agent.warnings_once import error_text, warn_once

if TYPE_CHECKING:
    from annotq.agent.recorder import Recorder


class GraphHooks:
    """Writes a snapshot whenever a CUDAGraph of this process is instantiated, and notes when one is gone."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lives = GraphLives(self._destroyed)
        self._handle: Any = None
        self._noted: set[str] = set()

    def register(self) -> None:
        """Ask torch to call us; without effect where torch is missing or older than 2.14."""
        with suppress(ImportError):
            from torch.cuda.graphs import register_graph_instantiate_hook

            self._handle = register_graph_instantiate_hook(self._instantiated)

    def remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _instantiated(self, graph: Any) -> None:
        # torch swallows what a hook raises; this says it once.
        recorder = self._recorder
        if not recorder.is_mine():
            return
        try:
            data = self._graph_data(graph)
            if data is not None:
                self._write(graph, data)
            recorder.learn_gpu()  # there is one now
        except Exception as error:
            self._lost(f"the snapshot of a CUDA graph was lost: {error_text(error)}.", warn=True)

    def _write(self, graph: Any, data: dict[str, Any]) -> None:
        from torch.cuda.graph_annotations import get_kernel_annotations

        recorder = self._recorder
        recorder.background.begin()  # here, because a finalizer must not start a thread
        generation = self._lives.instantiated(graph, data["exec_graph_id"])
        snapshot = graph_snapshot(
            data,
            with_unnamed(data, get_kernel_annotations(), recorder.names.region_of(graph)),
            capture_graph_id=getattr(graph, "_capture_graph_id", None),
            generation=generation,
            time_ns=time.time_ns(),
        )
        nested, whole = nested_nodes(graph, data)
        if not whole:
            self._lost(
                "work inside conditional nodes of CUDA graphs gets no names: this driver does not show it.", warn=False
            )
        add_nested(snapshot, nested)
        recorder.spool.put("snapshot", snapshot)

    def _graph_data(self, graph: Any) -> dict[str, Any] | None:
        """The graph's nodes; None when torch cannot tell them, which is noted."""
        try:
            data: dict[str, Any] = graph.get_graph_data()
        except Exception as error:
            # Nobody asked for names where the bindings are not installed: a note is enough.
            self._lost(
                f"CUDA graphs of this process get no names, their nodes cannot be read: {error_text(error)}.",
                warn=find_spec("cuda") is not None,
            )
            return None
        return data

    def _destroyed(self, exec_graph_id: int) -> None:
        """Called from finalizers, so it only queues."""
        recorder = self._recorder
        if recorder.is_mine():
            content = {"graph_ids": [exec_graph_id], "time_ns": time.time_ns()}
            recorder.background.submit(lambda: recorder.spool.put("destroyed", content))

    def _lost(self, sentence: str, *, warn: bool) -> None:
        if sentence not in self._noted and len(self._noted) < 10:
            self._noted.add(sentence)
            with suppress(OSError):
                self._recorder.spool.note(sentence)
        if warn:
            warn_once(sentence, sentence)
