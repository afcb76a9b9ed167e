"""Rows for people: an aligned table, and a markdown table."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import zip_longest
from typing import IO, Any

import pyarrow as pa
from rich.cells import cell_len, chop_cells

from annotq.cli.text_formats import cell_text
from annotq.cli.time_columns import NUMBER, is_number

# A text column is folded when the terminal is too narrow, but never below this many characters.
NARROWEST_TEXT = 20

GAP = "  "

# Names come out of trace files: what would move the cursor or colour the terminal is shown, not sent.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127) if code != ord("\n")}


def write_table(table: pa.Table, stream: IO[str], terminal: bool) -> None:
    """Columns aligned, numbers to the right, NULL as "-". Long texts are folded on a terminal only.

    rich's Table would do it too, in 15 s for 10,000 rows of the view kernels; this takes a tenth of it.
    """
    names = table.column_names
    cells = [[table_cell(name, value) for value in table.column(name).to_pylist()] for name in names]
    right = [_to_the_right(field) for field in table.schema]
    widths = [max(map(_width, [name, *column])) for name, column in zip(names, cells, strict=True)]
    if terminal:
        widths = _fitted(widths, right, shutil.get_terminal_size().columns)
    bold = terminal and not os.environ.get("NO_COLOR")
    for line in _lines(names, widths, right):
        stream.write(f"\x1b[1m{line}\x1b[0m\n" if bold else f"{line}\n")
    for row in zip(*cells, strict=True):
        for line in _lines(row, widths, right):
            stream.write(f"{line}\n")


def write_markdown(table: pa.Table, stream: IO[str]) -> None:
    """A table as GitHub reads it; NULL as an empty cell."""
    stream.write(f"| {' | '.join(map(_escaped, table.column_names))} |\n")
    stream.write(f"|{'|'.join('---:' if _to_the_right(field) else '---' for field in table.schema)}|\n")
    columns = [
        ["" if value is None else _escaped(table_cell(name, value)) for value in table.column(name).to_pylist()]
        for name in table.column_names
    ]
    for row in zip(*columns, strict=True):
        stream.write(f"| {' | '.join(row)} |\n")


def table_cell(column: str, value: Any) -> str:
    """One value for a person: ratios with three decimals, other fractions with six digits, NULL as "-"."""
    if value is None:
        return "-"
    if isinstance(value, float | Decimal):
        if column.endswith("ratio"):
            return f"{value:.3f}"
        # No powers of ten for what a person reads as a whole number, such as nanoseconds.
        return f"{value:.0f}" if 1e5 <= abs(float(value)) < 1e15 else f"{value:.6g}"
    return cell_text(value).translate(_CONTROL)


def _lines(row: Sequence[str], widths: list[int], right: list[bool]) -> Iterator[str]:
    """A row as one line, or several where cells are folded or hold line ends."""
    folded = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
    for parts in zip_longest(*folded, fillvalue=""):
        padded = [
            " " * (width - cell_len(part)) + part if flag else part + " " * (width - cell_len(part))
            for part, width, flag in zip(parts, widths, right, strict=True)
        ]
        yield GAP.join(padded).rstrip()


def _folded(cell: str, width: int) -> list[str]:
    lines = cell.splitlines() if "\n" in cell else [cell]
    return [part for line in lines for part in _wrapped(line, width)]


def _wrapped(line: str, width: int) -> list[str]:
    if cell_len(line) <= width:
        return [line]
    if len(line) != cell_len(line):
        return chop_cells(line, width)  # characters two cells wide
    return textwrap.wrap(line, width, break_on_hyphens=False) or [line]


def _width(cell: str) -> int:
    return cell_len(cell) if "\n" not in cell else max(map(cell_len, cell.split("\n")))


def _fitted(widths: list[int], right: list[bool], room: int) -> list[int]:
    """Takes from the widest text columns until the line fits, or none is left that may shrink."""
    fitted = list(widths)
    foldable = [index for index, flag in enumerate(right) if not flag]
    while foldable and sum(fitted) + len(GAP) * (len(fitted) - 1) > room:
        widest = max(foldable, key=lambda index: fitted[index])
        if fitted[widest] <= NARROWEST_TEXT:
            break
        fitted[widest] -= 1
    return fitted


def _to_the_right(field: pa.Field[Any]) -> bool:
    return field.metadata == NUMBER or is_number(field.type)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")
