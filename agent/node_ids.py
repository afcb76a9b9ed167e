"""Gives torch's graph annotations their node ids on drivers that cannot: CUPTI knows the same ids.

torch.cuda.graph_annotations asks the CUDA runtime for three ids (cudaGraphNodeGetToolsId, cudaGraphGetId, cudaGraphExecGetId).
Drivers before CUDA 13.1 lack them and torch then records nothing, silently. libcupti's cuptiGetGraphNodeId, cuptiGetGraphId and
cuptiGetGraphExecId return the same ids there, without a CUPTI subscription, which would lock Kineto out.

torch holds the runtime bindings as a module attribute in the two modules below; `install` puts a stand-in there that answers
these three calls from CUPTI and passes everything else on. Only for torch versions whose internals were checked, only where
the driver has no ids of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CHECKED_TORCH = ("2.14", "2.15")

_SUCCESS = 0  # CUptiResult CUPTI_SUCCESS
_HOLDERS = ("torch.cuda._graph_annotations", "torch.cuda.graphs")
_ASKED = ("cudaGraphNodeGetToolsId", "cudaGraphGetId", "cudaGraphExecGetId")
_ANSWERED = ("cuptiGetGraphNodeId", "cuptiGetGraphId", "cuptiGetGraphExecId")
_FIRST_WITH_IDS = 13010  # cuDriverGetVersion's form of CUDA 13.1


@dataclass(frozen=True)
class IdSource:
    """Where graph node ids come from: driver, cupti or none; why says what is missing (empty for driver)."""

    name: str
    why: str = ""


class CuptiIds:
    """The stand-in for cuda.bindings.runtime: three functions answered by CUPTI, the rest by the real module."""

    def __init__(self, runtime: Any, cupti: ctypes.CDLL) -> None:
        self._runtime = runtime
        self._node_id = cupti.cuptiGetGraphNodeId
        self._graph_id = cupti.cuptiGetGraphId
        self._exec_id = cupti.cuptiGetGraphExecId
        self._node_id.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)]
        for function in (self._graph_id, self._exec_id):
            function.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def cudaGraphNodeGetToolsId(self, node: Any) -> tuple[Any, ...]:  # noqa: N802 - the runtime's own name
        return self._ask(self._node_id, node, ctypes.c_uint64())

    def cudaGraphGetId(self, graph: Any) -> tuple[Any, ...]:  # noqa: N802
        return self._ask(self._graph_id, graph, ctypes.c_uint32())

    def cudaGraphExecGetId(self, graph_exec: Any) -> tuple[Any, ...]:  # noqa: N802
        return self._ask(self._exec_id, graph_exec, ctypes.c_uint32())

    def _ask(self, function: Any, handle: Any, value: Any) -> tuple[Any, ...]:
        # torch probes with a null node and wants cudaErrorInvalidValue; CUPTI is not asked about it.
        address = int(handle)
        if address == 0 or function(address, ctypes.byref(value)) != _SUCCESS:
            return (self._runtime.cudaError_t.cudaErrorInvalidValue, None)
        return (self._runtime.cudaError_t.cudaSuccess, value.value)


def id_source() -> IdSource:
    """Say where the ids come from, or would after install(). Neither initializes CUDA nor changes anything."""
    return _source()[0]


def install() -> IdSource:
    """Let torch ask CUPTI where the driver has no ids; says who answers from now on. Once is enough, twice does no harm.

    To be called before the first capture; CUDA need not be initialized and is not.
    """
    source, runtime, cupti = _source()
    if source.name == "cupti" and cupti is not None:
        _put(CuptiIds(runtime, cupti))
    return source


def remove() -> None:
    """Give torch its own look-ups back. What was recorded keeps its keys."""
    for holder in _holders():
        if isinstance(holder._cuda_runtime, CuptiIds):
            holder._cuda_runtime = holder._cuda_runtime._runtime
            _forget_probe()


def is_installed() -> bool:
    """Whether torch asks CUPTI now."""
    return any(isinstance(holder._cuda_runtime, CuptiIds) for holder in _holders())


def _put(ids: CuptiIds) -> None:
    for holder in _holders():
        if not isinstance(holder._cuda_runtime, CuptiIds):
            holder._cuda_runtime = ids
            _forget_probe()


def _forget_probe() -> None:
    """torch remembers for good that the driver could not answer."""
    annotations: Any = import_module(_HOLDERS[0])
    annotations._tools_id_available = None


def _source() -> tuple[IdSource, Any, ctypes.CDLL | None]:
    """Who answers, the runtime bindings that torch holds, and CUPTI where it is the one."""
    if (missing := _unknown_torch()) is not None:
        return IdSource("none", missing), None, None
    runtime = _holders()[0]._cuda_runtime
    if isinstance(runtime, CuptiIds):
        return IdSource("cupti"), runtime._runtime, None
    if runtime is None:
        return IdSource("none", "the package cuda-bindings is not installed"), None, None
    if lacking := [name for name in _ASKED if not hasattr(runtime, name)]:
        return IdSource("none", f"the package cuda-bindings is too old, it lacks {lacking[0]}: 13.1 has it"), None, None
    version = _driver_version()
    if version is None:
        return IdSource("none", "there is no NVIDIA driver"), None, None
    if version >= _FIRST_WITH_IDS:
        return IdSource("driver"), runtime, None
    cupti = _find_cupti()
    if cupti is None:
        why = f"the driver (CUDA {version // 1000}.{version % 1000 // 10}) has no graph ids and no libcupti was found"
        return IdSource("none", why), None, None
    return (
        IdSource("cupti", f"the driver (CUDA {version // 1000}.{version % 1000 // 10}) has no graph ids"),
        runtime,
        cupti,
    )


def _unknown_torch() -> str | None:
    """Why torch's internals are not to be touched; None when they are as they were when this was written."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if ".".join(torch.__version__.split(".")[:2]) not in CHECKED_TORCH:
        return f"torch {torch.__version__} is not among the versions known to work ({', '.join(CHECKED_TORCH)})"
    holders = _holders()
    if len(holders) < len(_HOLDERS) or not hasattr(holders[0], "_tools_id_available"):
        return f"torch {torch.__version__} does not look up graph ids as expected"
    return None


def _holders() -> list[Any]:
    """torch's modules that look up ids; fewer than two where torch is another."""
    found = []
    for name in _HOLDERS:
        try:
            module = import_module(name)
        except ImportError:
            continue
        if hasattr(module, "_cuda_runtime"):
            found.append(module)
    return found


def _driver_version() -> int | None:
    """The newest CUDA version that the driver knows, 13010 for 13.1; needs no initialized CUDA."""
    version = ctypes.c_int()
    try:
        answer = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return version.value if answer == 0 and version.value else None


def _find_cupti() -> ctypes.CDLL | None:
    for place in _cupti_places():
        try:
            library = ctypes.CDLL(place)
        except OSError:
            continue
        if all(hasattr(library, name) for name in _ANSWERED):
            return library
    return None


def _cupti_places() -> Iterator[str]:
    """The one that is loaded (torch's profiler links to it), the one in NVIDIA's wheel, the loader's."""
    try:
        maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        maps = []
    yield from dict.fromkeys(line.split(maxsplit=5)[-1] for line in maps if "/libcupti.so" in line)
    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations if spec else None) or []:
        yield from map(str, sorted(Path(folder).glob("cu*/lib/libcupti.so.*[0-9]"), reverse=True))
    yield from ("libcupti.so.13", "libcupti.so.12", "libcupti.so")
