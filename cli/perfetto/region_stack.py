"""The open region slices of one lane: a kernel's path is opened above it, what it has left is closed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from annotq.cli.perfetto.trace_file import TraceFile
from annotq.cli.perfetto.wire import Begin, Event

SEPARATOR = " > "  # between the regions of a region_path


class Level(NamedTuple):
    """One region of a path. unit tells passes apart: kernels of different units are in different slices."""

    unit: tuple[object, ...]
    path: str
    name: str
    phase: str | None


Path = tuple[Level, ...]


@dataclass
class _Open:
    level: Level
    kernels: int = 0
    busy_ns: int = 0


@dataclass
class RegionStack:
    """The region slices of one track. They begin and end with kernels: at the start of the first, at the end of the last.

    A region whose kernels are interrupted by another region's on the same lane is drawn in several slices.
    """

    file: TraceFile
    track: int
    path: Path = ()
    last_end: bytes = b""
    _open: list[_Open] = field(default_factory=list)
    _begins: dict[tuple[str, str, str | None, int], Begin] = field(default_factory=dict)

    def enter(self, path: Path, moment: bytes, tail: bytes) -> None:
        """Close what is not in the path, open what is missing, at the start of a kernel."""
        common = 0
        for open_, level in zip(self._open, path, strict=False):
            if open_.level != level:
                break
            common += 1
        self._close(common)
        for level in path[common:]:
            self.file.put(self._begin(level, len(tail)), moment, tail)
            self._open.append(_Open(level))
        self.path = path

    def count(self, duration_ns: int, end: bytes) -> None:
        """A kernel ran inside the open regions, until `end`."""
        for open_ in self._open:
            open_.kernels += 1
            open_.busy_ns += duration_ns
        self.last_end = end

    def close(self) -> None:
        """Close everything, at the end of the last kernel."""
        self._close(0)
        self.path = ()
        self._begins.clear()

    def _close(self, keep: int) -> None:
        end = self.file.end(self.track) if len(self._open) > keep else None
        while end is not None and len(self._open) > keep:
            open_ = self._open.pop()
            tail = self.file.arguments({"kernels": open_.kernels, "busy_ns": open_.busy_ns})
            self.file.put(end.packet(len(tail)), self.last_end, tail)
            self.file.slices += 1

    def _begin(self, level: Level, tail_bytes: int) -> Begin:
        key = (level.path, level.name, level.phase, tail_bytes)
        found = self._begins.get(key)
        if found is None:
            event: Event = self.file.begin(
                self.track,
                slice_name(level.name, level.phase),
                "region",
                {"region": level.name, "region_path": level.path, "phase": level.phase},
            )
            found = self._begins[key] = event.packet(tail_bytes)
        return found


def slice_name(region: str, phase: str | None) -> str:
    return f"{region} (backward)" if phase == "backward" else region


def split_path(region: str, region_path: str | None) -> list[str]:
    """The regions of a path, outermost first, the last of them `region` even when its own name contains the separator."""
    if region_path is None or region_path == region:
        return [region]
    outer = region_path.removesuffix(SEPARATOR + region)
    names = [name for name in outer.split(SEPARATOR) if name]
    return names if outer == region_path and names[-1:] == [region] else [*names, region]
