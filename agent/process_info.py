"""Who a training process is: the identity that its recorder writes, its shipper sends and the store keeps.

Only the standard library: the recorder runs inside the training process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from annotq.agent.valid_text import is_valid

_LARGEST = (1 << 63) - 1  # an integer of the wire and of the store


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
        """Read what to_json wrote. Raises ValueError for anything else, also for what no collector could be told: text that
        is no UTF-8, numbers beyond 64 bits. Unknown fields are left out."""
        try:
            fields = json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if not isinstance(fields, dict):
            raise ValueError("it is no JSON object")
        try:
            info = cls(**{name: _checked(name, fields[name]) for name in cls.__dataclass_fields__ if name in fields})
        except TypeError as error:
            raise ValueError(f"a field is missing: {error}") from None
        return info


_INTEGERS = ("attempt", "rank", "pid", "start_ns", "world_size", "local_rank")
_MAY_BE_NONE = ("world_size", "local_rank", "gpu")


def _checked(name: str, value: Any) -> Any:
    if name == "coordinates":
        fits = isinstance(value, dict) and all(_is_text(key) and _is_integer(place) for key, place in value.items())
    elif name == "versions":
        fits = isinstance(value, dict) and all(_is_text(key) and _is_text(text) for key, text in value.items())
    elif name in _INTEGERS:
        fits = _is_integer(value)
    else:
        fits = _is_text(value)
    if not fits and not (value is None and name in _MAY_BE_NONE):
        raise ValueError(f"{name} is {value!a}"[:200])
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and is_valid(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST
