"""What will be recorded here and why not: the checks of `annotq doctor` that concern this process and its machine.

Nothing here imports torch or CUDA into this process: a broken installation is what the checks are for.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from annotq.agent import config, process_facts
from annotq.agent.errors import AnnotqError
from annotq.agent.file_locks import holder
from annotq.agent.identity import Given, identify
from annotq.agent.shipper_lock import SHIPPER_LOCK
from annotq.agent.spool_reader import IDENTITY, ProcessFolder, Unreadable, process_folders

State = Literal["ok", "warn", "FAIL"]

# Below this a spool cannot even take a few profiler windows.
_LEAST_FREE_BYTES = 1 << 30


@dataclass(frozen=True)
class Check:
    """One thing looked at. found: what is there; fix: what to do about it, empty when nothing."""

    state: State
    what: str
    found: str
    fix: str = ""


def local_checks(environ: Mapping[str, str], spool: Path | None = None) -> Iterator[Check]:
    """Everything but the collector, in the order in which it matters. spool: as --spool gives it."""
    from annotq.agent.doctor_cuda import cuda_checks
    from annotq.agent.doctor_torch import torch_checks

    yield Check("ok", "python", f"{platform.python_version()} at {sys.executable}, annotq {metadata.version('annotq')}")
    if config.is_disabled(environ):
        found = f"{config.DISABLED}={environ[config.DISABLED]}: annotq.agent does nothing"
        yield Check("FAIL", "recording", found, f"Unset {config.DISABLED}.")
    yield from torch_checks(environ)
    yield from cuda_checks(environ)
    yield from identity_checks(environ)
    yield from spool_checks(spool or config.spool_root(environ), environ)


def identity_checks(environ: Mapping[str, str]) -> Iterator[Check]:
    """Who annotq.agent.start() would say this process is, and where that comes from."""
    found = identify(Given(), environ, process_facts.facts())
    origin = found.origins
    yield Check("ok", "rank", f"{found.rank} of {found.world_size} ({origin['rank']}), local rank {found.local_rank}")
    job = origin["job"]
    # The script is the one that calls start(), not this one.
    named = "named after the script" if job.startswith("script") else f"{found.job} ({job})"
    yield Check("ok", "job", f"{named}, attempt {found.attempt} ({origin['attempt']})")
    if found.coordinates:
        places = ", ".join(f"{name} {place}" for name, place in found.coordinates.items())
        yield Check("ok", "coordinates", f"{places} ({origin['coordinates']})")
    for problem in found.problems:
        message, _, fix = problem.partition(": ")
        yield Check("warn", "identity", message if fix else problem, fix[:1].upper() + fix[1:])


def spool_checks(root: Path, environ: Mapping[str, str]) -> Iterator[Check]:
    """Whether ranks can write here, whether there is room, and what earlier runs left."""
    standing = next((folder for folder in (root, *root.parents) if folder.is_dir()), Path("/"))
    other = f"Choose a folder on a local disk with {config.SPOOL}."
    if (problem := _write_problem(standing)) is not None:
        yield Check("FAIL", "spool", f"{root}: {problem}", other)
        return
    try:
        limit = config.spool_bytes(environ)
    except AnnotqError as error:
        yield Check("FAIL", "spool size", error.message, error.hint)
        limit = config.DEFAULT_SPOOL_BYTES
    free = shutil.disk_usage(standing).free
    found = f"{root} can be written, {_size(free)} free, traces go at {_size(limit)}"
    if free < _LEAST_FREE_BYTES:
        yield Check("FAIL", "spool", found, f"Make room, or: {other}")
    elif free < limit:
        yield Check("warn", "spool", found, f"Make room, or set {config.SPOOL_BYTES} below what is free.")
    else:
        yield Check("ok", "spool", found)
    for folder in (root, *_other_spools(root, config.spool_base(environ))):
        yield from _leftovers(folder)


def _other_spools(root: Path, base: Path) -> list[Path]:
    """The spools beside this one: annotq run gives each run a folder of its own, and each collector has one."""
    if base not in (root, root.parent):
        base = root
    folders = [base, *sorted(base.glob("*"))]
    return [folder for folder in folders if folder != root and folder.is_dir() and not (folder / IDENTITY).exists()]


def _write_problem(folder: Path) -> str | None:
    """Why a spool below the folder would not work; None when it would. Leaves nothing behind."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"annotq")
            file.flush()
            os.fsync(file.fileno())
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return f"{error.strerror} (writing and locking a file in {folder})"
    return None


def _leftovers(root: Path) -> Iterator[Check]:
    folders = list(process_folders(root))
    refused = [found for found in folders if isinstance(found, Unreadable) or found.refused() is not None]
    living = [found for found in folders if isinstance(found, ProcessFolder) and found.alive()]
    waiting = [
        found
        for found in folders
        if isinstance(found, ProcessFolder) and found not in refused and found not in living and not found.shipped()
    ]
    shipper = holder(root / SHIPPER_LOCK) if root.is_dir() else None
    if living or shipper is not None:
        at_work = "no shipper" if shipper is None else f"shipper {shipper or 'of another container'}"
        yield Check("ok", "spool in use", f"{len(living)} ranks record into it, {at_work}")
    if waiting:
        size = _size(sum(found.waiting_bytes() for found in waiting))
        yield Check(
            "ok" if shipper is not None else "warn",
            "left in the spool",
            f"{size} of {len(waiting)} ranks that ended are not with the collector",
            "" if shipper is not None else f"annotq ship --spool {root} --once",
        )
    if refused:
        first = refused[0]
        reason = first.reason if isinstance(first, Unreadable) else str(first.refused())
        yield Check(
            "warn",
            "refused in the spool",
            f"{len(refused)} ranks, the first {first.path.name}: {reason.splitlines()[0]}",
            "Load them as another job: annotq ingest FOLDER --job NAME; then delete the folders.",
        )


def _size(size: int) -> str:
    return f"{size / (1 << 30):,.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):,.1f} MiB"
