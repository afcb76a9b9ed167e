"""The original traces of a job in one TAR, with a manifest that puts them on the common clock."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

from annotq.agent.errors import AnnotqError
from annotq.agent.reader.file_bytes import FileBytes
from annotq.cli.perfetto.jobs import Rank, Trace
from annotq.cli.perfetto.manifest import NAME, Member, manifest
from annotq.cli.perfetto.selection import Selection
from annotq.cli.whole_file import whole_file

# Files named in a message; of more their number is said.
NAMED = 5


@dataclass(frozen=True)
class _Missing:
    """A trace that cannot be packed, and why."""

    path: str
    reason: str


def pack(selection: Selection, ranks: Sequence[Rank], target: Path) -> list[str]:
    """Write the TAR; returns what to say about it.

    The traces go in as plain JSON (Perfetto takes no clock for a compressed member), checked against the SHA-256 that the
    store knows. Raises AnnotqError when not one of them can be had, or the file cannot be written.
    """
    members: list[Member] = []
    missing: list[_Missing] = []
    remarks: list[str] = []
    with whole_file(target) as beside, beside.open("w+b") as file:
        for rank in ranks:
            for number, trace in enumerate(rank.traces):
                path = f"rank{rank.rank}.json" if number == 0 else f"rank{rank.rank}-{number + 1}.json"
                failed = _pack_one(file, path, trace, remarks)
                if failed is None:
                    members.append(Member(path, rank.title, trace))
                else:
                    missing.append(failed)
        if not members:
            raise AnnotqError(
                f"None of the {len(missing):,} original traces of {selection.job} can be packed: {_named(missing)}.",
                "The paths are those that were loaded: run it where they hold. Or draw from the store: leave out --tar.",
            )
        attributes: dict[str, str | int] = {
            "annotq.job": selection.job,
            "annotq.attempt": selection.attempt,
            "annotq.version": version("annotq"),
        }
        content = manifest(members, attributes)
        _append(file, NAME, iter([content]))
        file.write(bytes(2 * tarfile.BLOCKSIZE))
    return [_wrote(target, members), *_doubts(members), *remarks, *_lacks(missing)]


def _pack_one(file: BinaryIO, path: str, trace: Trace, remarks: list[str]) -> _Missing | None:
    """Append one trace; what was appended is taken back when the file proves to be another one than was loaded."""
    try:
        source = FileBytes(Path(trace.path))
    except AnnotqError as error:
        return _Missing(trace.path, "no longer there" if not Path(trace.path).exists() else error.message)
    begin = file.tell()
    try:
        _append(file, path, iter(source))
        if source.sha256 == trace.sha256:
            if source.problem is not None:
                remarks.append(f"{trace.path} is damaged ({source.problem}); packed up to there.")
            return None
        reason = "not the file that was loaded"
    except AnnotqError as error:
        reason = error.message
    finally:
        source.close()
    file.seek(begin)
    file.truncate()
    return _Missing(trace.path, reason)


def _append(file: BinaryIO, path: str, chunks: Iterator[bytes]) -> None:
    """One member. Its size is known only when all of it was unpacked: its header is written last, in front."""
    begin = file.tell()
    file.write(bytes(tarfile.BLOCKSIZE))
    size = 0
    for chunk in chunks:
        file.write(chunk)
        size += len(chunk)
    file.write(bytes(-size % tarfile.BLOCKSIZE))
    end = file.tell()
    header = tarfile.TarInfo(path)
    header.size = size
    header.mtime = int(time.time())
    file.seek(begin)
    file.write(header.tobuf(tarfile.GNU_FORMAT))
    file.seek(end, io.SEEK_SET)


def _wrote(target: Path, members: list[Member]) -> str:
    size = target.stat().st_size
    ranks = len({member.machine for member in members})
    return f"wrote {target} ({size / 1e6:,.1f} MB: {len(members):,} traces of {ranks:,} ranks); open it in https://ui.perfetto.dev"


def _doubts(members: list[Member]) -> Iterator[str]:
    unknown = sorted({member.machine for member in members if member.trace.clock_error_ns is None})
    if unknown and len({member.machine for member in members}) > 1:
        yield (
            f"No clock offset is known for {len(unknown):,} ranks ({unknown[0]}{', ...' if len(unknown) > 1 else ''}): "
            "they are where their own clock puts them."
        )
    drift = max(member.drift_error_ns for member in members)
    if drift > 0:
        yield f"A manifest holds offsets, no drift: at the ends of a trace times are off by up to {drift:,} ns."


def _lacks(missing: list[_Missing]) -> Iterator[str]:
    if missing:
        counted = "1 trace is" if len(missing) == 1 else f"{len(missing):,} traces are"
        yield f"{counted} not in it: {_named(missing)}."


def _named(missing: list[_Missing]) -> str:
    said = "; ".join(f"{one.path} ({one.reason.rstrip('.')})" for one in missing[:NAMED])
    return said if len(missing) <= NAMED else f"{said}; and {len(missing) - NAMED:,} more"
