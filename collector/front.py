"""A second way to look at a collector, beside gRPC: what it hands to whoever serves one, and what it expects of it.

The collector knows no pages: `annotq serve --http` brings a front that makes them (cli/web).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry

from annotq.collector.answer import Answer
from annotq.collector.config import ServeConfig


@dataclass(frozen=True)
class Inside:
    """What a front may use of a collector, all of it read-only.

    answer: asks it, on the event loop. endpoint: its gRPC address, HOST:PORT. own_endpoint: the same service for other processes
    of this user, as gRPC names a Unix socket; it wants the token and no TLS. problem: why it does not serve, empty while it does.
    """

    config: ServeConfig
    answer: Answer
    registry: CollectorRegistry
    endpoint: str
    own_endpoint: str
    problem: Callable[[], str]


class Front(Protocol):
    """Runs on the collector's event loop."""

    async def start(self) -> str:
        """Listen; returns HOST:PORT. Raises AnnotqError when it cannot."""
        ...

    def drain(self) -> None:
        """The collector ends soon: from now on it is not healthy, and nothing new is begun."""
        ...

    async def stop(self) -> None:
        """Stop listening, and end within a few seconds."""
        ...


FrontFactory = Callable[[Inside], Front]
