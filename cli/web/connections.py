"""The connections of the page: so many at most, and none that does nothing for long.

uvicorn counts requests, not connections, and waits for ever for a request that does not come. Each connection takes one of the
files that the process may open; without a bound, whoever opens a thousand of them keeps the shippers out.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 128
# For TLS and a whole request head; and between two requests.
REQUEST_SECONDS = 10.0
# For the answer to be made and to be read.
ANSWER_SECONDS = 120.0
_LOOK_SECONDS = 1.0


def most_connections() -> int:
    """MOST_CONNECTIONS, or a quarter of the files that may be open where that is less."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, max(4, files // 4))


class Connections:
    """Makes the protocol of each new connection, for uvicorn, and knows how many there are."""

    def __init__(self, tls: ssl.SSLContext | None, most: int | None = None) -> None:
        self.tls = tls
        self.most = most_connections() if most is None else most
        self.open: set[Connection] = set()

    def __call__(self, **given: Any) -> Connection:
        return Connection(self, H11Protocol(**given))

    def abort(self) -> None:
        """End all of them at once."""
        for connection in list(self.open):
            connection.abort()


class Connection(asyncio.Protocol):
    """One connection: counted before TLS begins, ended when it takes too long. HTTP itself is uvicorn's."""

    def __init__(self, all_of_them: Connections, http: H11Protocol) -> None:
        self._all = all_of_them
        self._http = http
        self._loop = asyncio.get_running_loop()
        self._bare: asyncio.Transport | None = None  # as accepted
        self._ready = False  # HTTP has begun
        self._early = bytearray()  # what came between the end of the handshake and that
        self._handshake: asyncio.Task[None] | None = None
        self._since = self._loop.time()  # when it began to wait, or to answer
        self._doing: tuple[object, bool] = (None, False)  # the request, and whether its answer is under way
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if len(self._all.open) >= self._all.most:
            transport.abort()
            return
        self._bare = transport
        self._all.open.add(self)
        self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)
        if self._all.tls is None:
            self._begin(transport)
        else:
            self._loop.call_soon(self._begin_tls, transport, self._all.tls)

    def _begin(self, transport: asyncio.Transport) -> None:
        self._http.connection_made(transport)
        self._ready = True
        if self._early:
            self._http.data_received(bytes(self._early))
            self._early.clear()

    def _begin_tls(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        # Before anything is read: only now has the transport begun to, see asyncio's _SelectorSocketTransport.
        transport.pause_reading()
        self._handshake = self._loop.create_task(self._shake_hands(transport, context))

    async def _shake_hands(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        try:
            secured = await self._loop.start_tls(
                transport,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=REQUEST_SECONDS,
                ssl_shutdown_timeout=1,
            )
        except (OSError, asyncio.CancelledError):  # ssl.SSLError too; its text is for the client, who has it
            self.abort()
            return
        assert secured is not None
        self._begin(secured)

    def _look(self) -> None:
        cycle = self._http.cycle
        answering = cycle is not None and not cycle.response_complete
        if self._doing[0] is not cycle or self._doing[1] != answering:
            self._doing, self._since = (cycle, answering), self._loop.time()
        if self._loop.time() - self._since > (ANSWER_SECONDS if answering else REQUEST_SECONDS):
            self.abort()
        else:
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)

    def abort(self) -> None:
        """End it without a word; a peer that does not read cannot hold it up."""
        self._end()
        if self._bare is not None:
            self._bare.abort()

    def _end(self) -> None:
        self._all.open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._handshake is not None and self._handshake is not asyncio.current_task():
            self._handshake.cancel()

    def data_received(self, data: bytes) -> None:
        if self._ready:
            self._http.data_received(data)
        else:
            self._early += data

    def eof_received(self) -> None:
        if self._ready:
            self._http.eof_received()

    def pause_writing(self) -> None:
        if self._ready:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        if self._ready:
            self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        if self._ready:
            self._http.connection_lost(exc)
