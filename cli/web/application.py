"""The addresses of the collector's page, and what answers each."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from urllib.parse import parse_qs

from prometheus_client.exposition import choose_encoder
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from annotq.agent.errors import AnnotqError
from annotq.cli.web.access import LOGIN_SECONDS, Hosts, Tokens
from annotq.cli.web.connections import REQUEST_SECONDS
from annotq.cli.web.guard import LOGIN, Guard, error_answer
from annotq.cli.web.job_list import MOST_JOBS, JobRow
from annotq.cli.web.job_questions import JobQuestions, UnknownJobError
from annotq.cli.web.job_urls import Asked, asked_of, is_attempt, job_url
from annotq.cli.web.pages import jobs_page, login_page, waiting_page
from annotq.cli.web.renders import BusyError, Page, Renders
from annotq.collector.answer import AGAIN
from annotq.collector.front import Inside

# How often the page of a running job asks for itself again.
REFRESH_SECONDS = 15
# Of so many job attempts the list has verdicts without that anybody asks for their reports.
MOST_AHEAD = 20
_MOST_FORM_BYTES = 8192
_CHUNK_BYTES = 256 << 10


class Application:
    """Answers requests. draining: whether the collector is about to end."""

    def __init__(self, inside: Inside, renders: Renders, tokens: Tokens, hosts: Hosts) -> None:
        self.draining = False
        self._inside = inside
        self._renders = renders
        self._tokens = tokens
        self._questions = JobQuestions(inside.answer)
        routes = [
            Route("/", self._jobs),
            Route("/jobs/{rest:path}", self._job),
            Route("/compare", self._compare),
            Route("/api/jobs", self._api_jobs),
            Route("/metrics", self._metrics),
            Route("/healthz", self._health),
            Route(LOGIN, self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
        ]
        router = Router(routes, redirect_slashes=False, default=_missing)
        self.guarded = Guard(ExceptionMiddleware(router, {AnnotqError: _failed}), tokens, hosts)

    async def _jobs(self, request: Request) -> Response:
        rows = await self._questions.newest()
        verdicts = {(row.job, row.attempt): found for row in rows if (found := self._verdict(row))}
        now_ns = time.time_ns()
        newest = [row for row in rows if row.ranks_seen > 1][:MOST_AHEAD]
        self._renders.look_ahead(
            (Asked(row.job, row.attempt), row.version, self._refresh(row, now_ns)) for row in newest
        )
        may_leave = self._tokens.wanted and "authorization" not in request.headers
        return HTMLResponse(jobs_page(rows, verdicts, now_ns, self._inside.endpoint, may_leave))

    async def _job(self, request: Request) -> Response:
        asked = asked_of(bytes(request.scope["raw_path"]), bytes(request.scope["query_string"]))
        if asked is None:
            return error_answer(request, 404, "Not found", "No page has this address.")
        row = await self._questions.attempt(asked.job, asked.attempt)
        exact, version = replace(asked, attempt=row.attempt), row.version
        refresh = self._refresh(row, time.time_ns())
        if asked.against is not None:
            other = await self._questions.attempt(asked.against, asked.against_attempt)
            exact, version = replace(exact, against_attempt=other.attempt), f"{version} {other.version}"
            refresh = refresh or self._refresh(other, time.time_ns())
        page = await self._renders.page(exact, version, refresh)
        if page is None:
            return HTMLResponse(waiting_page(asked), 202, {"Retry-After": "3"})
        return await _sent(page, request)

    async def _compare(self, request: Request) -> Response:
        """From the form below the list of jobs to the address of the comparison."""
        sides = [request.query_params.get(name, "").partition("/") for name in ("job", "against")]
        if not all(is_attempt(attempt) for attempt, _, _ in sides):
            return error_answer(request, 404, "Not found", "Choose two jobs to compare.")
        (attempt, _, job), (other_attempt, _, other) = sides
        return RedirectResponse(job_url(Asked(job, int(attempt), other, int(other_attempt))), 303)

    async def _api_jobs(self, request: Request) -> Response:
        rows = await self._questions.newest()
        now_ns = time.time_ns()
        listed = [self._as_json(row, now_ns) for row in rows[:MOST_JOBS]]
        return JSONResponse({"now_ns": now_ns, "truncated": len(rows) > MOST_JOBS, "jobs": listed})

    async def _metrics(self, request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        text = await asyncio.to_thread(encode, self._inside.registry)
        return Response(text, headers={"Content-Type": kind})

    async def _health(self, request: Request) -> Response:
        problem = "stopping" if self.draining else self._inside.problem()
        if not problem:
            return PlainTextResponse("serving\n")
        # Who may not ask need not know about paths and disks.
        told = problem if self.draining or self.guarded.may(request) else "the log and annotq status say why"
        return PlainTextResponse(f"not serving: {told}\n", 503)

    async def _login(self, request: Request) -> Response:
        if request.method != "POST":
            return HTMLResponse(login_page(False, _local(request.query_params.get("next", "/"))))
        given = await _form(request)
        after = _local(given.get("next", "/"))
        if not self._tokens.fits(given.get("token", "").strip()):
            return HTMLResponse(login_page(True, after), 401)
        answer = RedirectResponse(after, 303)
        name, secure = self._tokens.cookie_name, self._tokens.secure
        answer.set_cookie(
            name, self._tokens.cookie(), LOGIN_SECONDS, path="/", secure=secure, httponly=True, samesite="strict"
        )
        return answer

    async def _logout(self, request: Request) -> Response:
        answer = RedirectResponse("/", 303)
        name, secure = self._tokens.cookie_name, self._tokens.secure
        answer.delete_cookie(name, path="/", secure=secure, httponly=True, samesite="strict")
        return answer

    def _refresh(self, row: JobRow, now_ns: int) -> int | None:
        return REFRESH_SECONDS if row.goes_on(now_ns) else None

    def _verdict(self, row: JobRow) -> tuple[str, bool] | None:
        return self._renders.verdict(Asked(row.job, row.attempt), row.version)

    def _as_json(self, row: JobRow, now_ns: int) -> dict[str, object]:
        found = self._verdict(row)
        fields = {
            name: getattr(row, name) for name in JobRow.__dataclass_fields__ if name not in ("last_ns", "version")
        }
        return {
            **fields,
            "state": row.state(now_ns),
            "verdict": found[0] if found else None,
            "verdict_of_newest_data": found[1] if found else None,
            "url": job_url(Asked(row.job, row.attempt)),
        }


async def _sent(page: Page, request: Request) -> Response:
    """The page, packed as it is kept where the browser unpacks it."""
    content, headers = page.gzipped, {"Vary": "Accept-Encoding"}
    if _unpacks(request.headers.get("accept-encoding", "")):
        headers["Content-Encoding"] = "gzip"
    else:
        content = await asyncio.to_thread(gzip.decompress, content)
    headers["Content-Length"] = str(len(content))
    return StreamingResponse(_chunks(content), headers=headers, media_type="text/html")


def _unpacks(accepted: str) -> bool:
    """Whether an Accept-Encoding names gzip, and not as what must not come."""
    codings = [coding.replace(" ", "").lower() for coding in accepted.split(",")]
    return any(coding.startswith("gzip") and coding not in ("gzip;q=0", "gzip;q=0.0") for coding in codings)


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    """Piece by piece: what a slow reader has not taken stays here once, not in the buffer of each connection."""
    for first in range(0, len(content), _CHUNK_BYTES):
        yield content[first : first + _CHUNK_BYTES]


async def _form(request: Request) -> dict[str, str]:
    """The fields of a small form; empty when it is none, or does not come: whoever sends one has no token yet."""
    body = b""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > _MOST_FORM_BYTES:
                    return {}
    except (TimeoutError, ClientDisconnect):
        return {}
    try:
        return {name: values[-1] for name, values in parse_qs(body.decode(), max_num_fields=8).items()}
    except ValueError:
        return {}


def _local(address: str) -> str:
    """The address if it is one of this page, else the list of jobs: a login must not lead elsewhere."""
    harmless = address.isascii() and address.isprintable() and "\\" not in address
    return address if harmless and address.startswith("/") and not address.startswith(("//", LOGIN)) else "/"


async def _missing(scope: Scope, receive: Receive, send: Send) -> None:
    answer = error_answer(Request(scope), 404, "Not found", "No page has this address.")
    await answer(scope, receive, send)


def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, AnnotqError)
    if isinstance(error, UnknownJobError):
        return error_answer(request, 404, "Not found", error.message, error.hint)
    busy = isinstance(error, BusyError) or AGAIN in str(error)
    answer = error_answer(
        request, 503 if busy else 500, "Not now" if busy else "Not to be had", error.message, error.hint
    )
    if busy:
        answer.headers["Retry-After"] = "5"
    return answer
