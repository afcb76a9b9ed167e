"""`--endpoint`: a collector answers what a file answers, and what goes wrong on the way is a sentence."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from collectors import Collector, process
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from jobs import DATA, load
from small_store import small_store
from typer.testing import CliRunner, Result

from annotq.agent.errors import AnnotqError
from annotq.cli.main import app
from annotq.cli.options import ReadingOptions
from annotq.cli.output import Printer
from annotq.cli.remote_door import RemoteDoor
from annotq.cli.report import Report
from annotq.collector.query import Limits
from annotq.v1 import collector_pb2 as pb
from annotq.v1 import collector_pb2_grpc

ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE (a.range * b.range) % 7 = 3"
TOKEN = "a secret of the test"


@dataclass(frozen=True)
class Both:
    """A collector, and a copy of its store as it was at its start."""

    collector: Collector
    file: Path


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("remote")
    store = small_store(folder / "store.duckdb")
    load(store, DATA / "slow4")
    shutil.copy(store, folder / "copy.duckdb")
    with Collector(store) as started:
        yield Both(started, folder / "copy.duckdb")


def annotq(*arguments: str | Path, **environment: str) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env=environment, catch_exceptions=False)


@pytest.mark.parametrize(
    "call",
    [
        ["jobs"],
        ["ranks"],
        ["regions", "--job", "tiny"],
        ["collectives", "--job", "slow4", "--rank", "2"],
        ["stragglers", "--job", "slow4", "--format", "json"],
        ["query", "SELECT name, count(*) AS kernels, sum(duration_ns) FROM kernels GROUP BY name ORDER BY name"],
        ["query", "SELECT 1 AS one WHERE false"],
        ["query", "EXPLAIN SELECT 1"],
        ["jobs", "--job", "huge"],
    ],
    ids=" ".join,
)
def test_a_collector_gives_the_same_answer_as_its_file(both: Both, call: list[str]) -> None:
    asked = annotq(*call, "--endpoint", both.collector.address)
    read = annotq(*call, "--db", both.file)
    assert (asked.exit_code, asked.stdout) == (read.exit_code, read.stdout)
    # Only the name of what was asked differs.
    assert asked.stderr == read.stderr.replace(str(both.file), f"the collector at {both.collector.address}")


def test_the_variable_names_the_collector(both: Both) -> None:
    done = annotq("query", "SELECT count(*) AS n FROM process", ANNOTQ_ENDPOINT=both.collector.address, ANNOTQ_DB="")
    assert done.stdout == "n\n6\n"


def test_status_tells_how_the_collector_is(both: Both) -> None:
    done = annotq("status", "--endpoint", both.collector.address, "--format", "json")
    found = {(row["topic"], row["item"]): row["value"] for row in json.loads(done.stdout)}
    assert found["store", "file"] == str(both.collector.db)
    assert found["collector", "queue"] == "0 batches, 0 bytes"
    assert found["collector", "address"] == both.collector.address
    assert found["job", "tiny"].startswith("attempt 0: 2 of 2 ranks")


def test_status_tells_how_long_a_rank_is_silent(tmp_path: Path) -> None:
    with Collector(tmp_path / "store.duckdb") as collector:
        reply = collector.register(process(5, world_size=8))
        beat = pb.ProcessBeat(process_id=reply.process_id, alive=True, step=12, seen_age_ns=41_000_000_000)
        collector.stub.Beat(pb.BeatRequest(host="node-a", processes=[beat]), timeout=10)
        wait_until(lambda: collector.ask("SELECT count(*) FROM heartbeat") == [(1,)])
        done = annotq("status", "--endpoint", collector.address)
    assert re.search(r"silent\tlive attempt 0\trank 5 silent for 4\d s \(host node-a, step 12\)\n", done.stdout), (
        done.stdout
    )
    assert "1 of 8 ranks registered (missing: 0, 1, 2, 3, 4, 6, 7), 1 running, 1 of them silent" in done.stdout


def test_a_large_answer_comes_whole(both: Both) -> None:
    # 24 MB: many pieces, none of which is the whole.
    with RemoteDoor(both.collector.address, Limits(rows=5_000_000)) as door:
        answer = door.ask("SELECT range AS n FROM range(?) ORDER BY n", [3_000_000])
    assert (answer.table.num_rows, answer.truncated) == (3_000_000, False)
    assert answer.table.column("n")[2_999_999].as_py() == 2_999_999


def test_rows_are_cut_at_the_limit_and_a_report_refuses_to_be(both: Both) -> None:
    done = annotq("query", "SELECT * FROM range(9)", "--limit", "2", "--endpoint", both.collector.address)
    assert done.stdout == "range\n0\n1\n"
    assert done.stderr == "More than 2 rows; these are 2 of them. Raise --limit to see more.\n"
    with RemoteDoor(both.collector.address, Limits(rows=3)) as door:
        report = Report(door, ReadingOptions(), Printer(ReadingOptions()))
        with pytest.raises(AnnotqError, match="more than 3 rows"):
            report.ask("SELECT * FROM range(9)")


def test_parameters_keep_their_types(both: Both) -> None:
    with RemoteDoor(both.collector.address) as door:
        sql = "SELECT ? AS n, ? AS r, ? AS t, ? AS b, ? IS NULL AS nothing"
        (row,) = door.ask(sql, [1 << 60, 0.5, "it's ?", True, None]).table.to_pylist()
    assert row == {"n": 1 << 60, "r": 0.5, "t": "it's ?", "b": True, "nothing": True}


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT sum(rank FROM kernels", "^"),
        ("SELECT * FROM kernel", "The views are: "),
        ("DROP TABLE process", "never changes anything"),
        ("SELECT * FROM read_csv('/etc/passwd')", ""),
    ],
)
def test_what_is_wrong_with_sql_is_said_as_for_a_file(both: Both, sql: str, said: str) -> None:
    asked = annotq("query", sql, "--endpoint", both.collector.address)
    read = annotq("query", sql, "--db", both.file)
    assert (asked.exit_code, asked.stdout, asked.stderr) == (1, "", read.stderr)
    assert said in asked.stderr


def test_a_query_out_of_time_fails(both: Both) -> None:
    done = annotq("query", ENDLESS, "--timeout", "0.2", "--endpoint", both.collector.address)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: The query was stopped after 0.2 s.\n  Ask for less")


def test_nobody_listening_is_exit_code_4_with_the_next_command(tmp_path: Path) -> None:
    done = annotq("jobs", "--endpoint", "127.0.0.1:1")
    assert (done.exit_code, done.stdout) == (4, "")
    first, second = done.stderr.splitlines()
    assert first == "error: The collector at 127.0.0.1:1 cannot be reached (Connection refused)."
    assert "annotq serve" in second and "--db" in second


def test_an_endpoint_without_a_port_is_a_usage_error() -> None:
    assert annotq("jobs", "--endpoint", "localhost").exit_code == 2


def test_the_token_is_sent_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    small_store(tmp_path / "store.duckdb")
    with Collector(tmp_path / "store.duckdb", environment={"ANNOTQ_TOKEN": TOKEN}) as collector:
        call = ("query", "SELECT 1 AS one", "--endpoint", collector.address)
        assert annotq(*call, ANNOTQ_TOKEN=TOKEN).stdout == "one\n1\n"
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        assert annotq(*call, ANNOTQ_TOKEN_FILE=str(tmp_path / "token")).stdout == "one\n1\n"
        for environment in ({}, {"ANNOTQ_TOKEN": "another secret, just as long"}):
            refused = annotq(*call, **environment)
            assert (refused.exit_code, refused.stdout) == (1, "")
            assert "ANNOTQ_TOKEN" in refused.stderr.splitlines()[1]


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "collector of a test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / "tls.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return folder / "tls.crt", folder / "tls.key"


def test_a_collector_with_tls_is_asked_with_its_authority(tmp_path: Path) -> None:
    small_store(tmp_path / "store.duckdb")
    certificate, key = self_signed(tmp_path)
    trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with Collector(tmp_path / "store.duckdb", *tls, credentials=trusted) as collector:
        call = ("query", "SELECT 1 AS one", "--endpoint", collector.address)
        assert annotq(*call, ANNOTQ_TLS_CA=str(certificate)).stdout == "one\n1\n"
        plain = annotq(*call)
        assert (plain.exit_code, plain.stdout) == (4, "")
        (tmp_path / "other").mkdir()
        other, _ = self_signed(tmp_path / "other")
        assert annotq(*call, ANNOTQ_TLS_CA=str(other)).exit_code == 4


def test_ctrl_c_ends_the_query_at_the_collector_too(both: Both) -> None:
    call = [sys.executable, "-m", "annotq.cli", "query", ENDLESS, "--endpoint", both.collector.address]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stderr is not None
        busy = cpu_seconds(both.collector)
        wait_until(lambda: cpu_seconds(both.collector) > busy + 0.3)
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
    assert (running.returncode, said) == (130, b"interrupted\n")
    wait_until(lambda: is_idle(both.collector))


def cpu_seconds(collector: Collector) -> float:
    fields = Path(f"/proc/{collector.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_idle(collector: Collector) -> bool:
    before = cpu_seconds(collector)
    time.sleep(0.5)
    return cpu_seconds(collector) - before < 0.1


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def served(servicer: Any) -> Iterator[str]:
    """The address of a gRPC server that a healthy collector could not be; None: one without any service."""
    server = grpc.server(ThreadPoolExecutor(2))
    if servicer is not None:
        collector_pb2_grpc.add_CollectorServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


class CutShort(collector_pb2_grpc.CollectorServicer):
    """Answers with rows, and ends before it has said that these were all."""

    def Query(self, request: pb.QueryRequest, context: grpc.ServicerContext) -> Iterator[pb.QueryReply]:  # noqa: N802
        sink = pa.BufferOutputStream()
        table = pa.table({"n": [1, 2, 3]})
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        whole = sink.getvalue().to_pybytes()
        yield pb.QueryReply(arrow=whole[: len(whole) // 2 if request.sql == "half" else len(whole)])


@pytest.mark.parametrize("sql", ["half", "whole"])
def test_an_answer_that_ends_too_early_is_no_answer(sql: str) -> None:
    with served(CutShort()) as address, RemoteDoor(address) as door, pytest.raises(AnnotqError) as told:
        door.ask(sql)
    assert "ended too early" in told.value.message or "is damaged" in told.value.message


def test_another_server_is_called_what_it_is() -> None:
    with served(None) as address:
        done = annotq("jobs", "--endpoint", address)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"What answers at {address} is no annotq collector." in done.stderr


def test_a_door_is_closed_after_an_error(both: Both) -> None:
    manager: AbstractContextManager[RemoteDoor] = RemoteDoor(both.collector.address)
    with pytest.raises(AnnotqError), manager as door:
        door.ask("no SQL")
    with pytest.raises(ValueError, match="closed"):
        door.ask("SELECT 1")
