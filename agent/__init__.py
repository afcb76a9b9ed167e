"""What a training script uses: five lines, see the README.

    import annotq.agent

    annotq.agent.start()                                     # who this rank is; CUDA graphs from here on
    with annotq.agent.region("layers.0.mlp"): ...            # names, captured or eager
    torch.profiler.profile(..., on_trace_ready=annotq.agent.trace_handler())
    annotq.agent.step()                                      # after every step

Nothing here raises into the training script, waits for the GPU, or adds work to the replay of a graph. Problems are warned of
once; `annotq doctor` says more. The names load on first use, since the command line shares this package and needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from annotq.agent.profiler_window import trace_handler as trace_handler
    from annotq.agent.recorder import start as start
    from annotq.agent.recorder import step as step
    from annotq.agent.recorder import stop as stop
    from annotq.agent.regions import mark_kernels as mark_kernels
    from annotq.agent.regions import region as region

__all__ = ["mark_kernels", "region", "start", "step", "stop", "trace_handler"]

_MODULES = {
    "mark_kernels": "regions",
    "region": "regions",
    "start": "recorder",
    "step": "recorder",
    "stop": "recorder",
    "trace_handler": "profiler_window",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value  # the next time is an ordinary look-up
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
