"""Reads the view files: purpose, how to read it, documented columns, and the SELECT.

The header of each file in sql/views is the only place where a view is described. `annotq views`, the reference in
docs/ and COMMENT ON in the store all come from here.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

# Creation order: a view may use those before it.
ORDER = (
    "_traces",
    "_events",
    "_gpu_work",
    "_host_work",
    "kernels",
    "_region_busy",
    "region_instances",
    "regions",
    "host_regions",
    "replays",
    "_collective_names",
    "_collective_families",
    "_collective_calls",
    "_collective_waits",
    "collectives",
    "steps",
    "_step_bounds",
    "_step_segments",
    "step_parts",
    "coverage",
    "graphs",
    "ranks",
    "jobs",
    "agents",
    "_region_steps",
    "_region_codes",
    "_eager_codes",
    "_region_work",
)


@dataclass(frozen=True)
class Column:
    """One documented column. `unit` is "-" for none, `null` says when the value is NULL ("never" if it cannot be)."""

    name: str
    type: str
    unit: str
    null: str
    meaning: str


@dataclass(frozen=True)
class View:
    """One view file. Names that start with an underscore are internal and may change at any time."""

    name: str
    purpose: str
    reading: str
    columns: tuple[Column, ...]
    select: str

    @property
    def public(self) -> bool:
        return not self.name.startswith("_")


def load_views() -> list[View]:
    """All views in the order in which they have to be created."""
    folder = files("annotq.collector.sql.views")
    return [parse_view(name, folder.joinpath(f"{name}.sql").read_text(encoding="utf-8")) for name in ORDER]


def views_hash(views: list[View]) -> str:
    """Changes when any view's SELECT or description changes (16 hex digits)."""
    return hashlib.blake2b(repr(views).encode(), digest_size=8).hexdigest()


def parse_view(name: str, text: str) -> View:
    """Split a view file into its documented header and its SELECT. Raises ValueError naming the file when malformed."""
    lines = text.splitlines()
    header = [line[2:].strip() for line in lines[: _header_length(lines)]]
    if not header or not header[0].startswith(f"{name}: "):
        raise ValueError(f"{name}.sql must begin with '-- {name}: purpose'")
    prose = [line for line in header if not line.startswith("|")]
    split = next((i for i, line in enumerate(prose) if line.startswith("How to read it: ")), len(prose))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in header if line.startswith("|")]
    if any(len(row) != 5 for row in rows):
        raise ValueError(f"{name}.sql: a column row needs five cells")
    return View(
        name=name,
        purpose=" ".join(prose[:split]).removeprefix(f"{name}: ").strip(),
        reading=" ".join(prose[split:]).removeprefix("How to read it: ").strip(),
        columns=tuple(Column(*row) for row in rows[2:]),
        select="\n".join(lines[len(header) :]).strip().rstrip(";"),
    )


def create_statements(view: View, kind: str = "VIEW") -> list[str]:
    """The statements that make the view (kind: VIEW or TEMP VIEW) and put its description into the catalog."""
    statements = [f"CREATE OR REPLACE {kind} {view.name} AS\n{view.select}"]
    statements.append(f"COMMENT ON VIEW {view.name} IS {_quoted(f'{view.purpose} {view.reading}'.strip())}")
    for column in view.columns:
        text = f"{column.meaning} [unit: {column.unit}; NULL: {column.null}]"
        statements.append(f"COMMENT ON COLUMN {view.name}.{column.name} IS {_quoted(text)}")
    return statements


def _header_length(lines: list[str]) -> int:
    return next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))


def _quoted(text: str) -> str:
    return "'" + re.sub("'", "''", text) + "'"
