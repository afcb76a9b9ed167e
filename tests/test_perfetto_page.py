"""`--open`: the file is served to the Perfetto page alone, once, and not for ever."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import quote

import pytest
from small_store import small_store

from annotq.agent.errors import AnnotqError
from annotq.cli.perfetto.page import Page

CONTENT = bytes(range(256)) * 20_000  # more than one chunk


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a job & more.pftrace"
    path.write_bytes(CONTENT)
    return path


def answer(page: Page, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, dict(response.headers), body


def test_the_page_fetches_the_file_once(file: Path) -> None:
    opened: list[str] = []
    with Page(file, port=0, browse=lambda url: bool(opened.append(url)) or True) as page:
        assert page.open() == f"opened {page.url}"
        name = quote(file.name)
        assert opened == [f"https://ui.perfetto.dev/#!/?url=http://127.0.0.1:{page.port}/{name}"]
        status, headers, body = answer(page, "GET", f"/{name}")
        assert (status, body) == (200, CONTENT)
        assert headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
        assert page.serve(10) == "The page has the file."


def test_nothing_else_is_served(file: Path) -> None:
    (file.parent / "secret").write_text("x")
    with Page(file, port=0, browse=lambda url: True) as page:
        page.open()
        for path in ("/", "/secret", f"/../{quote(file.parent.name)}/secret", f"/{quote(file.name)}/"):
            assert answer(page, "GET", path)[0] == 404
        assert answer(page, "GET", f"/{quote(file.name)}", Host="evil.example:9001")[0] == 404
        assert answer(page, "POST", f"/{quote(file.name)}")[0] == 501
        assert page.serve(0.1) == f"Nobody fetched the file within 0 s; it is at {file}."


def test_a_look_before_does_not_count_as_the_fetch(file: Path) -> None:
    with Page(file, port=0, browse=lambda url: True) as page:
        page.open()
        status, headers, body = answer(page, "HEAD", f"/{quote(file.name)}")
        assert (status, headers["Content-Length"], body) == (200, str(len(CONTENT)), b"")
        status, headers, _ = answer(page, "OPTIONS", f"/{quote(file.name)}")
        assert (status, headers["Access-Control-Allow-Private-Network"]) == (204, "true")
        assert page.serve(0.1).startswith("Nobody fetched the file")


def test_a_connection_that_says_nothing_holds_nobody_up(file: Path) -> None:
    with Page(file, port=0, browse=lambda url: True) as page:
        page.open()
        with socket.create_connection(("127.0.0.1", page.port)):
            assert answer(page, "GET", f"/{quote(file.name)}")[0] == 200
        assert page.serve(10) == "The page has the file."


def test_a_browser_that_gives_up_may_come_again(file: Path) -> None:
    file.write_bytes(CONTENT * 20)
    with Page(file, port=0, browse=lambda url: True) as page:
        page.open()
        with socket.create_connection(("127.0.0.1", page.port)) as half:
            request = f"GET /{quote(file.name)} HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n"
            half.sendall(request.encode())
            assert half.recv(100).startswith(b"HTTP/1.0 200")
        assert answer(page, "GET", f"/{quote(file.name)}")[2] == CONTENT * 20
        assert page.serve(10) == "The page has the file."


def test_without_a_browser_the_address_is_said(file: Path) -> None:
    with Page(file, port=0, browse=lambda url: False) as page:
        assert page.url in page.open()


def test_the_command_opens_what_it_wrote(tmp_path: Path) -> None:
    """With a browser that does what the Perfetto page does: fetch what stands behind url=."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 9001)) == 0:
            pytest.skip("something else serves at 9001")
    fetch = "import sys, urllib.request as u; u.urlretrieve(sys.argv[1].partition('url=')[2], sys.argv[2])"
    browser = tmp_path / "browser"
    browser.write_text(f"""#!/bin/sh\nexec {sys.executable} -c "{fetch}" "$1" "{tmp_path}/fetched"\n""")
    browser.chmod(0o755)
    store = small_store(tmp_path / "store.duckdb")
    command = [sys.executable, "-m", "annotq.cli", "perfetto", "tiny", "-o", "tiny.pftrace", "--open"]
    environment = {**os.environ, "ANNOTQ_DB": str(store), "BROWSER": f"{browser} %s"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "The page has the file." in ended.stderr
    assert (tmp_path / "fetched").read_bytes() == (tmp_path / "tiny.pftrace").read_bytes()


def test_a_taken_port_is_a_sentence(file: Path) -> None:
    with Page(file, port=0) as page, pytest.raises(AnnotqError, match=rf"127\.0\.0\.1:{page.port}.* cannot be had"):
        Page(file, port=page.port)


def test_nothing_is_left_running(file: Path) -> None:
    before = threading.active_count()
    with Page(file, port=0, browse=lambda url: True) as page:
        page.open()
    assert threading.active_count() == before
