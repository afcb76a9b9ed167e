"""The pages about jobs: made once per state of the data, kept while it lasts, and no more than two at a time."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import structlog

from annotq.agent.errors import AnnotqError
from annotq.cli.web.job_urls import Asked
from annotq.cli.web.render_process import Made, Wanted

RENDERS_AT_ONCE = 2
# Different pages that are being made or wait for it; the next one is sent away.
MOST_UNDER_WAY = 16
RENDER_SECONDS = 600.0
# So long a request waits for its page before it is told to come back.
PATIENCE_SECONDS = 5.0
KEPT_BYTES = 64 << 20
# A page that failed is tried again after so long, or with other data.
FAILED_SECONDS = 30.0
# That of a running job also says how its ranks are: it is made again after so long, or ten times as long as it took. New data
# come all the time, and it lasts for twice as long as it took: the rest of the time is for the ranks and for other questions.
RUNNING_SECONDS = 30.0
# For its verdict alone, while somebody looks at the list of jobs, a page is made again after so long.
AHEAD_SECONDS = 300.0
RUNNING_REST = 2.0

log = structlog.get_logger()


@dataclass(frozen=True)
class Page:
    """A page as it was made of one version of the data; error and hint instead of HTML where it could not be."""

    version: str
    gzipped: bytes
    verdict: str | None
    error: str
    hint: str
    made: float  # time.monotonic()
    took: float


class BusyError(AnnotqError):
    """No page is made now: there are too many already, or the collector ends."""


_ENDING = "The collector is about to end.", "Come back when it has started again."


class Renders:
    """Makes and keeps pages. Runs on the event loop; the work is done in processes (render_process.py)."""

    def __init__(self, endpoint: str, own_endpoint: str, token: str | None) -> None:
        self._pattern = Wanted(Asked(""), None, endpoint, own_endpoint, token, os.getpid())
        self._kept: OrderedDict[tuple[Asked, int | None], Page] = OrderedDict()
        self._under_way: dict[tuple[Asked, int | None], asyncio.Task[Page]] = {}
        self._turn = asyncio.Semaphore(RENDERS_AT_ONCE)
        self._stopped = False
        self.made = 0

    async def page(self, asked: Asked, version: str, refresh_seconds: int | None) -> Page | None:
        """The page for this version of the data, or for the one before it if that is being made just now; of a running job
        (refresh_seconds) it may be older by RUNNING_REST times what it took.

        None: it takes longer than PATIENCE_SECONDS and goes on being made. Raises BusyError, and AnnotqError when it failed.
        """
        key = asked, refresh_seconds
        page = self._found(key, version)
        if page is None:
            task = self._under_way.get(key) or self._begin(key, version)
            done, _ = await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
            if not done:
                return None
            if task.cancelled():
                raise BusyError(*_ENDING)
            page = task.result()
        if page.error:
            raise AnnotqError(page.error, page.hint)
        return page

    def look_ahead(self, wanted: Iterable[tuple[Asked, str, int | None]]) -> None:
        """Begin one of these pages (as for `page`) that nobody asked for, if none is being made: the first whose verdict is not
        known, or of data that have changed AHEAD_SECONDS ago."""
        for asked, version, refresh_seconds in wanted:
            if self._under_way or self._stopped:
                return
            known = [page for (other, _), page in self._kept.items() if other == asked]
            newest = max(known, key=lambda page: page.made, default=None)
            age = 0.0 if newest is None else time.monotonic() - newest.made
            if newest is None or (newest.version != version and age > max(AHEAD_SECONDS, 20 * newest.took)):
                self._begin((asked, refresh_seconds), version)

    def verdict(self, asked: Asked, version: str) -> tuple[str, bool] | None:
        """The verdict of the newest report of a job attempt, and whether it is of this version; None: none was made."""
        found = [page for (other, _), page in self._kept.items() if other == asked and page.verdict]
        newest = max(found, key=lambda page: page.made, default=None)
        return None if newest is None or newest.verdict is None else (newest.verdict, newest.version == version)

    async def stop(self) -> None:
        """End what is being made."""
        self._stopped = True
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _found(self, key: tuple[Asked, int | None], version: str) -> Page | None:
        page = self._kept.get(key)
        if page is None:
            return None
        age, running = time.monotonic() - page.made, key[1] is not None
        if page.version != version and (page.error or not running or age > RUNNING_REST * page.took):
            return None
        if page.error and age > FAILED_SECONDS:
            return None
        if running and age > max(RUNNING_SECONDS, 10 * page.took):
            return None
        self._kept.move_to_end(key)
        return page

    def _begin(self, key: tuple[Asked, int | None], version: str) -> asyncio.Task[Page]:
        if self._stopped:
            raise BusyError(*_ENDING)
        if len(self._under_way) >= MOST_UNDER_WAY:
            raise BusyError(f"{len(self._under_way)} pages are being made already.", "Come back in a moment.")
        self._under_way[key] = task = asyncio.create_task(self._make(key, version))
        task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return task

    async def _make(self, key: tuple[Asked, int | None], version: str) -> Page:
        asked, refresh_seconds = key
        wanted = msgspec.structs.replace(self._pattern, asked=asked, refresh_seconds=refresh_seconds)
        async with self._turn:
            started = time.monotonic()
            made, gzipped = await _made_of(wanted)
        self.made += 1
        seconds = time.monotonic() - started
        about = {"job": asked.job, "attempt": asked.attempt, "against": asked.against}
        log.info(
            "page made",
            **about,
            seconds=round(seconds, 3),
            bytes=len(gzipped),
            peak_bytes=made.peak_bytes,
            **({"error": made.error} if made.error else {}),
        )
        page = Page(version, gzipped, made.verdict, made.error, made.hint, time.monotonic(), seconds)
        self._kept[key] = page
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and sum(len(kept.gzipped) for kept in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)
        return page


async def _made_of(wanted: Wanted) -> tuple[Made, bytes]:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-P", "-m", "annotq.cli.web.render_process")
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment()
        )
    except OSError as error:
        what = f"No process can be started to make the page: {error.strerror}."
        return Made(error=what, hint="The machine lacks memory, or processes."), b""
    try:
        async with asyncio.timeout(RENDER_SECONDS):
            output, errors = await process.communicate(msgspec.json.encode(wanted))
    except TimeoutError:
        return Made(
            error=f"The page was not done after {RENDER_SECONDS:g} s.", hint="Make it elsewhere: annotq report"
        ), b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    head, _, page = output.partition(b"\n")
    with suppress(msgspec.MsgspecError):
        if process.returncode == 0:
            return msgspec.json.decode(head, type=Made), page
    log.error("page not made", code=process.returncode, said=errors.decode(errors="replace")[-4000:])
    what = f"The page could not be made: its process ended with {process.returncode}."
    return Made(error=what, hint="The collector's log says why."), b""


def _environment() -> dict[str, str]:
    """Without settings of annotq, which are for other collectors; numpy's threads would only stand in the way."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("ANNOTQ_")}
    return found | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
