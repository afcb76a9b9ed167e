"""Collectives inside captures get Kineto's fields into their annotation, without a change to the code that calls them.

A process group of torch 2.14 calls hooks before and after every collective that is dispatched through it: from Python, from
functional collectives, from DDP's C++. While a capture is annotated, the kernels that appear between the two get the fields.
The hooks stay with a group once they are registered, because torch does not want that to happen beside collectives, and
return at once outside of captures. Several sends and receives that become one kernel are known when they are issued together.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any, NamedTuple, Protocol

from annotq.agent.capture_marks import CaptureMarks
from annotq.agent.collective_fields import call_fields, coalesced_fields, group_fields, split_text
from annotq.agent.warnings_once import error_text, warn_once

_HOOK_ID = 0x616E6E6F7471  # among the hooks of others: "annotq"


class Marks(Protocol):
    """Where nodes are marked: see CaptureMarks. Another one in tests, without a GPU."""

    def begin(self) -> Any:
        """The state of the capture before a collective; None when there is nothing to mark."""

    def end(self, scope: Any, fields: dict[str, Any], fallback: str = "") -> bool:
        """Give `fields` to what was captured since, and `fallback` as the region where none is around; False: nothing was."""


class _Pending(NamedTuple):
    """A collective that was begun in this thread."""

    group: int
    operation: int
    scope: Any
    fields: dict[str, Any]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.pending: list[_Pending] = []
        self.coalesced: list[dict[str, Any]] = []
        self.splits: tuple[str, str] | None = None


class CollectiveRegions:
    """The hooks of all process groups, between watch() and remove()."""

    def __init__(self, marks: Marks | None = None) -> None:
        self._marks: Marks = marks or CaptureMarks()
        self._groups: weakref.WeakSet[Any] = weakref.WeakSet()
        self._thread = _Thread()
        self._methods: dict[str, Callable[..., Any]] = {}

    def watch(self) -> None:
        """Register with the process groups that were not there the last time. Called at the start of every capture."""
        import torch.distributed as dist

        self._thread.pending.clear()
        self._thread.coalesced.clear()
        if not dist.is_available() or not dist.is_initialized():
            return
        for group in list(dist.distributed_c10d._world.pg_map):
            if group not in self._groups and hasattr(group, "register_pre_hook"):
                group.register_pre_hook(_HOOK_ID, partial(self._before, id(group), group_fields(group)))
                group.register_post_hook(_HOOK_ID, partial(self._after, id(group)))
                self._groups.add(group)
        if self._groups and not self._methods:
            self._wrap("_end_coalescing", self._end_coalescing)
            self._wrap("alltoall_base", self._with_splits)
            self._wrap("all_to_all_single", self._with_splits)

    def remove(self) -> None:
        """Take the hooks away; to be called while no collective is being issued."""
        from torch.distributed import ProcessGroup

        for group in list(self._groups):
            with suppress(Exception):  # it may be destroyed
                group.unregister_pre_hook(_HOOK_ID)
                group.unregister_post_hook(_HOOK_ID)
        self._groups.clear()
        for name, method in self._methods.items():
            setattr(ProcessGroup, name, method)
        self._methods = {}

    def _before(self, group: int, shared: dict[str, Any], call: Any) -> None:
        try:
            scope = self._marks.begin()
            if scope is None:
                return
            fields = call_fields(call.name.name, call.input_tensors, call.output_tensors, call.root)
            if self._thread.splits is not None and call.name.name == "ALLTOALL":
                fields["In split size"], fields["Out split size"] = self._thread.splits
            self._thread.pending.append(_Pending(group, call.op_id, scope, {**fields, **shared}))
        except Exception as failure:
            _lost(failure)

    def _after(self, group: int, call: Any) -> None:
        pending = self._thread.pending
        # A collective that raised leaves its entry behind, below which nothing is ever found.
        while pending and (pending[-1].group, pending[-1].operation) != (group, call.op_id):
            pending.pop()
        if not pending:
            return
        begun = pending.pop()
        try:
            if not self._marks.end(begun.scope, begun.fields, begun.fields["Collective name"]):
                self._thread.coalesced.append(begun.fields)  # its kernel comes at the end of the group call
        except Exception as failure:
            _lost(failure)

    def _end_coalescing(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        fields, scope = coalesced_fields(self._thread.coalesced), None
        self._thread.coalesced.clear()
        if fields:
            with suppress(Exception):
                scope = self._marks.begin()
        result = original(*arguments, **options)
        if scope is not None:
            try:
                self._marks.end(scope, fields, fields["Collective name"])
            except Exception as failure:
                _lost(failure)
        return result

    def _with_splits(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with suppress(Exception):
            output_sizes = options.get("output_split_sizes", arguments[3] if len(arguments) > 3 else ())
            input_sizes = options.get("input_split_sizes", arguments[4] if len(arguments) > 4 else ())
            self._thread.splits = (split_text(input_sizes), split_text(output_sizes))
        try:
            return original(*arguments, **options)
        finally:
            self._thread.splits = None

    def _wrap(self, name: str, instead: Callable[..., Any]) -> None:
        """Let Python's calls of a method of process groups pass through `instead`, which gets the method first."""
        from torch.distributed import ProcessGroup

        original = getattr(ProcessGroup, name, None)
        if original is None:
            return

        @wraps(original)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            return instead(original, *arguments, **options)

        self._methods[name] = original
        setattr(ProcessGroup, name, wrapped)


def _lost(failure: Exception) -> None:
    warn_once(f"collectives {type(failure).__name__}", f"a collective got no fields: {error_text(failure)}.")
