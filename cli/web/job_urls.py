"""Addresses of the pages of a job. A job may be called anything: slashes, dots, percent signs, every language."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, quote, unquote_to_bytes, urlencode

PREFIX = "/jobs/"
# Browsers take these for a way up, however they are written. They travel as a parameter.
_DOTS = {".", ".."}


@dataclass(frozen=True)
class Asked:
    """A page of a job: its report, or the comparison with another. attempt None: the latest one."""

    job: str
    attempt: int | None = None
    against: str | None = None
    against_attempt: int | None = None


def job_url(asked: Asked) -> str:
    """The address of a page, from the root on."""
    names = [asked.job] if asked.against is None else [asked.job, asked.against]
    parameters: dict[str, str | int] = {}
    if _DOTS.isdisjoint(names) and "" not in names:
        path = PREFIX + "/against/".join(quote(name, safe="") for name in names)
    else:
        path = PREFIX
        parameters |= dict(zip(("job", "against"), names, strict=False))
    numbers = {"attempt": asked.attempt, "against_attempt": asked.against_attempt}
    parameters |= {name: number for name, number in numbers.items() if number is not None}
    return f"{path}?{urlencode(parameters)}" if parameters else path


def asked_of(raw_path: bytes, query: bytes) -> Asked | None:
    """What an address asks for; None when it is that of no job's page. raw_path: with its percent signs."""
    parts = raw_path.removeprefix(PREFIX.encode()).split(b"/")
    try:
        given = parse_qs(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=8)
        attempt, against_attempt = (_number(given.get(name)) for name in ("attempt", "against_attempt"))
        match parts:
            case [b""] if "job" in given:
                job, against = given["job"][0], given.get("against", [None])[0]
            case [name] if name:
                job, against = _name(name), None
            case [name, b"against", other] if name and other:
                job, against = _name(name), _name(other)
            case _:
                return None
    except ValueError:
        return None
    return Asked(job, attempt, against, against_attempt)


def _name(text: bytes) -> str:
    return unquote_to_bytes(text).decode()


def _number(values: list[str] | None) -> int | None:
    """Raises ValueError for what is no attempt."""
    if values is None:
        return None
    text = values[0]
    if len(values) > 1 or not is_attempt(text):
        raise ValueError(text)
    return int(text)


def is_attempt(text: str) -> bool:
    """Whether it is a number that a column of the store holds."""
    return text.isascii() and text.isdigit() and len(text) < 19
