"""Heat maps as tables: every cell holds its number, the colour is on top. Arrow keys and the mouse read cells out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from annotq.cli.html.rendering import TIMES, ratio, render

Grid = NDArray[np.float64]

# Factors from which a cell is one shade darker, slow and fast alike. 1.05 is what a finding needs.
RATIO_EDGES = (1.03, 1.05, 1.10, 1.25, 2.0)
TIME_SHADES = 7
# Up to the first number of columns cells need not fill the page; above the second numbers appear on wide screens only, above
# the third not at all.
FEW_COLUMNS, MEDIUM_COLUMNS, DENSE_COLUMNS = 8, 12, 24
MANY_ROWS = 24
# In pixels, of a name of a column with its gap, and of all columns on a usual screen.
CHARACTER_WIDTH, PAGE_WIDTH = 9, 950
UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))


@dataclass(frozen=True)
class Pane:
    """One measure in every cell. name: as in the page's address. label: on the switch. say: before the value when it is
    read out. texts, shades: shape (rows, columns); an empty text has no value."""

    name: str
    label: str
    say: str
    unit: str
    texts: list[list[str]]
    shades: list[list[str]]
    legend: Markup


@dataclass(frozen=True)
class Heatmap:
    """rows, columns: their names; titles say more where there is more to say. row_word, column_word: what a name is, before
    it when read out. corner: above the names of the rows. panes: of the same shape, the first is shown first."""

    name: str
    caption: str
    rows: Sequence[str]
    columns: Sequence[str]
    row_word: str
    column_word: str
    corner: str
    panes: Sequence[Pane]
    row_titles: Sequence[str] = ()
    column_titles: Sequence[str] = ()
    long_names: bool = False

    def html(self) -> Markup:
        """The switch, the panes, and the line that reads out."""
        width = len(self.columns)
        densities = {"few": width <= FEW_COLUMNS, "dense": width > DENSE_COLUMNS, "medium": width > MEDIUM_COLUMNS}
        density = next((name for name, holds in densities.items() if holds), "")
        if len(self.rows) > MANY_ROWS:
            density += " tight"
        tables = [(pane, self._cells(pane)) for pane in self.panes]
        return render("heatmap.html", map=self, tables=tables, density=density, columns=self._columns())

    def _columns(self) -> Markup:
        """Names of the columns; where there is no room for all of them every second or third is written."""
        longest = max(map(len, self.columns), default=0)
        every = -(-len(self.columns) * longest * CHARACTER_WIDTH // PAGE_WIDTH)
        titles = self.column_titles or self.columns
        return Markup("").join(
            Markup('<th scope=col title="{}">{}').format(title, name)
            if place % every == 0
            else Markup('<th scope=col title="{}"><span class=hidden>{}</span>').format(title, name)
            for place, (name, title) in enumerate(zip(self.columns, titles, strict=True))
        )

    def _cells(self, pane: Pane) -> Markup:
        # By hand, since a template takes seconds for 10,000 cells. End tags of cells may be left out.
        lines = []
        titles = self.row_titles or self.rows
        for name, title, texts, shades in zip(self.rows, titles, pane.texts, pane.shades, strict=True):
            cells = "".join(
                f"<td class={shade}>{text}" if text else "<td>" for text, shade in zip(texts, shades, strict=True)
            )
            lines.append(f'<tr><th scope=row title="{escape(title)}">{escape(name)}{cells}</tr>')
        return Markup("\n".join(lines))


def ratio_pane(name: str, label: str, say: str, values: Grid, texts: list[list[str]] | None = None) -> Pane:
    """Ratios to 1: orange is slower, blue is faster, grey within 2 %. values: shape (rows, columns), NaN: none.

    texts: what is written in the cells instead of the ratio.
    """
    # Of the number as it is written: of two cells that both read 1.03 one must not be darker.
    written = np.round(values, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        slow = np.digitize(written, RATIO_EDGES)
        fast = np.digitize(1 / written, RATIO_EDGES)
    shades = np.where(slow > 0, np.char.add("s", slow.astype(str)), np.char.add("f", fast.astype(str)))
    shades = np.where((slow == 0) & (fast == 0), "n0", shades)
    if texts is None:
        texts = [[ratio(value) if value == value else "" for value in row] for row in values.tolist()]
    return Pane(name, label, say, "", texts, shades.tolist(), _ratio_legend())


def time_pane(name: str, label: str, say: str, values: Grid) -> Pane:
    """Times in ns, from light to dark between the shortest and the longest. values: shape (rows, columns), NaN: none."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    unit, size = next(((word, size) for word, size in UNITS if high >= size), UNITS[-1])
    edges = np.linspace(low, high, TIME_SHADES + 1)[1:-1]
    shade = np.digitize(values, edges) if high > low else np.zeros(values.shape, dtype=np.int64)
    shades = np.char.add("t", shade.astype(str))
    texts = [[_digits(value / size) if value == value else "" for value in row] for row in values.tolist()]
    legend = render(
        "time_legend.html", low=_digits(low / size), high=_digits(high / size), unit=unit, shades=TIME_SHADES
    )
    return Pane(name, label, say, f" {unit}", texts, shades.tolist(), legend)


def _ratio_legend() -> Markup:
    edges = [(place, f"{edge:g}{TIMES}") for place, edge in enumerate(RATIO_EDGES, 1)]
    edges[-1] = (len(edges), f"{edges[-1][1]} or more")
    shades = [(f"f{place}", edge) for place, edge in reversed(edges)]
    shades += [("n0", "within 2 %"), *((f"s{place}", edge) for place, edge in edges)]
    return render("ratio_legend.html", shades=shades)


def _digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"
