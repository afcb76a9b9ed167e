"""Connections to the page cannot keep the shippers out: not many, not slow ones, not silent ones."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from collectors import note, process
from web_collector import WebCollector, eventually

from annotq.cli.web import connections
from annotq.cli.web.connections import MOST_CONNECTIONS, Connections, most_connections
from annotq.cli.web.server import _Server

FILES = 256  # that the collector may open; a quarter of them for the page
MANY = 1000


@pytest.fixture
def files() -> Iterator[None]:
    """This process may open enough to be a nuisance."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5)


def is_open(peer: socket.socket) -> bool:
    """Whether the other end has not hung up."""
    peer.setblocking(False)
    try:
        return peer.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def open_files(collector: WebCollector) -> int:
    return len(list(Path(f"/proc/{collector.process.pid}/fd").iterdir()))


def test_a_thousand_connections_leave_the_shippers_alone(tmp_path: Path, files: None) -> None:
    limited = ["prlimit", f"--nofile={FILES}"]
    with WebCollector(tmp_path / "store.duckdb", before=limited) as collector, ExitStack() as peers:
        before = open_files(collector)
        held = [peers.enter_context(closing(dial(collector.http))) for _ in range(MANY)]
        eventually(lambda: sum(map(is_open, held)) <= FILES // 4)
        assert open_files(collector) <= before + FILES // 4
        process_id = collector.register(process()).process_id
        acks = collector.ship(note(process_id, number, "x") for number in range(1, 20))
        assert len(acks) == 19 and not any(ack.error for ack in acks)
        assert collector.ask("SELECT count(*) FROM agents") == [(1,)]
        # Who says nothing has to go, and then there is room for people again.
        eventually(lambda: not any(map(is_open, held)), connections.REQUEST_SECONDS + 10)
        assert collector.get("/").status == 200


def test_how_many_there_may_be_depends_on_the_files(files: None) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most_connections() == MOST_CONNECTIONS
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        assert most_connections() == 25
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def served(application: Any, all_of_them: Connections) -> AsyncIterator[int]:
    """The port of a server with these connections."""
    make: Any = all_of_them
    server = _Server(
        uvicorn.Config(application, http=make, ws="none", lifespan="off", log_config=None, access_log=False)
    )
    listening = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve([listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        all_of_them.abort()
        server.should_exit = True
        await running


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """Sends for as long as somebody takes it."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(10_000):
        await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD, HEAD + b"\r\n" + HEAD])
def test_a_request_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """None, a part of one, or a part of a second one: a byte now and then does not help."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(connections, "_LOOK_SECONDS", 0.1)

    async def run() -> bool:
        all_of_them = Connections(None)
        async with served(hello, all_of_them) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            await asyncio.sleep(0.2)
            was_open = bool(all_of_them.open)
            for _ in range(100):
                if sent:
                    writer.write(b"X")
                await asyncio.sleep(0.1)
                if not all_of_them.open:
                    break
            writer.close()
            return was_open and not all_of_them.open

    assert asyncio.run(run())


def test_requests_that_come_keep_their_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(connections, "_LOOK_SECONDS", 0.1)

    async def run() -> list[bytes]:
        async with served(hello, Connections(None)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            found = []
            for _ in range(10):
                writer.write(HEAD + b"\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                found.append(head[:15] + await reader.readexactly(2))
                await asyncio.sleep(0.15)
            writer.close()
            return found

    assert asyncio.run(run()) == [b"HTTP/1.1 200 OKhi"] * 10


def test_a_reader_that_does_not_read_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(connections, "_LOOK_SECONDS", 0.1)

    async def run() -> bool:
        all_of_them = Connections(None)
        async with served(endless, all_of_them) as port:
            with closing(socket.create_connection(("127.0.0.1", port))) as peer:
                peer.sendall(HEAD + b"\r\n")
                for _ in range(100):
                    await asyncio.sleep(0.1)
                    if not all_of_them.open:
                        with suppress(OSError):
                            peer.recv(1)
                        return True
        return False

    assert asyncio.run(run())


def test_one_more_than_there_may_be_is_sent_away() -> None:
    async def run() -> tuple[bytes, bytes]:
        all_of_them = Connections(None, most=1)
        async with served(hello, all_of_them) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(0.1)
            other, late = await asyncio.open_connection("127.0.0.1", port)
            try:
                refused = await other.read(1)
            except ConnectionResetError:
                refused = b""
            late.close()
            writer.write(HEAD + b"Connection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
            return refused, answer[-2:]

    assert asyncio.run(run()) == (b"", b"hi")
