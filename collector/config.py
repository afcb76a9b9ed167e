"""How a collector is set up: what `annotq serve` makes of its options and of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from annotq.agent.config import sendable_token, token
from annotq.agent.errors import EXIT_USAGE, AnnotqError

DEFAULT_LISTEN = "127.0.0.1:4517"
DEFAULT_QUEUE_BYTES = 256 << 20


@dataclass(frozen=True)
class ServeConfig:
    """One collector. memory: of DuckDB, for writing and questions together ("2GB"); queue_bytes: of batches that wait for
    their commit; questions: answered at once; rows, seconds: the most that a question may ask for."""

    db: Path
    host: str
    port: int
    metrics: tuple[str, int] | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    token: str | None = None
    insecure: bool = False
    memory: str = "2GB"
    queue_bytes: int = DEFAULT_QUEUE_BYTES
    questions: int = 4
    rows: int = 10_000_000
    seconds: float = 600


def address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT or [HOST]:PORT; port 0 means any free one. Raises AnnotqError (usage)."""
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) < 6 and int(port) <= 65_535
    if not colon or not host or not is_port:
        raise AnnotqError(f"{text!r} is no HOST:PORT.", f"For example {DEFAULT_LISTEN}", EXIT_USAGE)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise AnnotqError(
            f"{text!r} is no HOST:PORT: an IPv6 address needs brackets.", f"For example [{host}]:{port}", EXIT_USAGE
        )
    return host, int(port)


def token_of(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The shared token: the file's content, else as clients find theirs (ANNOTQ_TOKEN, ANNOTQ_TOKEN_FILE); None without any.

    Raises AnnotqError for a file that cannot be used, and for a token that cannot be sent.
    """
    if file is None:
        return token(environment)
    try:
        found = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AnnotqError(
            f"The token file {file} cannot be read: {error}.", "Check the path and its permissions."
        ) from None
    if not found:
        raise AnnotqError(f"The token file {file} is empty.", "Write the token into it.")
    return sendable_token(found, f"the file {file}")
