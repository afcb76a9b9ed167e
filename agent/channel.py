"""The way to a collector: address, TLS and token, for the shipper and for every command that asks one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from annotq.agent import config
from annotq.agent.errors import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, AnnotqError
from annotq.agent.wire import LARGEST_MESSAGE_BYTES
from annotq.v1.collector_pb2_grpc import CollectorStub

_SLACK_BYTES = 1 << 20  # a batch's own fields beside its payload

# A peer that died without a word (power, network) is noticed after KEEPALIVE + TIMEOUT. Pings only travel while a call is
# open; the collector allows them this often.
KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 10_000


@dataclass(frozen=True)
class Access:
    """Where the collector is and what it wants to see. Without `ca` the connection is not encrypted."""

    endpoint: str
    token: str | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


def access(endpoint: str | None = None, environ: Mapping[str, str] = os.environ) -> Access:
    """What the environment says; the argument wins over ANNOTQ_ENDPOINT. Raises AnnotqError for what cannot be used."""
    found = endpoint or config.endpoint(environ)
    if not found:
        raise AnnotqError("No collector is named.", f"Give --endpoint HOST:PORT or set {config.ENDPOINT}.", EXIT_USAGE)
    config.checked_endpoint(found)
    ca, certificate, key = (
        Path(value).expanduser() if (value := environ.get(name, "").strip()) else None
        for name in (config.TLS_CA, config.TLS_CERT, config.TLS_KEY)
    )
    if (certificate is None) != (key is None):
        raise AnnotqError(f"{config.TLS_CERT} and {config.TLS_KEY} belong together, one of them is missing.")
    if certificate and not ca:
        raise AnnotqError(f"{config.TLS_CERT} is set without {config.TLS_CA}, which turns TLS on.")
    return Access(found, config.token(environ), ca, certificate, key)


def open_channel(access: Access, *, own_connection: bool = False) -> grpc.Channel:
    """A channel, not yet connected. own_connection: not shared with other channels to the same collector.

    Raises AnnotqError when a certificate file cannot be read.
    """
    options: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", LARGEST_MESSAGE_BYTES + _SLACK_BYTES),
        ("grpc.max_receive_message_length", LARGEST_MESSAGE_BYTES + _SLACK_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        # In newer versions of gRPC the shorter of the two counts, and this one is a minute by default.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        # Ours is the loop that waits between attempts; gRPC's own grows to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.enable_retries", 0),
        # A collector is a machine next door: what http_proxy names is for the web, and loses the reason of a failure.
        ("grpc.enable_http_proxy", 0),
    ]
    if own_connection:
        options.append(("grpc.use_local_subchannel_pool", 1))
    if access.ca is None:
        channel = grpc.insecure_channel(access.endpoint, options)
    else:
        credentials = grpc.ssl_channel_credentials(_read(access.ca), _read(access.key), _read(access.certificate))
        channel = grpc.secure_channel(access.endpoint, credentials, options)
    return grpc.intercept_channel(channel, _Token(access.token)) if access.token else channel


def stub_on(channel: grpc.Channel) -> Any:
    """The collector's methods (protos/annotq/v1/collector.proto) on a channel."""
    return CollectorStub(channel)  # type: ignore[no-untyped-call]


def as_error(error: grpc.RpcError, endpoint: str) -> AnnotqError:
    """What a failed call means to a user, with the exit code."""
    code, details = error.code(), (error.details() or "").strip()
    message, _, hint = details.partition("\n")
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            what = f"The collector at {endpoint} cannot be reached ({message})."
            return AnnotqError(what, _way_to_reach(details), EXIT_UNREACHABLE)
        case grpc.StatusCode.UNAUTHENTICATED:
            what = f"The collector at {endpoint} does not accept this token ({message})."
            return AnnotqError(what, "Set ANNOTQ_TOKEN or ANNOTQ_TOKEN_FILE to the collector's token.")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return AnnotqError(f"The collector at {endpoint} did not answer in time ({message}).", hint)
        case _:
            return AnnotqError(message or f"The collector at {endpoint} answered {code.name}.", hint, EXIT_FAILED)


# gRPC's words for the two ends not agreeing on TLS.
_IN_TLS = re.compile(r"handshake|ssl|tls|certificate", re.IGNORECASE)
_CUT_OFF = re.compile(r"closed|reset|settings|broken pipe|http1", re.IGNORECASE)


def _way_to_reach(details: str) -> str:
    """What to try when there is no connection, by what gRPC says of it."""
    if _IN_TLS.search(details):
        return (
            f"Check {config.TLS_CA}: the certificates that the collector's is checked against, which has to name the host "
            "of the endpoint. For a collector without TLS, unset it."
        )
    if _CUT_OFF.search(details):
        return f"Somebody listens there and hangs up: if the collector speaks TLS, set {config.TLS_CA}."
    return f"Start one with `annotq serve`, or check {config.ENDPOINT}."


class _Token(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the token to every call. Not call credentials: gRPC sends those over TLS only."""

    def __init__(self, token: str) -> None:
        self._header = ("authorization", f"Bearer {token}")

    def intercept_unary_unary(self, go_on: Callable[..., Any], details: Any, request: Any) -> Any:
        return go_on(self._with_token(details), request)

    def intercept_unary_stream(self, go_on: Callable[..., Any], details: Any, request: Any) -> Any:
        return go_on(self._with_token(details), request)

    def intercept_stream_stream(self, go_on: Callable[..., Any], details: Any, requests: Any) -> Any:
        return go_on(self._with_token(details), requests)

    def _with_token(self, details: Any) -> Any:
        return _Details(
            details.method,
            details.timeout,
            [*(details.metadata or ()), self._header],
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )


@dataclass(frozen=True)
class _Details(grpc.ClientCallDetails):
    method: Any
    timeout: Any
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise AnnotqError(f"{path}: {error.strerror}.", "Check the path and its permissions.") from None
