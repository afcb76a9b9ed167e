"""What names the nodes of CUDA graphs and records GPU work: driver, bindings, CUPTI, and who else may hold CUPTI."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from annotq.agent.doctor import Check

# cudaGraphNodeGetToolsId, which gives a node the id that the profiler writes, came with CUDA 13.1.
NODE_IDS_SINCE = (13, 1)

_PROC = Path("/proc")
_DEVICES = _PROC / "driver/nvidia/gpus"

# Tools that subscribe to CUPTI in the processes they start; only one subscriber is let in. By the start of a variable's name.
_TOOL_VARIABLES = {
    "NSYS_": "Nsight Systems",
    "NV_NSIGHT_": "Nsight",
    "NV_COMPUTE_PROFILER": "Nsight Compute",
    "CUDA_INJECTION64_PATH": "a tool injected into CUDA",
    "CUDA_INJECTION32_PATH": "a tool injected into CUDA",
}
_TOOL_PROCESSES = {
    "nsys": "Nsight Systems",
    "nsys-launcher": "Nsight Systems",
    "ncu": "Nsight Compute",
    "nv-nsight-cu-cl": "Nsight Compute",
    "nvprof": "nvprof",
    "compute-sanitizer": "Compute Sanitizer",
    "cuda-gdb": "cuda-gdb",
}


def has_gpu() -> bool:
    """Whether the driver sees an NVIDIA GPU on this machine, visible to this process or not."""
    return _DEVICES.is_dir() and any(_DEVICES.iterdir())


def driver_version() -> tuple[int, int] | None:
    """The CUDA version of the driver; None without one. Needs no cuInit, so it takes nothing on the GPU."""
    version = ctypes.c_int()
    with suppress(OSError, AttributeError):
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) == 0:
            return version.value // 1000, version.value % 1000 // 10
    return None


def bindings_version() -> str | None:
    """Version of the package cuda-bindings; None when it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version("cuda-bindings")
    return None


def cuda_checks(environ: Mapping[str, str]) -> Iterator[Check]:
    """Driver, bindings and CUPTI; on a machine without a GPU one line."""
    from annotq.agent.doctor import Check

    driver = driver_version()
    if driver is None:
        if has_gpu():
            fix = "Give the container the driver (--gpus all), or add the folder of libcuda.so.1 to LD_LIBRARY_PATH."
            yield Check("FAIL", "driver", "there is a GPU, but libcuda.so.1 cannot be loaded", fix)
        else:
            yield Check("ok", "driver", "none: no graph nodes to name here")
    else:
        yield _driver(driver)
        yield _bindings(bindings_version())
        yield _cupti(libcupti(environ))
    yield from tool_checks(environ)


def _driver(version: tuple[int, int]) -> Check:
    from annotq.agent.doctor import Check

    found = f"CUDA {version[0]}.{version[1]}"
    if version >= NODE_IDS_SINCE:
        return Check("ok", "driver", f"{found}: gives graph nodes their ids")
    return Check("ok", "driver", f"{found}: has no ids for graph nodes, see graph node ids")


def _bindings(version: str | None) -> Check:
    from annotq.agent.doctor import Check

    fix = "pip install 'cuda-bindings>=13.1'"
    if version is None:
        return Check("warn", "cuda-bindings", "not installed: nodes of CUDA graphs get no names", fix)
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if parts < NODE_IDS_SINCE:
        return Check("warn", "cuda-bindings", f"{version}: too old to ask for the ids of graph nodes", fix)
    return Check("ok", "cuda-bindings", version)


def _cupti(path: str | None) -> Check:
    from annotq.agent.doctor import Check

    if path is None:
        return Check(
            "warn",
            "cupti",
            "libcupti was not found: torch.profiler may not record GPU work",
            "pip install nvidia-cuda-cupti",
        )
    return Check("ok", "cupti", path)


def libcupti(environ: Mapping[str, str]) -> str | None:
    """The file of libcupti as packages, CUDA_HOME or the loader know it; None when nobody does."""
    for package in metadata.distributions():
        name = str(package.metadata["Name"] or "").lower()
        if name.startswith("nvidia-cuda-cupti"):
            for file in package.files or []:
                if file.name.startswith("libcupti.so"):
                    return str(package.locate_file(file))
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH") or "/usr/local/cuda"
    for folder in ("extras/CUPTI/lib64", "lib64"):
        for path in sorted((Path(home) / folder).glob("libcupti.so*")):
            return str(path)
    return ctypes.util.find_library("cupti")


def tool_checks(environ: Mapping[str, str]) -> Iterator[Check]:
    """Who else may hold CUPTI: then torch.profiler records no GPU work."""
    from annotq.agent.doctor import Check

    holders = [
        f"{tool} ({name})"
        for name in sorted(environ)
        for start, tool in _TOOL_VARIABLES.items()
        if name.startswith(start) and environ[name]
    ]
    holders += [f"{_TOOL_PROCESSES[name]} (process {pid})" for pid, name in ancestors() if name in _TOOL_PROCESSES]
    if holders:
        fix = "Run without it: CUPTI serves one profiler at a time."
        yield Check("FAIL", "other profilers", f"this process runs under {', '.join(holders)}", fix)
        return
    daemon = _daemon(environ)
    if daemon:
        fix = "Let its traces and those of torch.profiler not overlap in time."
        yield Check("warn", "other profilers", daemon, fix)
    else:
        yield Check("ok", "other profilers", "none seen")


def _daemon(environ: Mapping[str, str]) -> str:
    if environ.get("KINETO_USE_DAEMON"):
        return "KINETO_USE_DAEMON is set: dynolog may start traces in this process"
    for path in _PROC.glob("[0-9]*/comm"):
        with suppress(OSError):
            if path.read_text().strip() == "dynolog":
                return f"dynolog runs here (process {path.parent.name}) and may start traces"
    return ""


def ancestors(pid: int | None = None) -> Iterator[tuple[int, str]]:
    """(pid, name) of the processes that led to this one, from its parent up."""
    current = os.getppid() if pid is None else pid
    for _ in range(64):
        if current <= 1:
            return
        try:
            stat = (_PROC / f"{current}/stat").read_text(errors="replace")
        except OSError:
            return
        # "pid (name) state ppid ...": the name may hold anything, parentheses too.
        name, rest = stat.partition("(")[2].rpartition(")")[::2]
        yield current, name
        current = int(rest.split()[1])
