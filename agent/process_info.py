"""Who a training process is: the identity that its recorder writes, its shipper sends and the store keeps.

Only the standard library: the recorder runs inside the training process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class ProcessInfo:
    """One process of a job attempt. start_ns: CLOCK_REALTIME when recording began; coordinates: dp, pp, tp, ep."""

    job: str
    attempt: int
    rank: int
    host: str
    pid: int
    start_ns: int
    world_size: int | None = None
    local_rank: int | None = None
    gpu: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    coordinates: Mapping[str, int] = field(default_factory=dict)
    annotation_ids: str = "none"  # where graph node ids come from: driver, cupti, none

    @property
    def key(self) -> str:
        """The same for every file and delivery of this process, and for no other process (16 hex digits)."""
        parts = (self.job, self.attempt, self.rank, self.host, self.pid, self.start_ns)
        text = "\x1f".join(map(str, parts))
        return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> ProcessInfo:
        """Read what to_json wrote. Raises ValueError for anything else; unknown fields are left out."""
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("it is no JSON object")
        try:
            info = cls(**{name: _checked(name, fields[name]) for name in cls.__dataclass_fields__ if name in fields})
        except TypeError as error:
            raise ValueError(f"a field is missing: {error}") from None
        return info


_INTEGERS = ("attempt", "rank", "pid", "start_ns")


def _checked(name: str, value: Any) -> Any:
    wanted: type | tuple[type, ...] = str
    if name in _INTEGERS:
        wanted = int
    elif name in ("world_size", "local_rank"):
        wanted = (int, type(None))
    elif name == "gpu":
        wanted = (str, type(None))
    elif name in ("versions", "coordinates"):
        wanted = dict
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}")
    return value
