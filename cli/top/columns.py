"""The table of ranks: its columns, and how wide each is on a screen of a given width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from annotq.cli.top.order import Order
from annotq.cli.top.rows import RankRow

NOTHING = "-"
_BETWEEN = 2
_NARROWEST_REGION = 8
_PHASES = {"forward": "fwd", "backward": "bwd"}


@dataclass(frozen=True)
class Column:
    """title, cell text, and the order that sorts by it. width None: what the others leave. wanted_from: of the screen."""

    title: str
    width: int | None
    text: Callable[[RankRow], str]
    order: Order | None = None
    left: bool = False
    wanted_from: int = 0


def short_duration(nanoseconds: float | None) -> str:
    """At most 7 characters: "8.53 ms", "-120 us"."""
    from annotq.collector.explain import duration_text

    if nanoseconds is None:
        return NOTHING
    if abs(nanoseconds) >= 999.5e9:
        return short_age(int(nanoseconds))
    return duration_text(float(f"{nanoseconds:.3g}"))  # rounded first: 999.9 us is 1 ms


def short_age(nanoseconds: int | None) -> str:
    """At most 6 characters: "41 s", "3 min", "7 h", "12 d"."""
    if nanoseconds is None:
        return NOTHING
    seconds = nanoseconds // 1_000_000_000
    for size, unit, until in ((1, "s", 120), (60, "min", 6000), (3600, "h", 172_800)):
        if seconds < until:
            return f"{seconds // size} {unit}"
    return f"{seconds // 86_400} d"


def region_text(row: RankRow) -> str:
    if row.region is None:
        return NOTHING
    return f"{row.region} {_PHASES.get(row.phase or '', row.phase or '')}".rstrip()


def ratio_text(ratio: float | None) -> str:
    """At most 6 characters."""
    if ratio is None:
        return NOTHING
    return f"{ratio:.2f}x" if ratio < 99.5 else f"{ratio:.0f}x" if ratio < 99_999.5 else ">1e5x"


def _share(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


def signed_duration(nanoseconds: float | None) -> str:
    """At most 8 characters: "+8.53 ms"."""
    text = short_duration(nanoseconds)
    return f"+{text}" if nanoseconds is not None and nanoseconds > 0 else text


COLUMNS = (
    Column("rank", 5, lambda row: str(row.rank), Order.RANK),
    Column("host", 16, lambda row: row.host or NOTHING, left=True, wanted_from=120),
    Column("state", 7, lambda row: row.state or NOTHING, Order.STATE, left=True),
    Column("step", 7, lambda row: NOTHING if row.step is None else str(row.step), Order.STEP, wanted_from=30),
    Column("time", 7, lambda row: short_duration(row.step_ns), Order.TIME, wanted_from=45),
    Column("vs", 5, lambda row: ratio_text(row.step_ratio), wanted_from=72),
    Column("compute", 7, lambda row: short_duration(row.compute_ns), wanted_from=110),
    Column("behind", 8, lambda row: signed_duration(row.behind_ns), Order.BEHIND, wanted_from=90),
    Column("slowest region", None, region_text, left=True, wanted_from=64),
    Column("ratio", 6, lambda row: ratio_text(row.ratio), Order.RATIO, wanted_from=30),
    Column("wait", 4, lambda row: _share(row.wait_share), Order.WAIT, wanted_from=50),
    Column("windows", 7, lambda row: str(row.windows), wanted_from=130),
    Column("spooled", 8, lambda row: _bytes(row.spooled_bytes), wanted_from=140),
    Column("age", 6, lambda row: short_age(row.age_ns), Order.AGE, wanted_from=38),
)


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.0f} TB"


def columns_for(width: int) -> list[tuple[Column, int]]:
    """Those that fit, each with its width."""
    wanted = [column for column in COLUMNS if width >= column.wanted_from]
    fixed = sum(column.width or 0 for column in wanted) + _BETWEEN * (len(wanted) - 1)
    rest = max(_NARROWEST_REGION, width - fixed)
    return [(column, column.width or rest) for column in wanted]


def printable(text: str) -> str:
    """Names come from the job: what would steer the terminal is shown as a question mark."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def line_of(texts: Sequence[str], columns: Sequence[tuple[Column, int]]) -> str:
    """One line of the table. What is too long keeps its end: regions differ there. Wide characters count as two."""
    cells = [_cell(printable(text), width, column.left) for text, (column, width) in zip(texts, columns, strict=True)]
    return (" " * _BETWEEN).join(cells).rstrip()


def _cell(text: str, width: int, left: bool) -> str:
    taken = cell_len(text)
    if taken > width:
        while text and taken > width - 1:
            taken -= cell_len(text[0])
            text = text[1:]
        text, taken = f"…{text}", taken + 1
    blank = " " * (width - taken)
    return text + blank if left else blank + text
