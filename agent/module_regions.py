"""Regions named after a model's modules, without a change to its code: `start(modules=True)`.

Two global module hooks enter and leave a region around every forward(). In a capture its kernels are named, the backward ones
through mark_kernels; outside of one, the work launched while a profiler runs. Nothing while torch.compile or torch.jit trace.
A region that the user opens is inside and wins.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

import torch

from annotq.agent.accumulated_gradients import AccumulatedGradients
from annotq.agent.graph_snapshots import PATH_SEPARATOR
from annotq.agent.module_names import ModuleNames
from annotq.agent.region_path import _path, current_path
from annotq.agent.regions import Region, _capturing
from annotq.agent.warnings_once import error_text, warn_once

try:
    from torch.cuda import _graph_annotations as _annotations
except ImportError:  # torch before 2.14: eager regions only

    class _annotations:  # type: ignore[no-redef]  # noqa: N801
        _annotations_enabled = False


# torch.compile says this at every call of a compiled module, and with -W error it would raise.
_KNOWN_WARNING = "Using `torch.compile(module)` when there are global hooks on modules"


class _Call(NamedTuple):
    """A forward() that is running and seen. name: of the region it is in; region: its own, None when it is in that of the call
    around it; outer: the path to return to; held: what must live as long as the call."""

    module: Any
    name: str
    region: Region | None = None
    outer: str = ""
    held: Any = None


class _Calls(threading.local):
    """The calls under way in this thread, outermost first: a _Call, or the module alone where nobody sees it."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.backward: list[dict[str, Any]] = []  # compiled modules whose backward runs in this thread


class ModuleRegions:
    """The two hooks, between install() and remove(). Neither raises into a model."""

    def __init__(self) -> None:
        self._names = ModuleNames()
        self._gradients = AccumulatedGradients()
        self._calls = _Calls()
        self._handles: list[Any] = []
        self._filter: Any = None

    def install(self) -> None:
        """Register the hooks with torch, once."""
        if self._handles:
            return
        self._gradients = AccumulatedGradients()
        warnings.filterwarnings("ignore", re.escape(_KNOWN_WARNING), UserWarning)
        self._filter = warnings.filters[0]
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),  # after an exception, too
        ]

    def remove(self) -> None:
        """Take the hooks away. A forward() that is running keeps its region to its end or, in torch's view, beyond it."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._gradients.remove()
        with suppress(ValueError):
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]

    def _enter(self, module: Any, _inputs: Any) -> None:
        # First and alone: torch.compile traces this and must find nothing to trace.
        if torch.compiler.is_compiling():
            return
        try:
            stack = self._calls.stack
            if stack and _module(stack[0]) is module and not _is_running(module):
                self._unwind(0)
            stack.append(self._begin(module, stack) if _is_seen() else module)
        except Exception as failure:
            _lost(failure)

    def around(self) -> dict[str, Any] | None:
        """What the innermost call of this thread would annotate with, seen or not, or the backward of a compiled module."""
        stack = self._calls.stack
        if not stack:
            return self._calls.backward[-1] if self._calls.backward else None
        modules = [_module(call) for call in stack]
        name = self._names.of(modules[-1], modules[:-1])
        return {"name": name.name, "region_path": PATH_SEPARATOR.join((*name.above, name.name))}

    def _leave(self, module: Any, _inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            stack = self._calls.stack
            if "_orig_mod" in module._modules:
                self._follow_backward(output)
            if stack and stack[-1] is module:
                stack.pop()
                return
            for place in range(len(stack) - 1, -1, -1):
                if _module(stack[place]) is module:
                    # What is above it was left without notice, by an exception that is no Exception.
                    self._unwind(place)
                    return
        except Exception as failure:
            _lost(failure)

    def _begin(self, module: Any, stack: list[Any]) -> Any:
        if torch.jit.is_tracing():
            return module
        name = self._names.of(module, [_module(call) for call in stack])
        if stack and isinstance(stack[-1], _Call) and stack[-1].name == name.name:
            return _Call(module, name.name)  # a wrapper and what it wraps, or a module that calls itself
        outer = current_path()
        above = PATH_SEPARATOR.join(name.above)
        if not outer and above:
            _path.set(above)  # a part of the model on its own: a recomputation in backward, a graphed layer
        region = Region(name.name, {})
        region.__enter__()
        held = self._gradients.name(module, name.name, str(_path.get())) if _capturing() else None
        return _Call(module, name.name, region, outer, held)

    def _follow_backward(self, output: Any) -> None:
        """Know while the backward of a compiled module runs, whose graph may be captured then: no hook of its modules does."""
        node = getattr(_first_tensor(output), "grad_fn", None)
        around = self.around()
        if node is None or around is None:
            return
        fields = {**around, "autograd_phase": "backward"}
        node.register_prehook(lambda _gradients: self._calls.backward.append(fields))
        node.register_hook(lambda _inputs, _outputs: self._calls.backward.clear())

    def _unwind(self, place: int) -> None:
        """Leave all calls from the innermost out to `place`."""
        stack = self._calls.stack
        while len(stack) > place:
            call = stack.pop()
            if isinstance(call, _Call) and call.region is not None:
                call.region.__exit__(None, None, None)
                _path.set(call.outer)


def _is_seen() -> bool:
    """Whether a region would be recorded: in an annotated capture, or by a profiler. Asked for every call of every module."""
    return bool(_annotations._annotations_enabled or torch._C._autograd._profiler_enabled())


def _first_tensor(output: Any) -> Any:
    """A tensor of what a module returned: itself, or the first one in a tuple, list or dictionary."""
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        return next((part for part in output if isinstance(part, torch.Tensor) and part.grad_fn is not None), None)
    return output


def _module(call: Any) -> Any:
    return call.module if isinstance(call, _Call) else call


def _is_running(module: Any) -> bool:
    """Whether an outer call of `module` is under way, besides the one that asks: else Ctrl-C left it on the stack."""
    frame: FrameType | None = sys._getframe(1)
    calls = 0
    while frame is not None and calls < 2:
        code = frame.f_code
        # The frame and the function inside it that runs the hooks both know the module as `self`; count the outer one.
        if code.co_name == "_call_impl" and frame.f_locals.get("self") is module:
            calls += 1
        frame = frame.f_back
    return calls > 1


def _lost(failure: Exception) -> None:
    warn_once(f"modules {type(failure).__name__}", f"the region of a module was lost: {error_text(failure)}.")
