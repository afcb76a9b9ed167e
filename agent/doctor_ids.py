"""Whether nodes of CUDA graphs can be named here, and by whom: the driver, or CUPTI in its place (node_ids.py)."""

from __future__ import annotations

from collections.abc import Mapping

from annotq.agent.doctor import Check

# Run where torch is imported (doctor_torch.py); adds to the dictionary `found`.
PROBE = """
try:
    from annotq.agent.node_ids import id_source
    source = id_source()
    found["ids"], found["ids_why"] = source.name, source.why
except Exception as error:
    found["ids"], found["ids_why"] = "none", f"{type(error).__name__}: {error}"
"""


def ids_check(found: Mapping[str, object]) -> Check:
    """The line of `annotq doctor` for what the probe found."""
    name, why = found.get("ids"), str(found.get("ids_why", ""))
    if name == "driver":
        return Check("ok", "graph node ids", "from the driver")
    if name == "cupti":
        return Check("ok", "graph node ids", f"from CUPTI: {why}")
    return Check("warn", "graph node ids", f"none, nodes of CUDA graphs get no names: {why}", _fix(why))


def _fix(why: str) -> str:
    if "cuda-bindings" in why:
        return "pip install 'cuda-bindings>=13.1'"
    if "libcupti" in why:
        return "pip install nvidia-cuda-cupti, or install a driver for CUDA 13.1 or later (590)."
    if "among the versions" in why:
        return "Use one of them, or a driver for CUDA 13.1 or later (590)."
    return "Install a driver for CUDA 13.1 or later (590)."
