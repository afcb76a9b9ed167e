"""The small files of a process's spool folder that only a recorder writes: destroyed graphs, notes, the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeGuard

from annotq.agent.errors import AnnotqError


def read_destroyed(path: Path) -> tuple[list[int], int]:
    """(ids of executable graphs, time_ns) of graphs that are gone. Raises AnnotqError, as the others here."""
    content = _read(path)
    ids = content.get("graph_ids")
    if not isinstance(ids, list) or not all(map(_is_number, ids)):
        raise _wrong(path, f"graph_ids is {ids!r}")
    return ids, _time(path, content)


def read_note(path: Path) -> tuple[str, int]:
    """A sentence of the recorder, and how many traces it had given up for space by then."""
    content = _read(path)
    text, dropped = content.get("text"), content.get("dropped_traces", 0)
    if not isinstance(text, str):
        raise _wrong(path, f"text is {text!r}")
    if not _is_number(dropped):
        raise _wrong(path, f"dropped_traces is {dropped!r}")
    return text, dropped


def read_end(path: Path) -> tuple[int, str]:
    """(time_ns, how) of the end of recording."""
    content = _read(path)
    how = content.get("how")
    if not isinstance(how, str):
        raise _wrong(path, f"how is {how!r}")
    return _time(path, content), how


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise AnnotqError(f"{path}: {error.strerror}.", "Check the path and its permissions.") from None
    except (ValueError, RecursionError) as error:
        raise _wrong(path, str(error)) from None
    if not isinstance(content, dict):
        raise _wrong(path, f"it holds a {type(content).__name__}")
    return content


def _time(path: Path, content: dict[str, Any]) -> int:
    value = content.get("time_ns")
    if not _is_number(value):
        raise _wrong(path, f"time_ns is {value!r}")
    return value


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _wrong(path: Path, what: str) -> AnnotqError:
    return AnnotqError(f"{path} is not what a recorder writes: {what}.")
