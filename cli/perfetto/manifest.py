"""The manifest that tells Perfetto how the clocks of the traces in a TAR relate.

The format, version 1: https://perfetto.dev/docs/reference/perfetto-manifest. A Kineto trace is a file without a clock: its
times count from its own zero, baseTimeNanoseconds. Each file is therefore pinned to the zero of one of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from annotq.cli.perfetto.jobs import Trace

NAME = "perfetto_manifest.json"


@dataclass(frozen=True)
class Member:
    """A trace in the archive: its path there and the rank it is of (files of one rank share its machine)."""

    path: str
    machine: str
    trace: Trace

    @property
    def zero_ns(self) -> int:
        """Where the file's zero lies on the common clock; with drift as in the middle of the trace."""
        return self.trace.aligned(self._middle_ns) - self._middle_ns + self.trace.base_ns

    @property
    def drift_error_ns(self) -> int:
        """How far the clock drifts from there until the ends of the trace: a manifest knows offsets only."""
        if self.trace.window_start_ns is None or self.trace.window_end_ns is None:
            return 0
        half_ns = (self.trace.window_end_ns - self.trace.window_start_ns) // 2
        return round(abs(self.trace.drift_ppb) * half_ns / 1e9)

    @property
    def _middle_ns(self) -> int:
        start_ns, end_ns = self.trace.window_start_ns, self.trace.window_end_ns
        return self.trace.base_ns if start_ns is None or end_ns is None else (start_ns + end_ns) // 2


def manifest(members: Sequence[Member], attributes: Mapping[str, str | int]) -> bytes:
    """The manifest's JSON. "offset_ns": the reference reads T + offset_ns when the file reads T.

    The reference is the file with the earliest zero: no time becomes negative, which Perfetto would drop.
    """
    reference = min(members, key=lambda member: member.zero_ns)
    files: list[dict[str, object]] = []
    for member in members:
        entry: dict[str, object] = {"path": member.path, "machine": {"name": member.machine}}
        if member is not reference:
            offset_ns = member.zero_ns - reference.zero_ns
            entry["clocks"] = {"sync_to": {"file": reference.path}, "offset_ns": offset_ns}
        files.append(entry)
    found = {"perfetto_manifest": {"version": 1, "files": files, "attributes": dict(attributes)}}
    return json.dumps(found, indent=1).encode()
