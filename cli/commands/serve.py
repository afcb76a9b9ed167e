"""`annotq serve`: the collector."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from annotq.agent.errors import EXIT_FAILED
from annotq.cli.errors import note
from annotq.cli.options import Db, default_store

if TYPE_CHECKING:
    from annotq.collector.front import FrontFactory

Listen = Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where agents and questions come in.")]
MetricsOption = Annotated[
    str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Answer Prometheus there, at /metrics.")
]
Http = Annotated[
    str | None, typer.Option("--http", metavar="HOST:PORT", help="Serve a page with the jobs and their reports there.")
]
HttpNames = Annotated[
    list[str] | None,
    typer.Option(
        "--http-name", metavar="NAME", help="Another name of this host in the page's address. May be repeated."
    ),
]
TlsCert = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain of this server, PEM.")
]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, PEM.")]
TlsClientCa = Annotated[
    Path | None,
    typer.Option("--tls-client-ca", metavar="FILE", help="Only clients with a certificate of this authority, PEM."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="Token that callers must send. Default: from ANNOTQ_TOKEN or ANNOTQ_TOKEN_FILE.",
    ),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Let anybody in who can reach the address.")]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="Memory of the database, questions included.")]
QueueBytes = Annotated[
    int, typer.Option("--queue-bytes", min=1 << 20, metavar="N", help="Batches that may wait for their commit.")
]
PortFile = Annotated[
    Path | None,
    typer.Option(
        "--port-file",
        metavar="FILE",
        help="Write the port there once it listens, for scripts; that of --http into a second line.",
    ),
]


def serve(
    db: Db = None,
    listen: Listen = "127.0.0.1:4517",
    metrics: MetricsOption = None,
    http: Http = None,
    http_name: HttpNames = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    memory: Memory = "2GB",
    queue_bytes: QueueBytes = 256 << 20,
    port_file: PortFile = None,
) -> None:
    """Run the collector: take in what the agents of any number of jobs ship, and answer questions meanwhile.

    SIGTERM or Ctrl-C ends it once everything it received is in the store. Beyond this machine it listens only with TLS and
    a token or client certificates.
    """
    import asyncio

    from annotq.collector.app import serve as run
    from annotq.collector.config import ServeConfig, address, token_of

    host, port = address(listen)
    config = ServeConfig(
        db=db or default_store(),
        host=host,
        port=port,
        metrics=None if metrics is None else address(metrics),
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_client_ca=tls_client_ca,
        token=token_of(token_file),
        insecure=insecure,
        memory=memory,
        queue_bytes=queue_bytes,
    )
    _log_to_stderr()

    def ready(where: str, page: str | None) -> None:
        if port_file is not None:
            partial = port_file.with_name(f"{port_file.name}.partial")
            partial.write_text("\n".join(place.rpartition(":")[2] for place in (where, page) if place))
            partial.rename(port_file)
        note(f"collector listening on {where}, store {config.db}")
        if page is not None:
            note(f"jobs and reports: http{'s' if tls_cert else ''}://{page}/")

    if not asyncio.run(run(config, ready, None if http is None else _front(http, http_name or []))):
        note("Not everything could be committed in time; its senders keep it and send it again.")
        raise typer.Exit(EXIT_FAILED)


def _front(http: str, names: list[str]) -> FrontFactory:
    from functools import partial

    from annotq.cli.web.server import HttpOptions, WebFront
    from annotq.collector.config import address

    host, port = address(http)
    return partial(WebFront, HttpOptions(host, port, tuple(names)))


def _log_to_stderr() -> None:
    """Readable lines on a terminal, JSON lines otherwise."""
    import structlog

    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
    ]
    last: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if sys.stderr.isatty():
        processors.pop()
        last = structlog.dev.ConsoleRenderer()
    structlog.configure([*processors, last], logger_factory=lambda *args: _Stderr())


class _Stderr:
    """Writes a line to stderr if it can: a full disk under a log file must not stop the collector."""

    def msg(self, line: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    debug = info = warning = error = critical = exception = msg
