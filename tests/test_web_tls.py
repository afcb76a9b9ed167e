"""The page with TLS: the same certificate, authority and token as gRPC."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import grpc
import pytest
from test_collector_security import Authority, Pair
from test_web_connections import dial, is_open
from web_collector import BROWSER, WebCollector, eventually, ship_trace

from annotq.cli.web import connections

TOKEN = "correct horse battery staple"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("ours")


def options(folder: Path, **contents: bytes) -> list[str]:
    """The files, and the options that name them."""
    found = []
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        found += [f"--tls-{name.replace('_', '-')}", str(folder / name)]
    return found


def client(folder: Path, authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    """Trusts the authority, and shows a certificate when it has one."""
    context = ssl.create_default_context(cadata=authority.pair.certificate.decode())
    if pair is not None:
        file = folder / f"{id(pair)}.pem"
        file.write_bytes(pair.certificate + pair.key)
        context.load_cert_chain(file)
    return context


@pytest.fixture(scope="module")
def with_token(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[WebCollector]:
    folder = tmp_path_factory.mktemp("tls")
    server = authority.issue("server")
    files = options(folder, cert=server.certificate, key=server.key)
    tls = client(folder, authority)
    credentials = grpc.ssl_channel_credentials(authority.pair.certificate)
    with WebCollector(
        folder / "store.duckdb", *files, tls=tls, credentials=credentials, environment={"ANNOTQ_TOKEN": TOKEN}
    ) as started:
        yield started


def test_a_login_over_tls_sets_a_cookie_that_leaves_only_over_tls(with_token: WebCollector) -> None:
    assert with_token.get("/", BROWSER).status == 401
    reply = with_token.post("/login", urlencode({"token": TOKEN}), {"Host": "collector.example"})
    cookie = reply.headers["Set-Cookie"]
    assert cookie.startswith("__Host-annotq-") and "; Secure" in cookie
    assert with_token.get("/", {**BROWSER, "Cookie": cookie.partition(";")[0]}).status == 200


def test_plain_http_gets_nothing(with_token: WebCollector) -> None:
    with closing(dial(with_token.http)) as peer:
        peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        try:
            said = peer.recv(1000)
        except ConnectionResetError:
            said = b""
    assert b"HTTP" not in said
    assert with_token.get("/healthz").status == 200


def test_who_does_not_begin_tls_is_sent_away(with_token: WebCollector) -> None:
    with closing(dial(with_token.http)) as silent:
        assert with_token.get("/healthz").status == 200
        eventually(lambda: not is_open(silent), connections.REQUEST_SECONDS + 10)


def test_reports_are_made_for_who_has_a_certificate(tmp_path: Path, authority: Authority) -> None:
    """The process that makes them has none: it comes in by a socket of its own."""
    server, person = authority.issue("server"), authority.issue("person")
    stranger = Authority("theirs").issue("stranger")
    files = options(tmp_path, cert=server.certificate, key=server.key, client_ca=authority.pair.certificate)
    credentials = grpc.ssl_channel_credentials(authority.pair.certificate, person.key, person.certificate)
    tls = client(tmp_path, authority, person)
    with WebCollector(tmp_path / "store.duckdb", *files, tls=tls, credentials=credentials) as collector:
        ship_trace(collector, tmp_path)
        assert "<h1>live</h1>" in collector.page("/jobs/live").text
        for context in (client(tmp_path, authority), client(tmp_path, authority, stranger)):
            collector.tls = context
            for path in ("/healthz", "/"):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    collector.get(path)
