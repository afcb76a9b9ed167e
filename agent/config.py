"""The environment variables of annotq and their defaults, in one place for the recorder, the shipper and the collector.

Only the standard library: the recorder runs inside the training process. Options and arguments win over variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from annotq.agent.errors import EXIT_USAGE, AnnotqError

# The comments are what docs/reference/environment.md says.
# ANNOTQ_ENDPOINT: Collector, HOST:PORT.
ENDPOINT = "ANNOTQ_ENDPOINT"
# ANNOTQ_JOB: Name of the job, the same on all its ranks. Default: torchrun's run id, else `slurm-ID.STEP`, else script and start.
JOB = "ANNOTQ_JOB"
# ANNOTQ_ATTEMPT: Which attempt of the job this is, from 0. Default: the restart count of torchrun or SLURM.
ATTEMPT = "ANNOTQ_ATTEMPT"
# ANNOTQ_COORDINATES: Place of the rank in the parallel layout, such as `dp=0,tp=3`.
COORDINATES = "ANNOTQ_COORDINATES"
# ANNOTQ_SPOOL: Folder for what ranks record until the collector has it. Default: one per collector in your state folder.
SPOOL = "ANNOTQ_SPOOL"
# ANNOTQ_SPOOL_BYTES: Size at which the spool gives up its oldest traces, such as `8GiB` (the default).
SPOOL_BYTES = "ANNOTQ_SPOOL_BYTES"
# ANNOTQ_MODULES: `1` names regions after the model's modules, as start(modules=True) does.
MODULES = "ANNOTQ_MODULES"
# ANNOTQ_DISABLED: `1` makes annotq.agent do nothing at all.
DISABLED = "ANNOTQ_DISABLED"
# ANNOTQ_TOKEN: Secret that the collector asks of its clients.
TOKEN = "ANNOTQ_TOKEN"
# ANNOTQ_TOKEN_FILE: File that holds the secret; ANNOTQ_TOKEN wins.
TOKEN_FILE = "ANNOTQ_TOKEN_FILE"
# ANNOTQ_TLS_CA: Certificates (PEM) that the collector's certificate is checked against; turns TLS on for clients.
TLS_CA = "ANNOTQ_TLS_CA"
# ANNOTQ_TLS_CERT: Certificate (PEM) of a client, where the collector asks for one.
TLS_CERT = "ANNOTQ_TLS_CERT"
# ANNOTQ_TLS_KEY: Private key (PEM) of that certificate.
TLS_KEY = "ANNOTQ_TLS_KEY"

DEFAULT_SPOOL_BYTES = 8 << 30

_LONGEST_NAME = 200  # of a folder

_SIZE = re.compile(r"(\d+)\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
_POWERS = {"k": 10, "m": 20, "g": 30, "t": 40}


def is_disabled(environ: Mapping[str, str] = os.environ) -> bool:
    """True when the recorder must be inert: the variable is set to anything but an empty text, 0, false or no."""
    return _is_on(environ, DISABLED)


def names_modules(environ: Mapping[str, str] = os.environ) -> bool:
    """True when regions are to be named after modules though start() does not say so."""
    return _is_on(environ, MODULES)


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").strip().lower() not in ("", "0", "false", "no")


def spool_root(environ: Mapping[str, str] = os.environ, endpoint: str | None = None) -> Path:
    """The folder that holds one folder per recorded process. It need not exist. endpoint: wins over the variable.

    Where none is given, each collector has one of its own below spool_base(), so that what is meant for one never goes to
    another.
    """
    base = spool_base(environ)
    collector = endpoint or environ.get(ENDPOINT, "").strip()
    if environ.get(SPOOL) or not collector:
        return base
    return base / re.sub(r"[^A-Za-z0-9_.-]+", "_", collector.lower())[:_LONGEST_NAME]


def spool_base(environ: Mapping[str, str] = os.environ) -> Path:
    """The spool that is given, else the folder of all spools: what is recorded without a collector lies there itself."""
    if given := environ.get(SPOOL):
        return Path(given).expanduser()
    state = environ.get("XDG_STATE_HOME", "")
    # The base-directory specification: a relative path there is to be ignored.
    base = Path(state) if Path(state).is_absolute() else Path(environ.get("HOME") or Path.home()) / ".local/state"
    return base / "annotq/spool"


def spool_bytes(environ: Mapping[str, str] = os.environ) -> int:
    """Size of the spool in bytes at which traces are given up. Raises AnnotqError for a text that is no size."""
    given = environ.get(SPOOL_BYTES, "").strip()
    if not given:
        return DEFAULT_SPOOL_BYTES
    match = _SIZE.fullmatch(given)
    if match is None:
        raise AnnotqError(
            f"{SPOOL_BYTES} is {given!r}, no size.", "Write bytes, or such as 500MiB or 8GiB.", EXIT_USAGE
        )
    return int(match[1]) << _POWERS.get((match[2] or "").lower(), 0)


def endpoint(environ: Mapping[str, str] = os.environ) -> str | None:
    """The collector's HOST:PORT; None when no collector is set."""
    return environ.get(ENDPOINT, "").strip() or None


def checked_endpoint(endpoint: str) -> str:
    """The endpoint itself. Raises AnnotqError (usage) when it is no HOST:PORT."""
    host, colon, port = endpoint.rpartition(":")
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host.replace(":", "/")
    is_port = port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536
    if not colon or not name or not is_port or re.search(r"[/\s]", name):
        raise AnnotqError(f"{endpoint!r} is no HOST:PORT.", "For example 127.0.0.1:4517.", EXIT_USAGE)
    return endpoint


def token(environ: Mapping[str, str] = os.environ) -> str | None:
    """The shared secret, from the variable or the file it names; None when neither is set.

    Raises AnnotqError for a file that cannot be read or is empty, and for a secret that no header can carry.
    """
    if given := environ.get(TOKEN, "").strip():
        return sendable_token(given, TOKEN)
    if not (path := environ.get(TOKEN_FILE, "").strip()):
        return None
    try:
        content = Path(path).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AnnotqError(f"{TOKEN_FILE} {path}: {error}.", "Check the path and its permissions.") from None
    if not content:
        raise AnnotqError(f"{TOKEN_FILE} {path} is empty.", "Write the secret into it.")
    return sendable_token(content, f"{TOKEN_FILE} {path}")


def sendable_token(secret: str, source: str) -> str:
    """The secret itself. source: where it comes from. Raises AnnotqError when gRPC cannot carry it in a header."""
    if not re.fullmatch(r"[\x20-\x7e]+", secret):
        raise AnnotqError(
            f"The token of {source} holds characters that cannot be sent.",
            "A token is one line of ASCII letters, digits and signs.",
        )
    return secret
