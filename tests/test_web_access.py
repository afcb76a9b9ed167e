"""Who sees the page: the token as header or as cookie, the Host header, forms, methods, and what every answer bears."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlencode

import pytest
from web_collector import BROWSER, WebCollector

from annotq.agent.errors import AnnotqError
from annotq.cli.web.access import LOGIN_SECONDS, Hosts, Tokens, check_http
from annotq.cli.web.connections import REQUEST_SECONDS
from annotq.collector.config import ServeConfig

TOKEN = "correct horse battery staple"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PRIVATE = ["/", "/jobs/live", "/jobs/a/against/b", "/compare", "/api/jobs", "/metrics", "/nowhere"]


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebCollector]:
    path = tmp_path_factory.mktemp("web") / "store.duckdb"
    with WebCollector(path, environment={"ANNOTQ_TOKEN": TOKEN}) as started:
        yield started


@pytest.fixture(scope="module")
def open_collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebCollector]:
    with WebCollector(tmp_path_factory.mktemp("open") / "store.duckdb", "--http-name", "jobs.example") as started:
        yield started


def login(collector: WebCollector, **fields: str) -> tuple[int, str, str]:
    """Status, the cookie as the browser sends it back, and where the answer leads."""
    reply = collector.post("/login", urlencode(fields))
    cookie = reply.headers.get("Set-Cookie", "").partition(";")[0]
    return reply.status, cookie, reply.headers.get("Location", "")


@pytest.mark.parametrize("path", PRIVATE)
@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "wants a token"),
        ({"Authorization": "Bearer wrong horse battery staple"}, "The token is wrong"),
        ({"Authorization": TOKEN}, "The token is wrong"),
        ({"Authorization": f"Bearer {TOKEN}x"}, "The token is wrong"),
        ({"Authorization": f"Basic {TOKEN}"}, "The token is wrong"),
        ({"Cookie": f"annotq={TOKEN}"}, "wants a token"),
        ({"Cookie": 'annotq="\\'}, "wants a token"),
    ],
)
def test_every_page_wants_the_token(collector: WebCollector, path: str, headers: Mapping[str, str], said: str) -> None:
    reply = collector.get(path, headers)
    assert reply.status == 401 and said in reply.text
    assert reply.headers["WWW-Authenticate"] == "Bearer"
    assert TOKEN not in reply.text


def test_the_token_opens_and_health_needs_none(collector: WebCollector) -> None:
    assert collector.get("/api/jobs", BEARER).json["jobs"] == []
    assert "annotq_batches_total" in collector.get("/metrics", BEARER).text
    assert collector.get("/", BEARER).status == 200
    assert collector.get("/healthz").text == "serving\n"


def test_two_tokens_are_none(collector: WebCollector) -> None:
    tokens = Tokens(TOKEN, 1, False)
    assert tokens.lets_in([f"Bearer {TOKEN}"], [])
    assert not tokens.lets_in([f"Bearer {TOKEN}", "Bearer second"], [])
    assert not tokens.lets_in(["Bearer é"], [])
    assert Tokens(None, 1, False).lets_in([], [])


def test_a_person_logs_in_and_out(collector: WebCollector) -> None:
    asked = collector.get("/jobs/a%2Fb?attempt=1", BROWSER)
    assert asked.status == 401 and 'value="/jobs/a%2Fb?attempt=1"' in asked.text
    status, cookie, after = login(collector, token=TOKEN, next="/jobs/a%2Fb?attempt=1")
    assert (status, after) == (303, "/jobs/a%2Fb?attempt=1")
    assert TOKEN not in cookie and "correct" not in cookie
    assert collector.get("/", {"Cookie": f"other=1; {cookie}"}).status == 200
    reply = collector.post("/logout", "", {"Cookie": cookie})
    assert reply.status == 303 and "Max-Age=0" in reply.headers["Set-Cookie"]


def test_the_cookie_is_for_this_page_alone(collector: WebCollector) -> None:
    reply = collector.post("/login", urlencode({"token": TOKEN}))
    _, *rest = reply.headers["Set-Cookie"].split("; ")
    flags = {flag.partition("=")[0].lower(): flag.partition("=")[2] for flag in rest}
    assert flags["samesite"] == "strict" and "httponly" in flags and flags["path"] == "/"
    assert "domain" not in flags and int(flags["max-age"]) == LOGIN_SECONDS


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "\u00e9" * 20])
def test_a_wrong_token_gets_no_cookie(collector: WebCollector, token: str) -> None:
    reply = collector.post("/login", urlencode({"token": token}))
    assert reply.status == 401 and "Set-Cookie" not in reply.headers
    assert "not the collector&#39;s token" in reply.text or "not the collector's token" in reply.text


def test_a_cookie_ends_and_cannot_be_made() -> None:
    tokens, others = Tokens(TOKEN, 4519, False), Tokens(TOKEN, 4519, False)
    value = tokens.cookie(now=1000)
    until, _, signature = value.partition(".")

    def lets_in(value: str, now: float) -> bool:
        return tokens.lets_in([], [f"{tokens.cookie_name}={value}"], now)

    assert lets_in(value, 1000) and lets_in(value, 999 + LOGIN_SECONDS)
    assert not lets_in(value, 1000 + LOGIN_SECONDS)
    assert not lets_in(f"{int(until) + 1}.{signature}", 1000)
    assert not lets_in(others.cookie(now=1000), 1000)  # of a process that has ended
    for odd in ("", ".", "x.y", f".{signature}", until):
        assert not lets_in(odd, 1000)
    assert not tokens.lets_in([], [f"annotq-1={value}"], 1000)  # of another collector on this machine


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example/",
        "https://evil.example/",
        "/\\evil.example",
        "evil",
        "javascript:1",
        "/login?next=/",
        "/\r\nX: 1",
    ],
)
def test_a_login_leads_nowhere_else(collector: WebCollector, target: str) -> None:
    assert login(collector, token=TOKEN, next=target)[::2] == (303, "/")


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}]
)
def test_a_form_of_somebody_else_is_refused(collector: WebCollector, headers: Mapping[str, str]) -> None:
    assert collector.post("/login", urlencode({"token": TOKEN}), headers).status == 403


def test_a_form_that_never_ends_is_no_form(collector: WebCollector) -> None:
    assert collector.post("/login", "token=" + "x" * 100_000).status == 401


def test_a_form_that_does_not_come_holds_no_connection(collector: WebCollector) -> None:
    """Nobody has shown a token yet: it gets as long as the head of a request, and breaking it off is no news for the log."""
    host, port = collector.http.rsplit(":", 1)
    head = f"POST /login HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\ntok".encode()
    with socket.create_connection((host, int(port))) as broken_off:
        broken_off.sendall(head)
    with socket.create_connection((host, int(port)), timeout=REQUEST_SECONDS + 10) as slow:
        slow.sendall(head)
        assert slow.recv(1 << 16).startswith(b"HTTP/1.1 401 ")
    assert "ClientDisconnect" not in collector.log.read_text()


def test_a_link_from_elsewhere_is_asked_for_again_from_here(collector: WebCollector) -> None:
    """The cookie does not come with it; nothing else is shown, and programs and forms are not meant."""
    from_elsewhere = {**BROWSER, "Sec-Fetch-Site": "cross-site"}
    reply = collector.get("/jobs/secret-name", from_elsewhere)
    assert reply.status == 200 and "location.reload()" in reply.text and "secret-name" not in reply.text
    assert collector.get("/", {"Sec-Fetch-Site": "cross-site"}).status == 401
    assert collector.get("/", {**from_elsewhere, "Authorization": "Bearer wrong"}).status == 401
    assert collector.get("/", from_elsewhere, "POST").status == 405


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "POST"])
def test_pages_are_only_read(collector: WebCollector, method: str) -> None:
    for path in ("/", "/healthz", "/jobs/live"):
        reply = collector.get(path, BEARER, method)
        assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")


def test_head_is_get_without_its_content(collector: WebCollector) -> None:
    for path in ("/", "/healthz", "/api/jobs", "/metrics"):
        reply = collector.get(path, BEARER, "HEAD")
        assert (reply.status, reply.content) == (200, b"")


@pytest.mark.parametrize("path", [*PRIVATE, "/healthz", "/login"])
def test_every_answer_bears_the_headers(collector: WebCollector, path: str) -> None:
    for sent in ({}, BEARER, BROWSER):
        headers = collector.get(path, sent).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "form-action 'self'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
        assert headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
        assert not [name for name in headers if name.lower().startswith("access-control-")]
        assert "server" not in headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:4519", 200),
        ("localhost:1", 200),
        ("[::1]:4519", 200),
        ("JOBS.example.", 200),
        ("10.1.2.3", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:4519", 421),
        ("", 421),
    ],
)
def test_only_its_own_names_are_answered(open_collector: WebCollector, host: str, status: int) -> None:
    for path in ("/", "/api/jobs", "/metrics"):
        assert open_collector.get(path, {"Host": host}).status == status
    assert open_collector.get("/healthz", {"Host": host}).status == 200


def test_the_certificate_stands_for_the_name_with_tls() -> None:
    assert Hosts("0.0.0.0", (), tls=True).known("collector.example")
    assert not Hosts("0.0.0.0", (), tls=False).known("collector.example")
    assert Hosts("collector.example", (), tls=False).known("Collector.example:80")


def config(host: str, **fields: object) -> ServeConfig:
    return ServeConfig(db=Path("x"), host=host, port=0, **fields)  # type: ignore[arg-type]


FILE = Path("some.pem")
TLS = {"tls_cert": FILE, "tls_key": FILE}


@pytest.mark.parametrize(
    ("http", "fields", "missing"),
    [
        ("0.0.0.0", {}, r"--http: 0.0.0.0 can be reached .* lacks TLS"),
        ("10.0.0.7", {"token": TOKEN}, "the token travels in the clear"),
        ("0.0.0.0", dict(TLS), r"lacks a token .* or client certificates"),
        ("no-such-host.invalid", {"insecure": True}, "There is no host no-such-host.invalid"),
        ("127.0.0.1", {}, None),
        ("[::1]", {}, None),
        ("localhost", {"token": TOKEN}, None),
        ("0.0.0.0", {**TLS, "token": TOKEN}, None),
        ("0.0.0.0", {**TLS, "tls_client_ca": FILE}, None),
        ("0.0.0.0", {"insecure": True}, None),
    ],
)
def test_the_page_listens_where_grpc_would(http: str, fields: dict[str, object], missing: str | None) -> None:
    """However gRPC itself listens: here on loopback, where it needs nothing."""
    if missing is None:
        check_http(config("127.0.0.1", **fields), http)
        return
    with pytest.raises(AnnotqError, match=missing) as refused:
        check_http(config("127.0.0.1", **fields), http)
    assert refused.value.exit_code == 2


def test_a_taken_port_is_an_error_before_anything_is_served(open_collector: WebCollector, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"The page cannot listen on 127.0.0.1:\d+: Address already in use"):
        WebCollector(tmp_path / "store.duckdb", http=open_collector.http)
    with pytest.raises(RuntimeError, match="can be reached from other machines"):
        WebCollector(tmp_path / "store.duckdb", http="0.0.0.0:0")
