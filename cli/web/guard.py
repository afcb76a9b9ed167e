"""What every request has to pass before anything answers it, and the headers that every answer bears."""

from __future__ import annotations

from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from annotq.cli.web.access import Hosts, Tokens
from annotq.cli.web.pages import login_page, message_page

# Which of the page's own script and style may run the document itself says, by their hashes. Nobody may frame it, read it from
# elsewhere, keep it, or be told where its reader came from: names of jobs are in its addresses.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
HEALTH = "/healthz"
LOGIN = "/login"
_POSTED = {LOGIN, "/logout"}
# Who follows a link in a chat has no cookie with him: it goes with requests of our own pages only. This page asks again, and
# does not show anything that a page of somebody else could want.
_FROM_ELSEWHERE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>annotq</title></head>
<body><p><a href="">Go on to annotq</a></p>
<script>if (performance.getEntriesByType("navigation")[0]?.type !== "reload") location.reload();</script></body></html>
"""

log = structlog.get_logger()


class Guard:
    """An ASGI application around another one."""

    def __init__(self, application: ASGIApp, tokens: Tokens, hosts: Hosts) -> None:
        self._application = application
        self._tokens = tokens
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begun = False

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        request = Request(scope, receive)
        answer = self._refusal(request) or self._application
        try:
            await answer(scope, receive, with_headers)
        except Exception as error:
            log.exception("request failed", path=scope["path"], error=str(error))
            if begun:
                raise
            failed = error_answer(
                request, 500, "Failed", "Something went wrong here.", "The collector's log says what."
            )
            await failed(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """The answer to a request that goes no further."""
        path, method = request.scope["path"], request.method
        allowed = ("POST",) if path == "/logout" else ("GET", "HEAD", *(("POST",) if path in _POSTED else ()))
        if method not in allowed:
            answer = error_answer(request, 405, "Not allowed", f"{method} is not for this address.")
            answer.headers["Allow"] = ", ".join(allowed)
            return answer
        if path == HEALTH:
            return None
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self._hosts.known(hosts[0]):
            return error_answer(
                request,
                421,
                "Another host",
                f"This collector does not answer for {hosts[0] if hosts else 'no name'}.",
                "Use its address, or start it with --http-name NAME.",
            )
        if method == "POST" and not _from_here(request.headers):
            return error_answer(request, 403, "Not from here", "This form was sent from a page of somebody else.")
        if path == LOGIN or self.may(request):
            return None
        return self._login(request)

    def may(self, request: Request) -> bool:
        """Whether a request bears the token, or the cookie that stands for it."""
        headers = request.headers
        return self._tokens.lets_in(headers.getlist("authorization"), headers.getlist("cookie"))

    def _login(self, request: Request) -> Response:
        given = "authorization" in request.headers
        followed = request.method == "GET" and request.headers.get("sec-fetch-site") == "cross-site"
        if followed and wants_page(request) and not given:
            return HTMLResponse(_FROM_ELSEWHERE)
        challenge = {"WWW-Authenticate": "Bearer"}
        if wants_page(request) and not given:
            return HTMLResponse(login_page(False, _address(request)), 401, challenge)
        why = "The token is wrong." if given else "This collector wants a token: Authorization: Bearer TOKEN."
        answer = error_answer(request, 401, "No entry", why)
        answer.headers.update(challenge)
        return answer


def error_answer(request: Request, status: int, title: str, message: str, hint: str = "") -> Response:
    """A page for who wants pages, a line of text for everybody else."""
    if wants_page(request):
        return HTMLResponse(message_page(title, message, hint), status)
    return PlainTextResponse(f"{message} {hint}".rstrip() + "\n", status)


def wants_page(request: Request) -> bool:
    """Whether a browser asks."""
    return "text/html" in request.headers.get("accept", "")


def _from_here(headers: Headers) -> bool:
    """Whether a form comes from a page of this host. Programs send neither header."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers["host"]


def _address(request: Request) -> str:
    path = bytes(request.scope["raw_path"]).decode("ascii")
    query = bytes(request.scope["query_string"]).decode("ascii", "replace")
    return f"{path}?{query}" if query else path
