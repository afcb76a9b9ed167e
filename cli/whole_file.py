"""A file that appears under its name when it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from annotq.agent.errors import AnnotqError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives the path to write to: a file beside `path` that takes its place at the end, so that a broken run leaves the old
    file as it was. A link stays a link; what is no regular file (/dev/null, a pipe) is written to and not replaced.

    Raises AnnotqError when it cannot be written.
    """
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            yield target
            return
        beside = target.with_name(f".{target.name}.partial")
        try:
            yield beside
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise AnnotqError(f"{path} cannot be written: {error.strerror or error}.") from None
