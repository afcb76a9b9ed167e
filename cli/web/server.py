"""The page's server: its address and TLS, uvicorn on the collector's event loop, and its end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog
import uvicorn

from annotq.agent.errors import AnnotqError
from annotq.cli.web.access import Hosts, Tokens, check_http
from annotq.cli.web.application import Application
from annotq.cli.web.connections import Connections
from annotq.cli.web.renders import Renders
from annotq.collector.config import ServeConfig
from annotq.collector.front import Inside

# For answers that are under way when the collector ends.
LAST_SECONDS = 2
_LARGEST_HEAD_BYTES = 16 << 10
_BACKLOG = 64

log = structlog.get_logger()


@dataclass(frozen=True)
class HttpOptions:
    """--http and --http-name."""

    host: str
    port: int
    names: tuple[str, ...] = ()


class WebFront:
    """The collector.front.Front that `annotq serve --http` brings.

    Raises AnnotqError when it may not listen there (check_http), or cannot.
    """

    def __init__(self, options: HttpOptions, inside: Inside) -> None:
        config = inside.config
        check_http(config, options.host)
        tls = _tls(config)
        self._socket = _listening(options)
        port = self._socket.getsockname()[1]
        self._address = f"{options.host}:{port}"
        self._renders = Renders(inside.endpoint, inside.own_endpoint, config.token)
        tokens = Tokens(config.token, port, tls is not None)
        hosts = Hosts(options.host, options.names, tls is not None)
        self._application = Application(inside, self._renders, tokens, hosts)
        self._connections = Connections(tls)
        self._server = _Server(_settings(self._application, self._connections))
        self._running: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Begin to answer."""
        self._running = asyncio.create_task(self._server.serve([self._socket]))
        while not self._server.started and not self._running.done():
            await asyncio.sleep(0.01)
        if self._running.done():
            self._running.result()
        return self._address

    def drain(self) -> None:
        """Not healthy any more, and no page is made any more."""
        self._application.draining = True
        self._ending = asyncio.create_task(self._renders.stop())

    async def stop(self) -> None:
        """End within LAST_SECONDS and a little."""
        self._server.should_exit = True
        await self._renders.stop()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=LAST_SECONDS + 1)
        self._connections.abort()
        self._socket.close()


class _Server(uvicorn.Server):
    """The signals are the collector's: it has things to finish first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _settings(application: Application, connections: Connections) -> uvicorn.Config:
    make: Any = connections  # uvicorn wants a class and calls it
    return uvicorn.Config(
        application.guarded,
        http=make,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # Guard says what fails; what anybody may send is no news
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=LAST_SECONDS,
        h11_max_incomplete_event_size=_LARGEST_HEAD_BYTES,
        backlog=_BACKLOG,
    )


def _listening(options: HttpOptions) -> socket.socket:
    host = options.host.strip("[]")
    try:
        # localhost is two addresses; people and proxies try the older one.
        found_addresses = socket.getaddrinfo(host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = min(found_addresses, key=lambda each: each[0] != socket.AF_INET)
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(where)
            found.listen(_BACKLOG)
            found.setblocking(False)
        except OSError:
            found.close()
            raise
    except OSError as error:
        what = f"The page cannot listen on {options.host}:{options.port}: {error.strerror}."
        raise AnnotqError(what, "Choose another --http (port 0: any free one).") from None
    return found


def _tls(config: ServeConfig) -> ssl.SSLContext | None:
    """TLS with the files of gRPC. Raises AnnotqError for files that cannot be used."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
        if config.tls_client_ca is not None:
            context.load_verify_locations(config.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise AnnotqError(f"TLS of the page cannot begin: {error}.", "Check certificate, key and authority.") from None
    return context
