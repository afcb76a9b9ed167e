"""Who may see the page: the rules of gRPC, for browsers. One token opens everything; a browser gets a cookie for it."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Iterable
from dataclasses import replace
from http.cookies import CookieError, SimpleCookie

from annotq.agent.errors import EXIT_USAGE, AnnotqError
from annotq.collector.config import ServeConfig
from annotq.collector.security import check_host, check_listening

LOGIN_SECONDS = 12 * 3600


def check_http(config: ServeConfig, host: str) -> None:
    """Raise AnnotqError (usage) when the page's address does not exist, or could be reached by anybody: as gRPC's."""
    check_host(host)
    try:
        check_listening(replace(config, host=host))
    except AnnotqError as error:
        raise AnnotqError(f"--http: {error.message}", error.hint, EXIT_USAGE) from None


class Tokens:
    """The token of a collector, as a header or as the cookie that stands for it; without a token everybody may.

    The cookie is no token: it says until when it holds, signed with a key that nobody else has and that ends with the process.
    """

    def __init__(self, token: str | None, port: int, secure: bool) -> None:
        self._expected = None if token is None else token.encode()
        self._key = secrets.token_bytes(32)
        # Cookies know no ports: two collectors of one machine would take each other's away.
        self.cookie_name = f"__Host-annotq-{port}" if secure else f"annotq-{port}"
        self.secure = secure

    @property
    def wanted(self) -> bool:
        return self._expected is not None

    def fits(self, token: str) -> bool:
        """Whether it is the token, in a time that does not tell how much of it is right."""
        given = token.encode("utf-8", "surrogateescape")
        return self._expected is None or hmac.compare_digest(given, self._expected)

    def lets_in(self, authorization: Iterable[str], cookies: Iterable[str], now: float | None = None) -> bool:
        """By the values of the two headers, each as often as it was sent."""
        if self._expected is None:
            return True
        given = list(authorization)
        if given:
            expected = b"Bearer " + self._expected
            return len(given) == 1 and hmac.compare_digest(given[0].encode("latin-1", "replace"), expected)
        return any(self._holds(value, time.time() if now is None else now) for value in self._ours(cookies))

    def cookie(self, now: float | None = None) -> str:
        """The value of a new cookie."""
        until = int((time.time() if now is None else now) + LOGIN_SECONDS)
        return f"{until}.{self._signature(str(until))}"

    def _holds(self, value: str, now: float) -> bool:
        until, _, signature = value.partition(".")
        right = hmac.compare_digest(signature.encode(), self._signature(until).encode())
        return right and now < int(until)  # a number, since it was signed here

    def _signature(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def _ours(self, cookies: Iterable[str]) -> list[str]:
        found = []
        for text in cookies:
            try:
                jar = SimpleCookie(text)
            except CookieError:
                continue
            if self.cookie_name in jar:
                found.append(jar[self.cookie_name].value)
        return found


class Hosts:
    """The names under which the page may be asked for.

    A page of somebody else can give its own name the address of this machine, and then read what it finds as if it were its own
    (DNS rebinding). Such a request bears that name in its Host header. Addresses, localhost, the name in --http and this
    machine's own names cannot be had by others. With TLS the certificate says it, and no name is refused.
    """

    def __init__(self, host: str, more: Iterable[str], tls: bool) -> None:
        own = {host.strip("[]"), socket.gethostname(), socket.getfqdn(), *more}
        self._names = {"localhost", *(name.lower().rstrip(".") for name in own if name)}
        self._any = tls

    def known(self, header: str) -> bool:
        """Whether a Host header, with a port or without, names this machine."""
        name = header.strip().lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") == 1:
            name = name.partition(":")[0]
        return self._any or name.rstrip(".") in self._names or _is_address(name)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
