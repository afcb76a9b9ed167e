"""Brings the windows of torch.profiler into the spool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from annotq.agent import config, recorder
from annotq.agent.warnings_once import error_text, warn_once

_TAIL_BYTES = 64


def trace_handler() -> Callable[[Any], None]:
    """An `on_trace_ready` for torch.profiler: exports the window into the spool and returns.

    The training loop waits for torch's own export, and neither for compression nor for the disk: a thread makes the file
    durable and gives it its place. Without start() the window is not written and a warning says so.
    """
    return _export


def _export(profiler: Any) -> None:
    recording = recorder.current()
    if recording is None:
        if not config.is_disabled():
            warn_once("not started", "a profiler window was not kept: annotq.agent.start() was not called before.")
        return
    if not recording.is_mine():
        return
    path = recording.spool.temporary("trace.json")
    try:
        # Plain JSON: with gzip, torch holds the loop twenty times as long (0.3 s against 6 s for 78 MB, bench/recorder.py),
        # and the file lives only until it is shipped.
        profiler.export_chrome_trace(str(path))
        _check_whole(path)
    except Exception as error:
        path.unlink(missing_ok=True)
        warn_once(f"trace {type(error).__name__}", f"a profiler window was lost: {error_text(error)}.")
        return
    recording.background.begin()
    recording.background.submit(lambda: _keep(recording, path))


def _keep(recording: recorder.Recorder, path: Path) -> None:
    if not recording.spool.put_trace(path):
        warn_once("full", f"the spool {recording.spool.root} is full, profiler windows are being lost.")


def _check_whole(path: Path) -> None:
    """Raise OSError for a trace that does not end as JSON: on a full disk torch writes what fits and says nothing."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(f"the file is incomplete after {size:,} bytes, is the disk full?")
