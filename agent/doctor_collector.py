"""Whether the collector can be reached from here, takes this token, and how far its clock is from this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from annotq.agent import config, ping
from annotq.agent.channel import Access, access, as_error, open_channel, stub_on
from annotq.agent.errors import AnnotqError
from annotq.v1 import collector_pb2

if TYPE_CHECKING:
    from annotq.agent.doctor import Check

_SECONDS = 10.0
# Above this, durations of collectives between hosts say more than their clocks.
_POOR_ERROR_NS = 1_000_000


def collector_checks(endpoint: str | None, environ: Mapping[str, str]) -> Iterator[Check]:
    """endpoint: as --endpoint gives it; without it and ANNOTQ_ENDPOINT one line says that nothing is shipped."""
    from annotq.agent.doctor import Check

    if not (endpoint or config.endpoint(environ)):
        fix = f"Set {config.ENDPOINT}, use annotq run, or load the spool later with annotq ship."
        yield Check("warn", "collector", "none is named: what is recorded stays in the spool", fix)
        return
    try:
        way = access(endpoint, environ)
        channel = open_channel(way)
    except AnnotqError as error:
        yield Check("FAIL", "collector", error.message, error.hint)
        return
    with channel:
        yield from _asked(channel, way)


def _asked(channel: grpc.Channel, way: Access) -> Iterator[Check]:
    from annotq.agent.doctor import Check

    try:
        health: Any = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call,unused-ignore]
        reply = health.Check(health_pb2.HealthCheckRequest(), timeout=_SECONDS)
    except grpc.RpcError as error:
        told = as_error(error, way.endpoint)
        fix = told.hint
        if way.ca is None and config.TLS_CA not in fix and error.code() is grpc.StatusCode.UNAVAILABLE:
            fix += f" If it speaks TLS, set {config.TLS_CA}."
        yield Check("FAIL", "collector", told.message, fix)
        return
    serving = reply.status == health_pb2.HealthCheckResponse.SERVING
    secured = "TLS" if way.ca else "no TLS"
    if serving:
        yield Check("ok", "collector", f"{way.endpoint} is serving ({secured})")
    else:
        fix = f"annotq status --endpoint {way.endpoint} says what keeps it from committing."
        yield Check("warn", "collector", f"{way.endpoint} cannot commit just now ({secured})", fix)
    stub = stub_on(channel)
    try:
        status = stub.Status(collector_pb2.StatusRequest(), timeout=_SECONDS)
        yield Check("ok", "token", f"accepted by annotq {status.version}" if way.token else "none asked for")
        yield _clock(stub)
    except grpc.RpcError as error:
        told = as_error(error, way.endpoint)
        yield Check("FAIL", "token", told.message, told.hint)


def _clock(stub: Any) -> Check:
    """The fastest of a few pings bounds the offset by half its round trip."""
    from annotq.agent.doctor import Check

    samples = ping.burst(stub, ping.FIRST_BURST)
    best = min(samples, key=lambda s: (s.returned_ns - s.sent_ns) - (s.answered_ns - s.received_ns))
    offset = ((best.received_ns - best.sent_ns) + (best.answered_ns - best.returned_ns)) // 2
    error = max(0, (best.returned_ns - best.sent_ns) - (best.answered_ns - best.received_ns)) // 2
    found = f"the collector's is {offset / 1e6:+,.3f} ms from this one, known to {error / 1e6:,.3f} ms"
    if error > _POOR_ERROR_NS:
        return Check("warn", "clock", found, "A slow way to the collector: times of different hosts compare no better.")
    return Check("ok", "clock", found)
