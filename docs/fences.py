"""The fenced blocks of a Markdown page: what a reader copies, and what the page says a command prints.

A comment on the line before a fence says what is special about it:

    <!-- not run: needs SLURM -->     nobody runs it but its reader; its annotq command lines are parsed all the same
    <!-- background -->               it runs until the page ends, such as a collector
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)\s*$")
_MARK = re.compile(r"^<!-- (not run: .+|background) -->$")
PROMPT = "$ "
CONTINUED = "> "


@dataclass(frozen=True)
class Block:
    """A fenced block. line: of its first line, from 1. text: without the fences. mark: the comment before it, or empty."""

    line: int
    language: str
    text: str
    mark: str

    @property
    def not_run(self) -> str:
        """Why nobody runs it; empty when it is run."""
        return self.mark.removeprefix("not run: ") if self.mark.startswith("not run: ") else ""

    @property
    def background(self) -> bool:
        return self.mark == "background"

    def commands(self) -> tuple[tuple[str, str], ...]:
        """(command, output that is shown) for each prompt of a console block. Raises ValueError where it has none."""
        found: list[tuple[list[str], list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith(PROMPT):
                found.append(([line.removeprefix(PROMPT)], []))
            elif not found:
                raise ValueError(f"line {self.line}: a console block begins with a prompt, not with {line!r}")
            elif line.startswith(CONTINUED) and not found[-1][1]:
                found[-1][0].append(line.removeprefix(CONTINUED))
            else:
                found[-1][1].append(line)
        return tuple(("\n".join(command), "\n".join(output)) for command, output in found)

    def code(self) -> str:
        """The block without what commands print."""
        return "\n".join(command for command, _ in self.commands()) if self.language == "console" else self.text


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page in order. Raises ValueError for a fence that is never closed."""
    mark, opened, lines = "", 0, []
    language = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if opened and line == "```":
            yield Block(opened + 1, language, "\n".join(lines), mark)
            opened, mark, lines = 0, "", []
        elif opened:
            lines.append(line)
        elif fence:
            opened, language = number, fence[1]
        elif line.strip():
            found = _MARK.match(line)
            mark = found[1] if found else ""
    if opened:
        raise ValueError(f"{page}: the fence in line {opened} is never closed")


def outside_fences(page: Path) -> Iterator[str]:
    """The lines of a page that lie in no fenced block."""
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            yield line
