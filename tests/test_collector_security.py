"""Only who may gets in, and the collector does not listen where anybody could."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from collectors import Collector, connect, note, process, register_request
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2, health_pb2_grpc

from annotq.agent.errors import AnnotqError
from annotq.collector.config import ServeConfig, address, token_of
from annotq.collector.security import check_host, check_listening
from annotq.collector.security import credentials as server_credentials
from annotq.v1 import collector_pb2 as pb
from annotq.v1 import collector_pb2_grpc

TOKEN = "correct horse battery staple"
Code = grpc.StatusCode


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates for 127.0.0.1."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._serial = 1
        self.pair = self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0))

    def issue(self, name: str) -> Pair:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._signed(subject, ec.generate_private_key(ec.SECP256R1()), x509.BasicConstraints(False, None))

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, constraints: x509.BasicConstraints) -> Pair:
        now = datetime.datetime.now(datetime.UTC)
        self._serial += 1
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(self._serial)
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(constraints, critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        form = serialization.PrivateFormat.PKCS8
        return Pair(certificate.public_bytes(pem), key.private_bytes(pem, form, serialization.NoEncryption()))


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("ours")


@pytest.fixture(scope="module")
def with_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    path = tmp_path_factory.mktemp("token") / "store.duckdb"
    with Collector(path, environment={"ANNOTQ_TOKEN": TOKEN}) as started:
        yield started


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Collector]:
    folder = tmp_path_factory.mktemp("mutual")
    server, client = authority.issue("server"), authority.issue("client")
    files = {"cert": server.certificate, "key": server.key, "client-ca": authority.pair.certificate}
    options = []
    for name, content in files.items():
        (folder / name).write_bytes(content)
        options += [f"--tls-{name}", str(folder / name)]
    credentials = grpc.ssl_channel_credentials(authority.pair.certificate, client.key, client.certificate)
    with Collector(folder / "store.duckdb", *options, credentials=credentials) as started:
        yield started


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ([], "wants a token"),
        ([("authorization", "Bearer wrong horse battery staple")], "the token is wrong"),
        ([("authorization", f"Bearer {TOKEN} ")], "the token is wrong"),
        ([("authorization", TOKEN)], "the token is wrong"),
        ([("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer second")], "the token is wrong"),
    ],
)
def test_every_method_wants_the_token(with_token: Collector, metadata: list[tuple[str, str]], said: str) -> None:
    stub = with_token.stub
    calls = [
        lambda: stub.Register(register_request(process()), metadata=metadata),
        lambda: list(stub.Ship(iter([note(1, 1, "x")]), metadata=metadata)),
        lambda: stub.SyncClock(pb.Ping(), metadata=metadata),
        lambda: stub.Beat(pb.BeatRequest(), metadata=metadata),
        lambda: list(stub.Query(pb.QueryRequest(sql="SELECT 1"), metadata=metadata)),
        lambda: stub.Status(pb.StatusRequest(), metadata=metadata),
    ]
    for call in calls:
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() == Code.UNAUTHENTICATED and said in refused.value.details()


def test_the_token_opens_every_method_and_health_needs_none(with_token: Collector) -> None:
    metadata = [("authorization", f"Bearer {TOKEN}")]
    reply = with_token.stub.Register(register_request(process()), metadata=metadata)
    acks = list(with_token.stub.Ship(iter([note(reply.process_id, 1, "x")]), metadata=metadata))
    assert [ack.error for ack in acks] == [""]
    assert len(list(with_token.stub.Query(pb.QueryRequest(sql="SELECT 1"), metadata=metadata))) == 2
    health = health_pb2_grpc.HealthStub(with_token.channel)
    for service in ("", "annotq.v1.Collector"):
        assert (
            health.Check(health_pb2.HealthCheckRequest(service=service)).status
            == health_pb2.HealthCheckResponse.SERVING
        )


def test_a_certificate_of_the_authority_gets_in(mutual: Collector) -> None:
    assert mutual.status().version


def test_nobody_else_gets_in(mutual: Collector, authority: Authority) -> None:
    stranger = Authority("theirs")
    theirs = stranger.issue("client")
    root = authority.pair.certificate
    strangers = {
        "plain": None,
        "without a certificate": grpc.ssl_channel_credentials(root),
        "of another authority": grpc.ssl_channel_credentials(root, theirs.key, theirs.certificate),
        "that does not trust the server": grpc.ssl_channel_credentials(
            stranger.pair.certificate, theirs.key, theirs.certificate
        ),
    }
    for who, credentials in strangers.items():
        with connect(mutual.address, credentials) as channel, pytest.raises(grpc.RpcError) as refused:
            collector_pb2_grpc.CollectorStub(channel).Status(pb.StatusRequest(), timeout=5)
        assert refused.value.code() == Code.UNAVAILABLE, who
    assert mutual.status().version


def config(host: str, **fields: object) -> ServeConfig:
    return ServeConfig(db=Path("x"), host=host, port=0, **fields)  # type: ignore[arg-type]


FILE = Path("some.pem")
TLS = {"tls_cert": FILE, "tls_key": FILE}


@pytest.mark.parametrize(
    ("host", "fields", "missing"),
    [
        ("0.0.0.0", {}, r"lacks TLS .* and a token .* or client certificates"),
        ("::", {}, "lacks TLS"),
        ("10.0.0.7", {"token": TOKEN}, "the token travels in the clear"),
        ("collector.example", dict(TLS), r"lacks a token .* or client certificates"),
        ("127.0.0.1", {"token": "short"}, r"5 characters; 16"),
        ("127.0.0.1", {"tls_cert": FILE}, "belong together"),
        ("127.0.0.1", {"tls_client_ca": FILE}, "needs --tls-cert"),
    ],
)
def test_it_refuses_to_listen_where_anybody_could_come_in(host: str, fields: dict[str, object], missing: str) -> None:
    with pytest.raises(AnnotqError, match=missing) as refused:
        check_listening(config(host, **fields))
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("host", "fields"),
    [
        ("127.0.0.1", {}),
        ("::1", {}),
        ("[::1]", {}),
        ("localhost", {"token": TOKEN}),
        ("0.0.0.0", {**TLS, "token": TOKEN}),
        ("0.0.0.0", {**TLS, "tls_client_ca": FILE}),
        ("0.0.0.0", {"insecure": True}),
    ],
)
def test_it_listens_where_nobody_else_can_come_in(host: str, fields: dict[str, object]) -> None:
    check_listening(config(host, **fields))


def test_the_token_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert token_of(file, {"ANNOTQ_TOKEN": "other"}) == TOKEN
    assert token_of(None, {"ANNOTQ_TOKEN": "other"}) == "other"
    assert token_of(None, {"ANNOTQ_TOKEN": ""}) is None
    assert token_of(None, {"ANNOTQ_TOKEN_FILE": str(file)}) == TOKEN
    file.write_text("\n")
    with pytest.raises(AnnotqError, match="is empty"):
        token_of(file)
    with pytest.raises(AnnotqError, match="cannot be read"):
        token_of(tmp_path / "none")


@pytest.mark.parametrize(
    "text", ["pass\nword of sixteen", "p\u00e4ssword of sixteen", "password\x00of sixteen", "\x7f" * 16]
)
def test_a_token_that_cannot_be_sent_is_refused_and_its_source_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(AnnotqError, match=rf"{file} holds characters that cannot be sent"):
        token_of(file)
    with pytest.raises(AnnotqError, match=r"ANNOTQ_TOKEN holds characters that cannot be sent"):
        token_of(None, {"ANNOTQ_TOKEN": text})


@pytest.mark.parametrize("content", [b"", b"\n", b"no certificate", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nx\n"])
def test_an_authority_that_is_none_is_refused(tmp_path: Path, authority: Authority, content: bytes) -> None:
    server = authority.issue("server")
    paths = {name: tmp_path / name for name in ("tls_cert", "tls_key", "tls_client_ca")}
    paths["tls_cert"].write_bytes(server.certificate)
    paths["tls_key"].write_bytes(server.key)
    paths["tls_client_ca"].write_bytes("# Behörde\n".encode() + authority.pair.certificate)
    assert server_credentials(config("127.0.0.1", **paths)) is not None
    paths["tls_client_ca"].write_bytes(content)
    with pytest.raises(AnnotqError, match=r"tls_client_ca holds no certificates"):
        server_credentials(config("127.0.0.1", **paths))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 80 + ".invalid", "127.0.0.1.5"])
def test_a_host_that_does_not_exist_is_named(tmp_path: Path, host: str) -> None:
    with pytest.raises(AnnotqError, match=f"There is no host {host} to listen on") as refused:
        check_host(host)
    assert refused.value.exit_code == 2
    for real in ("127.0.0.1", "[::1]", "::1", "0.0.0.0", "localhost"):
        check_host(real)
    with pytest.raises(RuntimeError, match="There is no host"):
        Collector(tmp_path / "store.duckdb", "--listen", f"{host}:0")


@pytest.mark.parametrize(
    "text", ["", "4517", ":4517", "host:", "host:x", "host:70000", "host:-1", "::1:0", "fe80::1:4517", "[::1:0"]
)
def test_an_address_that_is_none_is_a_usage_error(text: str) -> None:
    with pytest.raises(AnnotqError, match="is no HOST:PORT"):
        address(text)
    assert address("[::1]:0") == ("[::1]", 0)
