"""One part of a page: what it shows, how to read it, the drawing, and the SQL that gives its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from annotq.cli.html.rendering import render
from annotq.cli.statement import Statement


@dataclass(frozen=True)
class Figure:
    """anchor: its id in the page. lead: how to read it, one or two sentences. statements: run by `annotq query`, each gives
    numbers of this figure."""

    anchor: str
    title: str
    lead: str | Markup
    body: Markup
    statements: Sequence[Statement] = ()

    def html(self) -> Markup:
        return render("figure.html", figure=self, queries=[statement.filled() for statement in self.statements])


def without_data(anchor: str, title: str, why: str, statements: Sequence[Statement] = ()) -> Figure:
    """A figure that has nothing to show: a sentence says why."""
    return Figure(anchor, title, "", render("empty.html", why=why), statements)
