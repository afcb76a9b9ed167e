"""A whole HTML document: one file, no network, our own style and script inside, nothing else may run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from annotq.cli.html.rendering import render, text_file


@dataclass(frozen=True)
class Link:
    """An entry of the navigation: an anchor of this page (`#regions`) or another page of the collector."""

    text: str
    href: str


def document(
    title: str,
    body: Markup,
    *,
    heading: str | None = None,
    lead: str | Markup = "",
    links: Sequence[Link] = (),
    refresh_seconds: int | None = None,
    styles: Sequence[str] = ("page.css",),
    forms: bool = False,
    home: str | None = None,
) -> str:
    """The document around `body`.

    title: of the window, and the heading unless one is given. lead: a line below the heading. links: the navigation.
    refresh_seconds: the page loads itself again so often, and has a button that stops it. styles: files of templates/.
    forms: whether its forms may be sent to where the page came from; none may otherwise. home: the page above this one.

    Nothing but the style and the script of this package can take effect: the Content-Security-Policy names their hashes,
    so `style=` and `onclick=` in the body do nothing. Use classes, and SVG attributes.
    """
    style, script = "".join(map(text_file, styles)), text_file("page.js")
    target = "'self'" if forms else "'none'"
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        f"base-uri 'none'; form-action {target}"
    )
    page = render(
        "document.html",
        title=title,
        heading=heading or title,
        lead=lead,
        links=links,
        body=body,
        style=Markup(style),
        script=Markup(script),
        policy=policy,
        refresh_seconds=refresh_seconds,
        home=home,
    )
    return f"{page}\n"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
