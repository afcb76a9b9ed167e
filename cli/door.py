"""Where a reading command asks: a store file, or a collector."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from annotq.collector.query import Answer, Limits


class AnyDoor(Protocol):
    """What collector.query.Door and remote_door.RemoteDoor have in common. A context manager."""

    @property
    def name(self) -> str: ...
    @property
    def limits(self) -> Limits: ...
    def ask(self, sql: str, parameters: Sequence[object] = (), *, limits: Limits | None = None) -> Answer: ...
    def views(self) -> list[str]: ...
    def close(self) -> None: ...
    def stop(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_door(place: Path | str, limits: Limits) -> AnyDoor:
    """The store file (Path) or the collector at HOST:PORT (str). Raises AnnotqError as Door and RemoteDoor do."""
    if isinstance(place, Path):
        from annotq.collector.query import Door

        return Door(place, limits)
    from annotq.cli.remote_door import RemoteDoor

    return RemoteDoor(place, limits)
