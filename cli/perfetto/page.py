"""Opening a file in the Perfetto page, which fetches it from this machine: nothing is uploaded.

The page may ask only one address of the machine it is shown on, 127.0.0.1:9001, and only when the answer allows its origin.
"""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, unquote

from annotq.agent.errors import AnnotqError

ORIGIN = "https://ui.perfetto.dev"
HOST, PORT = "127.0.0.1", 9001

# So long the page has to fetch the file: a browser that starts, a question whether it may ask this machine.
WAIT_SECONDS = 300.0
IDLE_SECONDS = 30.0
CHUNK_BYTES = 1 << 20


class Page:
    """Serves one file until it was fetched once. A context manager: the port is taken on entering.

    Raises AnnotqError when the port is taken. port 0: any free one, for tests.
    """

    def __init__(self, file: Path, port: int = PORT, browse: Callable[[str], bool] = webbrowser.open) -> None:
        self._file = file
        self._browse = browse
        self._fetched = threading.Event()
        try:
            self._server = ThreadingHTTPServer((HOST, port), self._handler())
        except OSError as error:
            raise AnnotqError(
                f"{HOST}:{port}, from where the Perfetto page fetches files, cannot be had: {error.strerror}.",
                "End the program that serves there (another --open, trace_processor), or open the file in the page by hand.",
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    @property
    def url(self) -> str:
        """What to open in a browser of this machine."""
        return f"{ORIGIN}/#!/?url=http://{HOST}:{self.port}/{quote(self._file.name)}"

    def open(self) -> str:
        """Begin to serve and open the browser. Returns what to tell the user."""
        self._thread.start()
        if self._browse(self.url):
            return f"opened {self.url}"
        return f"No browser could be started here. Open {self.url} on this machine (elsewhere: ssh -L {PORT}:{HOST}:{PORT})."

    def serve(self, seconds: float = WAIT_SECONDS) -> str:
        """Wait until the file was fetched, `seconds` at most. Returns what to tell the user."""
        if self._fetched.wait(seconds):
            return "The page has the file."
        return f"Nobody fetched the file within {seconds:,.0f} s; it is at {self._file}."

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        page = self

        class Handler(BaseHTTPRequestHandler):
            timeout = IDLE_SECONDS

            def do_GET(self) -> None:
                if self._found():
                    with page._file.open("rb") as file:
                        while chunk := file.read(CHUNK_BYTES):
                            self.wfile.write(chunk)
                    self.wfile.flush()
                    page._fetched.set()

            def do_HEAD(self) -> None:
                self._found()

            def do_OPTIONS(self) -> None:
                # What browsers ask before a public page may ask this machine.
                self.send_response(HTTPStatus.NO_CONTENT)
                self._allow()
                self.send_header("Access-Control-Allow-Methods", "GET, HEAD")
                self.send_header("Access-Control-Allow-Private-Network", "true")
                self.end_headers()

            def _found(self) -> bool:
                # Another name for this machine in Host is a page that pretends to be here.
                port = page.port
                known = self.headers.get("Host") in (f"{HOST}:{port}", f"localhost:{port}")
                if not known or unquote(self.path) != f"/{page._file.name}" or not page._file.is_file():
                    self.send_error(HTTPStatus.NOT_FOUND)
                    return False
                self.send_response(HTTPStatus.OK)
                self._allow()
                self.send_header("Content-Type", "application/octet-stream")
                self.send_header("Content-Length", str(page._file.stat().st_size))
                self.send_header("Cache-Control", "no-cache")
                self.end_headers()
                return True

            def _allow(self) -> None:
                self.send_header("Access-Control-Allow-Origin", ORIGIN)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        return Handler
