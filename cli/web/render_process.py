"""One page, made in a process of its own: it may take a core and gigabytes for minutes, and the collector goes on beside it.

Reads what is wanted from stdin and asks the collector over its own socket, as `annotq report --endpoint` would: with the limits
of every question. Writes one line of JSON (Made), then the gzipped HTML.
"""

from __future__ import annotations

import ctypes
import gzip
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from annotq.agent.channel import Access
from annotq.agent.errors import AnnotqError
from annotq.cli.remote_door import RemoteDoor
from annotq.cli.report import ANALYSIS_ROWS
from annotq.cli.web.job_urls import Asked
from annotq.collector.answer import AGAIN
from annotq.collector.query import Answer, Limits

QUESTION_SECONDS = 600.0
# For a turn among the questions of others.
TURN_SECONDS = 120.0
MOST_BYTES = 4 << 30
_PR_SET_PDEATHSIG = 1
_PAUSE_SECONDS = 0.5
_LESS_URGENT = 10


class Wanted(msgspec.Struct, frozen=True):
    """A page, and the way to the collector. endpoint: as users know it; own_endpoint: where to ask."""

    asked: Asked
    refresh_seconds: int | None
    endpoint: str
    own_endpoint: str
    token: str | None
    parent: int


class Made(msgspec.Struct, frozen=True):
    """What came of it: the verdict of a report, or what was wrong, for a user. peak_bytes: resident memory."""

    verdict: str | None = None
    error: str = ""
    hint: str = ""
    peak_bytes: int = 0


class PatientDoor(RemoteDoor):
    """Waits for its turn where a person would ask again."""

    def ask(self, sql: str, parameters: Sequence[object] = (), *, limits: Limits | None = None) -> Answer:
        """As RemoteDoor.ask."""
        until = time.monotonic() + TURN_SECONDS
        while True:
            try:
                return super().ask(sql, parameters, limits=limits)
            except AnnotqError as error:
                if AGAIN not in str(error) or time.monotonic() > until:
                    raise
            time.sleep(_PAUSE_SECONDS)


def main() -> None:
    """The whole process. Exit code 0 also when the page could not be made and it says why."""
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=Wanted)
    _step_back(wanted.parent)
    page = b""
    try:
        html, verdict = _page(wanted)
        page = gzip.compress(html.encode(), compresslevel=5)
        made = Made(verdict)
    except AnnotqError as error:
        made = Made(error=error.message, hint=error.hint)
    except MemoryError:
        made = Made(
            error=f"The report needs more than {MOST_BYTES >> 30} GiB of memory.",
            hint="Make it elsewhere: annotq report JOB --endpoint HOST:PORT",
        )
    made = msgspec.structs.replace(made, peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
    sys.stdout.buffer.write(msgspec.json.encode(made) + b"\n" + page)
    sys.stdout.buffer.flush()


def _page(wanted: Wanted) -> tuple[str, str | None]:
    asked = wanted.asked
    way = Access(wanted.own_endpoint, wanted.token)
    with PatientDoor(wanted.endpoint, Limits(rows=ANALYSIS_ROWS, seconds=QUESTION_SECONDS), way) as door:
        from annotq.cli.web.page_bodies import comparison, report

        if asked.against is None:
            return report(door, asked, wanted.refresh_seconds)
        return comparison(door, asked, wanted.refresh_seconds), None


def _step_back(parent: int) -> None:
    """Be less urgent than the collector, the first to go when memory is short, and gone when it is."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(
        resource.RLIMIT_DATA, (MOST_BYTES if hard == resource.RLIM_INFINITY else min(hard, MOST_BYTES), hard)
    )
    with suppress(OSError):
        os.nice(_LESS_URGENT)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
