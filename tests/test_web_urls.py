"""Addresses of job pages: whatever a job is called, its link leads to it, and nothing else does."""

from __future__ import annotations

import posixpath
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotq.cli.web.job_urls import Asked, asked_of, job_url

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NUMBERS = st.none() | st.integers(0, 10**12)


def read(address: str) -> Asked | None:
    path, _, query = address.partition("?")
    return asked_of(path.encode("ascii"), query.encode("ascii"))


@given(NAMES, NUMBERS, st.none() | NAMES, NUMBERS)
def test_the_link_of_a_job_leads_to_it(job: str, attempt: int | None, against: str | None, other: int | None) -> None:
    asked = Asked(job, attempt, against, None if against is None else other)
    assert read(job_url(asked)) == asked


@pytest.mark.parametrize(
    "name", ["..", ".", "a/../b", "a/b", "\\", "", "%2e%2e", "?x=1", "#top", "//evil.example", "\x00"]
)
def test_a_browser_leaves_the_link_as_it_is(name: str) -> None:
    """It takes dots out of a path, percent signs or not, and reads a backslash as a slash."""
    parts = urlsplit(job_url(Asked(name)))
    assert (parts.scheme, parts.netloc, parts.fragment) == ("", "", "")
    plain = parts.path.lower().replace("%2e", ".")
    assert "\\" not in plain and posixpath.normpath(plain) == plain.rstrip("/")


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        ("/jobs/slow4", Asked("slow4")),
        ("/jobs/slow4?attempt=2", Asked("slow4", 2)),
        ("/jobs/a/against/b?attempt=1&against_attempt=0", Asked("a", 1, "b", 0)),
        ("/jobs/a%2Fagainst%2Fb", Asked("a/against/b")),
        ("/jobs/%E5%90%8D", Asked("名")),
        ("/jobs/a%00b", Asked("a\x00b")),
        ("/jobs/?job=..", Asked("..")),
        ("/jobs/", None),
        ("/jobs/a/b", None),
        ("/jobs/a/against/", None),
        ("/jobs/a/against/b/", None),
        ("/jobs/%FF", None),
        ("/jobs/a?attempt=-1", None),
        ("/jobs/a?attempt=1&attempt=2", None),
        ("/jobs/a?attempt=99999999999999999999", None),
        ("/jobs/a?attempt=%C2%B2", None),
    ],
)
def test_what_an_address_asks_for(address: str, asked: Asked | None) -> None:
    assert read(address) == asked
