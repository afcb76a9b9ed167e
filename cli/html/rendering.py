"""Jinja2 templates of this package, and how numbers are written on a page."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from annotq.cli.time_columns import duration_text

NONE = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"


def render(template: str, **values: object) -> Markup:
    """One template of templates/, filled. Everything that is not Markup already is escaped: names are user input."""
    return Markup(_environment().get_template(template).render(**values))


def text_file(name: str) -> str:
    """A file of templates/ as it is, such as page.css."""
    return (files(__package__) / "templates" / name).read_text(encoding="utf-8")


def duration(ns: float | None) -> str:
    """Three significant digits and the unit that fits; an en dash for None."""
    return duration_text(ns) or NONE


def ratio(value: float | None) -> str:
    """Two decimals up to 10, three digits above; an en dash for None."""
    if value is None or value != value:
        return NONE
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{share:.1%}"


def count(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


@cache
def _environment() -> Environment:
    folder = files(__package__) / "templates"
    sources = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".html")}
    environment = Environment(
        loader=DictLoader(sources), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"duration": duration, "ratio": ratio, "percent": percent, "count": count}
    return environment
