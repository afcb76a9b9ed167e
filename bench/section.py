"""One benchmark's outcome, as Markdown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A title, what was done, and a table (the first row is its header)."""

    title: str
    what: str
    rows: list[tuple[str, ...]]

    def markdown(self) -> str:
        header, *rows = (f"| {' | '.join(row)} |" for row in self.rows)
        return "\n".join([f"## {self.title}", "", self.what, "", header, "|---" * len(self.rows[0]) + "|", *rows, ""])


def megabytes(count: float) -> str:
    return f"{count / 1e6:,.0f} MB"
