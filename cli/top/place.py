"""What is asked again and again: a collector over one connection, or a store file that is opened for each question."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Self

from annotq.agent.errors import AnnotqError
from annotq.cli.door import open_door
from annotq.cli.statement import Statement

if TYPE_CHECKING:
    import pyarrow as pa

    from annotq.cli.door import AnyDoor
    from annotq.collector.query import Limits

# So long the questions of other threads have to end, once they were stopped.
_END_SECONDS = 10.0


class Place:
    """A context manager; threads may ask at the same time. Leaving it ends their questions.

    A file that is held open can neither be written by others nor shows what they wrote: it is let go between questions.
    Raises AnnotqError for an endpoint that is none.
    """

    def __init__(self, place: Path | str, limits: Limits) -> None:
        self._place = place
        self._limits = limits
        self._remote = open_door(place, limits) if isinstance(place, str) else None
        self._lock = Lock()
        self._open: list[AnyDoor] = []
        self._closed = False
        self.name = str(place)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what other threads ask: an interpreter that ends while they are inside DuckDB or gRPC aborts the process."""
        with self._lock:
            self._closed = True
            asked = list(self._open)
        for door in asked:
            door.stop()
        until = time.monotonic() + _END_SECONDS
        while self._open and time.monotonic() < until:
            time.sleep(0.01)
        if self._remote is not None:
            self._remote.close()

    @contextmanager
    def door(self) -> Iterator[AnyDoor]:
        """For questions that belong together. Raises AnnotqError as open_door does, and after `close`."""
        door = self._remote or open_door(self._place, self._limits)
        try:
            with self._lock:
                if self._closed:
                    raise AnnotqError(f"{self.name} is not asked any more.")
                self._open.append(door)
            try:
                yield door
            finally:
                if door is not self._remote:
                    door.close()
                with self._lock:
                    self._open.remove(door)
        finally:
            if door is not self._remote:
                door.close()


def rows_of(door: AnyDoor, statement: Statement) -> list[dict[str, object]]:
    """The answer as dictionaries. Raises AnnotqError as the door does."""
    return answer(door, statement.sql, statement.parameters).to_pylist()


def answer(door: AnyDoor, sql: str, parameters: Sequence[object] = ()) -> pa.Table:
    """All rows. Raises AnnotqError as the door does, and when there are more than the limit: never a part of them."""
    found = door.ask(sql, parameters)
    if found.truncated:
        raise AnnotqError(f"The answer has more than {found.table.num_rows:,} rows.", "Choose a job with --job.")
    return found.table
