"""The gRPC server: the collector's methods, health and reflection, and the port it listens on."""

from __future__ import annotations

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from annotq.agent.errors import AnnotqError
from annotq.agent.wire import LARGEST_MESSAGE_BYTES
from annotq.collector.answer import Answer
from annotq.collector.config import ServeConfig
from annotq.collector.receive import Receive
from annotq.collector.security import TokenCheck, credentials
from annotq.v1 import collector_pb2, collector_pb2_grpc

COLLECTOR = collector_pb2.DESCRIPTOR.services_by_name["Collector"].full_name
_OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST_MESSAGE_BYTES + (1 << 20)),
    ("grpc.so_reuseport", 0),  # a second collector on the same port is an error, not a lottery
    # What a stream may send ahead of being read stays small: the queue, not gRPC, is where batches wait.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]


class Service:
    """The methods of annotq.v1.Collector, from where they are."""

    def __init__(self, receive: Receive, answer: Answer) -> None:
        self.Register, self.Ship = receive.Register, receive.Ship
        self.SyncClock, self.Beat = receive.SyncClock, receive.Beat
        self.Query, self.Status = answer.Query, answer.Status


class Health:
    """What grpc.health.v1 says: of the server and of the collector's service."""

    def __init__(self) -> None:
        self.servicer = health.HealthServicer()

    async def set(self, healthy: bool) -> None:
        states = health_pb2.HealthCheckResponse
        for name in ("", COLLECTOR):
            await self.servicer.set(name, states.SERVING if healthy else states.NOT_SERVING)


def make_server(config: ServeConfig, service: Service, checks: Health) -> tuple[grpc.aio.Server, int]:
    """A server that is not started yet, and its port. Raises AnnotqError when the address is taken or TLS is not right."""
    server = grpc.aio.server(interceptors=[TokenCheck(config.token)] if config.token else [], options=_OPTIONS)
    collector_pb2_grpc.add_CollectorServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(checks.servicer, server)
    reflection.enable_server_reflection((COLLECTOR, HEALTH, reflection.SERVICE_NAME), server)
    tls = credentials(config)
    where = f"{config.host}:{config.port}"
    try:
        port = server.add_insecure_port(where) if tls is None else server.add_secure_port(where, tls)
    except RuntimeError as error:
        raise AnnotqError(
            f"The collector cannot listen on {where}: {error}.",
            "Choose another --listen (port 0: any free one); with TLS check certificate and key.",
        ) from None
    return server, port


def add_own_port(server: grpc.aio.Server, endpoint: str) -> None:
    """Let processes of this user in by a Unix socket in a folder of theirs alone. Raises AnnotqError when it cannot be made."""
    try:
        server.add_insecure_port(endpoint)
    except RuntimeError as error:
        raise AnnotqError(
            f"The collector cannot listen on {endpoint}: {error}.", "Set TMPDIR to a folder with a short path."
        ) from None
