"""Who may talk to the collector: TLS, certificates of clients, the shared token, and where it listens without them."""

from __future__ import annotations

import hmac
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from annotq.agent.errors import EXIT_USAGE, AnnotqError
from annotq.collector.config import ServeConfig

SHORTEST_TOKEN = 16
_OPEN = ("/grpc.health.v1.Health/",)


def check_listening(config: ServeConfig) -> None:
    """Raise AnnotqError (usage) when the address can be reached by others and nothing keeps them out."""
    if config.token and len(config.token) < SHORTEST_TOKEN:
        raise AnnotqError(
            f"The token has {len(config.token)} characters; {SHORTEST_TOKEN} are the least.",
            "Make one: python -c 'import secrets; print(secrets.token_urlsafe())'",
            EXIT_USAGE,
        )
    if bool(config.tls_cert) != bool(config.tls_key):
        raise AnnotqError("--tls-cert and --tls-key belong together.", "Give both.", EXIT_USAGE)
    if config.tls_client_ca and not config.tls_cert:
        raise AnnotqError("--tls-client-ca needs --tls-cert and --tls-key.", "Give all three.", EXIT_USAGE)
    if config.insecure or _is_loopback(config.host) or (config.tls_cert and (config.token or config.tls_client_ca)):
        return
    missing = "a token (ANNOTQ_TOKEN, --token-file) or client certificates (--tls-client-ca)"
    if not config.tls_cert:
        missing = f"TLS (--tls-cert, --tls-key) and {missing}"
        if config.token:
            missing = "TLS (--tls-cert, --tls-key): without it the token travels in the clear"
    raise AnnotqError(
        f"{config.host} can be reached from other machines, and the collector lacks {missing}.",
        "Add it, listen on 127.0.0.1, or say --insecure on a network that you trust.",
        EXIT_USAGE,
    )


def check_host(host: str) -> None:
    """Raise AnnotqError (usage) for a host that does not exist, which would else be taken for one that others can reach."""
    try:
        socket.getaddrinfo(host.strip("[]"), None)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise AnnotqError(
            f"There is no host {host} to listen on: {reason}.",
            "Choose an address of this machine for --listen: 127.0.0.1, or 0.0.0.0 for all.",
            EXIT_USAGE,
        ) from None


def credentials(config: ServeConfig) -> grpc.ServerCredentials | None:
    """TLS as configured; None without. Raises AnnotqError for a file that cannot be read, or is no authority."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    authority = None if config.tls_client_ca is None else _authority(config.tls_client_ca)
    pair = (_read(config.tls_key), _read(config.tls_cert))
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)


class TokenCheck(grpc.aio.ServerInterceptor):
    """Lets a call through when it carries the token; health checks need none."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's own handler, or one that refuses."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(_OPEN):
            return handler
        given = [value for key, value in handler_call_details.invocation_metadata or () if key == "authorization"]
        if len(given) == 1 and hmac.compare_digest(_bytes(given[0]), self._expected):
            return handler
        return _refusing(handler, "the token is wrong" if given else "this collector wants a token (ANNOTQ_TOKEN)")


def _refusing(handler: Any, why: str) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of the same shape that answers UNAUTHENTICATED."""

    async def refuse(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)

    async def refuse_streaming(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)
        yield  # pragma: no cover - makes this a generator, as the server expects of a streaming method

    shape = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
    make = getattr(grpc, f"{shape[0]}_{shape[1]}_rpc_method_handler")
    method = refuse_streaming if handler.response_streaming else refuse
    return make(method, handler.request_deserializer, handler.response_serializer)  # type: ignore[no-any-return]


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _authority(path: Path) -> bytes:
    """The file's content; gRPC would take anything, and then let nobody in."""
    content = _read(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=content.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        raise AnnotqError(
            f"--tls-client-ca {path} holds no certificates.", "It has to be a PEM file: -----BEGIN CERTIFICATE-----"
        ) from None
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AnnotqError(f"{path}: {error.strerror}.", "Check the path and its permissions.") from None
