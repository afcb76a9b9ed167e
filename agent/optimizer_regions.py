"""Names the work of an optimizer inside captures as torch's profiler names it outside: "Optimizer.step#AdamW.step"."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

from annotq.agent.regions import Region, _capturing
from annotq.agent.warnings_once import error_text, warn_once


class OptimizerRegions:
    """torch's two hooks around every Optimizer.step(), and a wrapper of zero_grad(), between install() and remove()."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._zero_grad: Any = None
        self._open = threading.local()

    def install(self) -> None:
        """Register the hooks with torch, once."""
        if self._handles:
            return
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._handles = [register_optimizer_step_pre_hook(self._enter), register_optimizer_step_post_hook(self._leave)]
        Optimizer = torch.optim.Optimizer  # noqa: N806
        original = self._zero_grad = Optimizer.zero_grad

        @torch._disable_dynamo  # type: ignore[untyped-decorator]  # as torch's own
        @functools.wraps(original)
        def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not _capturing():
                return original(optimizer, *args, **kwargs)
            with Region(f"Optimizer.zero_grad#{type(optimizer).__name__}.zero_grad", {}):
                return original(optimizer, *args, **kwargs)

        Optimizer.zero_grad = zero_grad

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._zero_grad is not None:
            torch.optim.Optimizer.zero_grad, self._zero_grad = self._zero_grad, None

    def _enter(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            self._leave(optimizer, None, None)  # of a step that raised
            if _capturing():
                region = Region(f"Optimizer.step#{type(optimizer).__name__}.step", {})
                region.__enter__()
                self._open.region = region
        except Exception as failure:
            warn_once("optimizer", f"the region of an optimizer was lost: {error_text(failure)}.")

    def _leave(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        region, self._open.region = getattr(self._open, "region", None), None
        if region is not None:
            region.__exit__(None, None, None)
