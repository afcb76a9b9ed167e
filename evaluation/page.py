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
    kept = section_texts(path)
    kept |= {section.title: section.markdown() for section in sections}
    titles = [title for title in order if title in kept]
    path.write_text("\n".join([introduction.strip(), "", *(kept[title] for title in titles)]), encoding="utf-8")


def section_texts(path: Path) -> dict[str, str]:
    """By title, the text of a page from its heading to the next; empty when there is no page."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("## "):
            lines = found.setdefault(line[3:], [])
        lines.append(line)
    return {title: "\n".join(lines).rstrip() + "\n" for title, lines in found.items()}
