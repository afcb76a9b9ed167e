"""A real collector with its page, and requests as browsers and programs send them."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectors import Collector, process, trace_batches
from traces import annotation, kernel, launch, step, write_trace

BROWSER = {"Accept": "text/html,application/xhtml+xml"}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: http.client.HTTPMessage
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.content)


class WebCollector(Collector):
    """`annotq serve --http` on two free ports."""

    def __init__(
        self, db: Path, *options: str, http: str = "127.0.0.1:0", tls: ssl.SSLContext | None = None, **more: Any
    ):
        super().__init__(db, "--http", http, *options, **more)
        self.tls = tls

    def get(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET", body: str = "") -> Reply:
        return request(self.http, path, headers or {}, method, body, self.tls)

    def page(self, path: str, headers: Mapping[str, str] | None = None, seconds: float = 60) -> Reply:
        """As a browser that comes back until the page is made."""
        deadline = time.monotonic() + seconds
        while True:
            reply = self.get(path, {**BROWSER, **(headers or {})})
            if reply.status != 202 or time.monotonic() > deadline:
                return reply
            time.sleep(0.2)

    def post(self, path: str, body: str, headers: Mapping[str, str] | None = None) -> Reply:
        form = {"Content-Type": "application/x-www-form-urlencoded", **BROWSER}
        return self.get(path, {**form, **(headers or {})}, "POST", body)

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the log says, in order."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [event for event in map(json.loads, lines) if event["event"] == name]


def request(
    address: str,
    path: str,
    headers: Mapping[str, str],
    method: str = "GET",
    body: str = "",
    tls: ssl.SSLContext | None = None,
) -> Reply:
    host, _, port = address.rpartition(":")
    connection = (
        http.client.HTTPConnection(host, int(port), timeout=30)
        if tls is None
        else http.client.HTTPSConnection(host, int(port), timeout=30, context=tls)
    )
    try:
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        if body:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body.encode() or None)
        reply = connection.getresponse()
        return Reply(reply.status, reply.headers, reply.read())
    finally:
        connection.close()


STEPS = 10  # of one window; a kernel in each


def ship_trace(collector: Collector, folder: Path, rank: int = 0, number: int = 1, **fields: Any) -> int:
    """A rank of job "live" reports, and sends one window: STEPS steps of one region with one kernel; returns its process id."""
    process_id = collector.register(process(rank, **fields)).process_id
    events = []
    for place in range(STEPS):
        at = 1000 * (STEPS * number + place)
        correlation = STEPS * number + place + 1
        events += [step(place, at, 900), annotation("mlp", at + 1, 100), launch(at + 2, correlation=correlation)]
        events.append(kernel("gemm", at + 50, 20 + place % 3, correlation=correlation))
    folder.mkdir(parents=True, exist_ok=True)
    path = write_trace(folder / f"rank{rank}.{number}.json", events, rank=rank)
    acks = collector.ship(trace_batches(process_id, path, rank, number))
    assert [ack.error for ack in acks if ack.error] == []
    return process_id


def eventually(holds: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.1)
