"""What torch here can do, asked in a process of its own: a broken build may crash, hang, or take the GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from annotq.agent.doctor import Check

OLDEST_TORCH = (2, 14)
_SECONDS = 120.0

# No device is initialized: that takes memory on a GPU that the training may need.
_PROBE = """
import json, sys
import torch
found = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
found["available"] = torch.cuda.is_available()
found["devices"] = torch.cuda.device_count()
try:
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception:
    found["nccl"] = None
try:
    from torch.cuda.graph_annotations import mark_kernels
    from torch.cuda.graphs import register_graph_instantiate_hook
    found["annotations"] = None
except ImportError as error:
    found["annotations"] = str(error)
try:
    found["profiler"] = sorted(activity.name for activity in torch.profiler.supported_activities())
except Exception as error:
    found["profiler"] = []
%s
sys.stdout.write("annotq:" + json.dumps(found))
"""


@dataclass(frozen=True)
class Probe:
    """What torch said of itself, or why it said nothing."""

    found: Mapping[str, object]
    error: str = ""


def probe(environ: Mapping[str, str], python: str = sys.executable) -> Probe:
    """Import torch in a fresh interpreter and ask it. Never raises."""
    try:
        from annotq.agent.doctor_ids import PROBE

        done = subprocess.run(
            [python, "-P", "-c", _PROBE % PROBE], env=dict(environ), capture_output=True, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Probe({}, f"import torch did not end within {_SECONDS:.0f} s")
    except OSError as error:
        return Probe({}, str(error))
    answer = done.stdout.rpartition("annotq:")[2]
    if done.returncode != 0 or not answer.startswith("{"):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        how = f"killed by signal {-done.returncode}" if done.returncode < 0 else "failed"
        return Probe({}, f"import torch {how}: {last}")
    return Probe(json.loads(answer))


def torch_checks(environ: Mapping[str, str], python: str = sys.executable) -> Iterator[Check]:
    """torch, its annotations of CUDA graphs, CUDA and NCCL."""
    from annotq.agent.doctor import Check

    if python == sys.executable and find_spec("torch") is None:
        yield Check("warn", "torch", "not installed: nothing can be recorded here", "pip install 'torch>=2.14'")
        return
    asked = probe(environ, python)
    if asked.error:
        yield Check("FAIL", "torch", asked.error, "Repair or reinstall torch.")
        return
    found = asked.found
    version = str(found["version"])
    if _version(version) < OLDEST_TORCH or found["annotations"]:
        fix = "Upgrade for regions in CUDA graphs: pip install 'torch>=2.14'"
        yield Check("warn", "torch", f"{version}: CUDA graphs get no names, steps and traces are recorded", fix)
    else:
        yield Check("ok", "torch", f"{version}: records annotations of CUDA graphs")
    yield _cuda(found)
    if found["available"]:
        nccl = found["nccl"]
        yield Check("ok", "nccl", str(nccl)) if nccl else Check("warn", "nccl", "this torch has none", "")
        from annotq.agent.doctor_ids import ids_check

        yield ids_check(found)


def _cuda(found: Mapping[str, object]) -> Check:
    from annotq.agent.doctor import Check
    from annotq.agent.doctor_cuda import has_gpu

    if found["available"]:
        # The profiler lists CUDA when torch was built with Kineto and CUPTI.
        profiler = found["profiler"]
        if isinstance(profiler, list) and "CUDA" not in profiler:
            fix = "Install a build of torch with Kineto and CUPTI."
            return Check("FAIL", "cuda", "torch.profiler of this build does not record GPU work", fix)
        return Check("ok", "cuda", f"{found['cuda'] or found['hip']}, {found['devices']} devices visible")
    if not has_gpu():
        return Check("ok", "cuda", "no GPU on this machine: host times are recorded")
    if found["cuda"] is None:
        return Check("FAIL", "cuda", "there is a GPU, but this torch is built without CUDA", "Install a CUDA build.")
    fix = "Compare nvidia-smi, CUDA_VISIBLE_DEVICES and the CUDA version of torch."
    return Check("FAIL", "cuda", f"there is a GPU, but torch (CUDA {found['cuda']}) cannot use it", fix)


def _version(text: str) -> tuple[int, ...]:
    parts = text.split("+")[0].split(".")[:2]
    return tuple(int("".join(letter for letter in part if letter.isdigit()) or 0) for part in parts)
