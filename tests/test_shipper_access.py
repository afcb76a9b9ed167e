"""How a shipper finds and opens the collector: address, token, certificates, and how long it waits between attempts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from scripted_collector import ScriptedCollector
from spools import identity
from test_collector_security import Authority

from annotq.agent.backoff import Backoff
from annotq.agent.channel import Access, access, as_error, open_channel, stub_on
from annotq.agent.delivery import request_of
from annotq.agent.errors import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, AnnotqError
from annotq.v1 import collector_pb2 as pb


def test_the_environment_says_how_to_reach_the_collector(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a secret of some length\n")
    environ = {
        "ANNOTQ_ENDPOINT": "collector:4517",
        "ANNOTQ_TOKEN_FILE": str(tmp_path / "token"),
        "ANNOTQ_TLS_CA": "ca.pem",
        "ANNOTQ_TLS_CERT": "cert.pem",
        "ANNOTQ_TLS_KEY": "key.pem",
    }
    files = (Path("ca.pem"), Path("cert.pem"), Path("key.pem"))
    assert access(None, environ) == Access("collector:4517", "a secret of some length", *files)
    assert access("other:1", {}) == Access("other:1")


@pytest.mark.parametrize(
    ("endpoint", "environ", "message", "code"),
    [
        (None, {}, "No collector is named.", EXIT_USAGE),
        ("collector", {}, "'collector' is no HOST:PORT.", EXIT_USAGE),
        ("http://collector:80", {}, "'http://collector:80' is no HOST:PORT.", EXIT_USAGE),
        ("collector:99999", {}, "'collector:99999' is no HOST:PORT.", EXIT_USAGE),
        ("c:1", {"ANNOTQ_TLS_CERT": "c", "ANNOTQ_TLS_CA": "a"}, "belong together, one of them is missing", EXIT_FAILED),
        ("c:1", {"ANNOTQ_TLS_CERT": "c", "ANNOTQ_TLS_KEY": "k"}, "is set without ANNOTQ_TLS_CA", EXIT_FAILED),
    ],
)
def test_what_cannot_be_used_is_said(endpoint: str | None, environ: dict[str, str], message: str, code: int) -> None:
    with pytest.raises(AnnotqError) as raised:
        access(endpoint, environ)
    assert message in raised.value.message
    assert raised.value.exit_code == code


def test_a_certificate_file_that_is_not_there_is_named() -> None:
    with pytest.raises(AnnotqError, match=r"nowhere\.pem: No such file"):
        open_channel(Access("c:1", ca=Path("nowhere.pem")))


class Listening(ScriptedCollector):
    """Keeps the authorization of every call."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterReply:  # noqa: N802
        self.heard.append(dict(context.invocation_metadata()).get("authorization", ""))
        return super().Register(request, context)

    def Ship(self, requests: Any, context: Any) -> Any:  # noqa: N802
        self.heard.append(dict(context.invocation_metadata()).get("authorization", ""))
        return super().Ship(requests, context)


@pytest.mark.parametrize(("token", "header"), [("secret", "Bearer secret"), (None, "")])
def test_the_token_goes_with_every_call(token: str | None, header: str) -> None:
    with Listening() as collector, open_channel(Access(collector.endpoint, token)) as channel:
        stub = stub_on(channel)
        stub.Register(request_of(identity()), timeout=10)
        batch = pb.Batch(process_id=1000, sequence=1, kind=pb.KIND_NOTE)
        assert [ack.sequence for ack in stub.Ship(iter([batch]), timeout=10)] == [1]
    assert collector.heard == [header, header]


def test_a_failed_call_becomes_a_sentence_and_an_exit_code() -> None:
    with ScriptedCollector() as collector:
        collector.refuse_process = lambda _: (grpc.StatusCode.UNAUTHENTICATED, "no token")
        with open_channel(Access(collector.endpoint)) as channel, pytest.raises(grpc.RpcError) as refused:
            stub_on(channel).Register(request_of(identity()), timeout=10)
        with open_channel(Access("127.0.0.1:9")) as channel, pytest.raises(grpc.RpcError) as away:
            stub_on(channel).Register(request_of(identity()), timeout=10)
    wrong_token = as_error(refused.value, collector.endpoint)
    assert "does not accept this token (no token)" in wrong_token.message
    assert "ANNOTQ_TOKEN" in wrong_token.hint
    assert as_error(away.value, "127.0.0.1:9").exit_code == EXIT_UNREACHABLE


def test_waits_grow_to_ten_seconds_and_differ_from_node_to_node() -> None:
    waits = [[backoff.next() for _ in range(40)] for backoff in (Backoff(Random(seed)) for seed in range(50))]
    for place in range(40):
        limit = min(10.0, 0.1 * 2**place)
        column = [row[place] for row in waits]
        assert 0 <= min(column) < 0.2 * limit
        assert 0.8 * limit < max(column) <= limit
        assert len(set(column)) == 50
    again = Backoff(Random(1))
    again.next()
    again.reset()
    assert again.next() <= 0.1


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Path]]:
    """Address of a server that speaks TLS, the authority of its certificate, and another."""
    authority, folder = Authority("ours"), tmp_path_factory.mktemp("tls")
    (folder / "ca.pem").write_bytes(authority.pair.certificate)
    (folder / "other.pem").write_bytes(Authority("others").pair.certificate)
    pair = authority.issue("collector")
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(pair.key, pair.certificate)]))
    server.start()
    yield f"127.0.0.1:{port}", folder / "ca.pem", folder / "other.pem"
    server.stop(0).wait()


def failure(way: Access) -> AnnotqError:
    """What a call to nowhere in particular fails with."""
    with open_channel(way) as channel, pytest.raises(grpc.RpcError) as failed:
        stub_on(channel).Register(request_of(identity()), timeout=10)
    return as_error(failed.value, way.endpoint)


def test_a_connection_that_fails_over_tls_is_told_the_variable(tls: tuple[str, Path, Path]) -> None:
    address, ca, other = tls
    assert "if the collector speaks TLS, set ANNOTQ_TLS_CA" in failure(Access(address)).hint
    assert "Check ANNOTQ_TLS_CA" in failure(Access(address, ca=other)).hint
    with ScriptedCollector() as collector:
        assert "For a collector without TLS, unset it" in failure(Access(collector.endpoint, ca=ca)).hint
    assert "annotq serve" in failure(Access("127.0.0.1:9")).hint
    assert failure(Access(address, ca=ca)).exit_code == EXIT_FAILED  # it answers: no such method


def test_a_proxy_for_the_web_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with ScriptedCollector() as collector, open_channel(Access(f"0.0.0.0:{collector.port}")) as channel:
        # An address that is not obviously this machine.
        assert stub_on(channel).Register(request_of(identity()), timeout=10).process_id == 1000
