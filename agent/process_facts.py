"""What the recorder finds out about its process and machine, without initializing CUDA and without a GPU.

The standard library; torch only where the training process has it loaded already or when it is asked for.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from annotq.agent.identity import Facts
from annotq.agent.valid_text import valid_text

# cudaGraphNodeGetToolsId, without which a node cannot be named, came with this driver and these bindings.
_TOOLS_ID_VERSION = (13, 1)

# Shared by machines: locks, memory maps and fsync mean less there, and one shipper would take the others' folders for its own.
_NETWORK_FILE_SYSTEM = re.compile(
    r"nfs4?|cifs|smb3?|lustre|gpfs|beegfs|ceph|glusterfs|afs|9p|panfs|fuse\.(?!fuse-overlayfs).*"
)

_PROC = Path("/proc")


def facts() -> Facts:
    """Script name, this process and the one that started it, torch.distributed's rank."""
    pid, launcher_pid = os.getpid(), os.getppid()
    return Facts(
        script=_script(),
        pid=pid,
        started=_started(pid),
        launcher_pid=launcher_pid,
        launcher_started=_started(launcher_pid),
        distributed=_distributed(),
    )


def versions() -> dict[str, str]:
    """Versions by name: python, annotq, torch, cuda, nccl, as far as they are there. Loads torch."""
    found = {"python": platform.python_version()}
    with suppress(metadata.PackageNotFoundError):
        found["annotq"] = metadata.version("annotq")
    with suppress(Exception):  # no torch, a broken one, a build without NCCL
        import torch

        found["torch"] = valid_text(str(torch.__version__))
        if torch.version.cuda:
            found["cuda"] = str(torch.version.cuda)
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def gpu_name() -> str | None:
    """The name of this process's GPU; None when there is none or CUDA is not initialized and the GPUs differ."""
    torch: Any = sys.modules.get("torch")
    with suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            return valid_text(str(torch.cuda.get_device_name()))
    models = set()
    for information in (_PROC / "driver/nvidia/gpus").glob("*/information"):
        with suppress(OSError):
            lines = information.read_text(errors="replace").splitlines()
            models |= {line.partition(":")[2].strip() for line in lines if line.startswith("Model:")}
    return models.pop() if len(models) == 1 else None


def annotation_ids() -> str:
    """Where graph node ids can come from: `driver`, or `none` (no GPU, an older driver or older bindings)."""
    try:
        bindings = tuple(int(part) for part in metadata.version("cuda-bindings").split(".")[:2])
        version = ctypes.c_int()
        # Needs no cuInit, so this neither creates a context nor spoils a later fork.
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return "none"
    except (metadata.PackageNotFoundError, ValueError, OSError, AttributeError):
        return "none"
    driver = (version.value // 1000, version.value % 1000 // 10)
    return "driver" if min(bindings, driver) >= _TOOLS_ID_VERSION else "none"


def network_file_system(folder: Path) -> str | None:
    """The kind of network file system (nfs4, lustre, ...) that a folder is on; None when it is on this machine."""
    found, kind = Path("/"), ""
    with suppress(OSError, ValueError, IndexError):
        folder = folder.resolve()
        for line in (_PROC / "self/mountinfo").read_text(errors="replace").splitlines():
            fields, _, behind = line.partition(" - ")
            place = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields.split()[4]))
            # The last of several mounts at one place is the one that is seen.
            if len(place.parts) >= len(found.parts) and folder.is_relative_to(place):
                found, kind = place, behind.split()[0]
    return kind if _NETWORK_FILE_SYSTEM.fullmatch(kind) else None


def _script() -> str:
    """`train` for train.py, the module for `python -m`, else `python`."""
    main: Any = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name and not spec.name.startswith("__"):
        return str(spec.name.removesuffix(".__main__"))
    path = getattr(main, "__file__", None) or (sys.argv[0] if sys.argv else "")
    return Path(path).stem if path and not path.startswith("-") else "python"


def _started(pid: int) -> float:
    """When a process of this machine started, in CLOCK_REALTIME seconds; the clock's own start when that is unknown."""
    try:
        # The name in parentheses may hold anything, so count fields behind it: the 22nd of the line is the start.
        ticks = int((_PROC / f"{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
        boot = next(line for line in (_PROC / "stat").read_text().splitlines() if line.startswith("btime"))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0.0
    return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


def _distributed() -> tuple[int, int] | None:
    module: Any = sys.modules.get("torch.distributed")
    with suppress(Exception):
        if module is not None and module.is_available() and module.is_initialized():
            return int(module.get_rank()), int(module.get_world_size())
    return None
