"""Sections of docs/evaluation.md: made one by one, put together into one page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Section:
    """A title, prose, and a table whose first row is its header (no rows: no table)."""

    title: str
    text: str
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", self.text.strip(), ""]
        if self.rows:
            header, *rows = (f"| {' | '.join(row)} |" for row in self.rows)
            lines += [header, "|---" * len(self.rows[0]) + "|", *rows, ""]
        return "\n".join(lines)


def percent(true: Iterable[bool]) -> str:
    """ "97" of 100 outcomes of which 97 are true; a tenth where it is not whole: "99.3". "-" of none."""
    values = list(true)
    if not values:
        return "-"
    return f"{100 * sum(values) / len(values):.1f}".removesuffix(".0")


def write_page(path: Path, introduction: str, sections: Sequence[Section], order: Sequence[str]) -> None:
    """Replace these sections of the page and keep its others, in the given order of titles; others go to the end."""
    kept = _sections(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept |= {section.title: section.markdown() for section in sections}
    titles = [title for title in order if title in kept]
    path.write_text("\n".join([introduction.strip(), "", *(kept[title] for title in titles)]), encoding="utf-8")


def _sections(text: str) -> dict[str, str]:
    """By title, the text from its heading to the next."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("## "):
            lines = found.setdefault(line[3:], [])
        lines.append(line)
    return {title: "\n".join(lines).rstrip() + "\n" for title, lines in found.items()}
