"""What a trace says about itself around its events."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from annotq.agent.reader.exact_ns import MAX_DURATION_NS

_VERSION = "_version"


@dataclass(frozen=True)
class TraceHeader:
    """The fields of `TraceInfo` that stand before or after the events; None where they are not there."""

    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    gpus: dict[int, str] = field(default_factory=dict)  # device id to name
    without_gpu: bool = False  # the profiler looked for GPUs and found none
    versions: dict[str, str] = field(default_factory=dict)
    process_groups: str | None = None
    base_ns: int = 0
    inline: bool = False
    problems: tuple[str, ...] = ()


def parse_header(text: bytes) -> TraceHeader:
    """Read the JSON object around the events (b"": a top-level array, which says nothing). Never raises."""
    problems: list[str] = []
    try:
        header = json.loads(text.decode(errors="replace"), strict=False) if text else {}
    except ValueError as error:
        return TraceHeader(problems=(f"the JSON around the events is malformed ({error}): read without it",))
    distributed = header.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    groups = distributed.get("pg_config")
    return TraceHeader(
        rank=_natural(distributed.get("rank"), "distributedInfo.rank", problems),
        world_size=_natural(distributed.get("world_size"), "distributedInfo.world_size", problems),
        host=str(header["host_name"]) if header.get("host_name") else None,
        gpus=_gpus(header.get("deviceProperties")),
        without_gpu=header.get("deviceProperties") == [],
        versions=_versions(header) | _versions(distributed),
        process_groups=json.dumps(groups) if isinstance(groups, list) else None,
        base_ns=_natural(header.get("baseTimeNanoseconds"), "baseTimeNanoseconds", problems) or 0,
        inline=header.get("cudaGraphInlineAnnotated") is True,
        problems=tuple(problems),
    )


def _natural(value: Any, name: str, problems: list[str]) -> int | None:
    """Read an integer from 0 to 2^61 that may be written as text; anything else is a problem and None."""
    if value is None:
        return None
    try:
        number = int(value) if isinstance(value, (int, str)) else -1
    except ValueError:
        number = -1
    if 0 <= number < MAX_DURATION_NS:
        return number
    problems.append(f"`{name}` is {value!r}, not a natural number: ignored")
    return None


def _gpus(devices: Any) -> dict[int, str]:
    found = [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else []
    return {
        device["id"]: str(device["name"]) for device in found if isinstance(device.get("id"), int) and "name" in device
    }


def _versions(fields: dict[str, Any]) -> dict[str, str]:
    """Return every `x_version` as x: cuda_driver, cuda_runtime, cupti, nccl, hip_driver ..."""
    return {
        key.removesuffix(_VERSION): str(value)
        for key, value in fields.items()
        if key.endswith(_VERSION) and isinstance(value, (int, str))
    }
