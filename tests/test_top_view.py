"""What keys, orders and widths do to the picture of `annotq top`, without a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from annotq.agent.errors import AnnotqError
from annotq.cli.rank_ranges import read_ranges
from annotq.cli.top.columns import columns_for, line_of, short_age, short_duration, signed_duration
from annotq.cli.top.frame import HELP, Trouble, screen
from annotq.cli.top.keys import keys_of
from annotq.cli.top.order import Order, chosen, ordered
from annotq.cli.top.rows import RankRow, Snapshot, shown_state
from annotq.cli.top.view import View, pressed

S = 1_000_000_000
ROW = RankRow(rank=0, host="node-a", state="running", age_ns=S, step=10, step_ns=2e8)


def rows(**columns: list[object]) -> list[RankRow]:
    """Ranks 0, 1, ... with these values."""
    (size,) = {len(values) for values in columns.values()}
    return [replace(ROW, rank=i, **{name: values[i] for name, values in columns.items()}) for i in range(size)]


def ranks(found: list[RankRow]) -> list[int]:
    return [row.rank for row in found]


def snapshot(size: int) -> Snapshot:
    """A job of `size` ranks; rank 7 loses most."""
    return Snapshot(
        place="collector:4517",
        job="llm",
        jobs=1,
        attempt=0,
        now_ns=0,
        made=0.0,
        ranks=tuple(replace(ROW, rank=rank, behind_ns=5e6 if rank == 7 else 0.0) for rank in range(size)),
        ranks_expected=size,
        windows=size,
        newest=None,
        clock_error_ns=1000,
        totals=None,
        judgement=None,
    )


def test_the_worst_are_the_dead_then_the_silent_then_those_that_lose_time() -> None:
    states = ["running", "gone", "running", "stopped", "silent", "ending"]
    found = rows(state=states, behind_ns=[1e6, None, 3e6, 9e6, 0.0, None])
    assert ranks(ordered(found, Order.WORST)) == [1, 4, 5, 2, 0, 3]


@pytest.mark.parametrize(
    ("order", "forwards", "backwards"),
    [
        (Order.RANK, [0, 1, 2, 3], [3, 2, 1, 0]),
        (Order.STEP, [2, 0, 1, 3], [1, 0, 2, 3]),
        (Order.AGE, [1, 0, 3, 2], [3, 0, 1, 2]),
        (Order.WAIT, [3, 0, 1, 2], [0, 3, 1, 2]),
    ],
)
def test_what_is_not_known_is_last_in_both_directions(order: Order, forwards: list[int], backwards: list[int]) -> None:
    found = rows(step=[8, 9, 7, None], age_ns=[2 * S, 3 * S, None, S], wait_share=[0.1, None, None, 0.2])
    assert ranks(ordered(found, order)) == forwards
    assert ranks(ordered(found, order, backwards=True)) == backwards


def test_ranges_of_ranks() -> None:
    ranges = read_ranges(["0-2, 5", "", "7"])
    assert ranks(chosen(rows(step=list(range(10))), ranges)) == [0, 1, 2, 5, 7]
    assert read_ranges([" "]) == ()
    for wrong in ("3-1", "x", "1--2", "-1", "1-", "0x1"):
        with pytest.raises(AnnotqError, match="no rank or range"):
            read_ranges([wrong])


def test_a_rank_is_silent_after_half_a_minute_or_three_of_its_steps() -> None:
    assert shown_state("running", 29 * S, 1.0 * S) == "running"
    assert shown_state("running", 30 * S, 1.0 * S) == "silent"
    assert shown_state("running", 59 * S, 20.0 * S) == "running"
    assert shown_state("running", 60 * S, 20.0 * S) == "silent"
    assert shown_state("running", None, None) == "running"
    assert shown_state("gone", 90 * S, None) == "gone"


def test_keys_move_within_the_list() -> None:
    view = View()
    for key, top in (
        ("up", 0),
        ("down", 1),
        ("page down", 11),
        ("end", 90),
        ("down", 90),
        ("page up", 80),
        ("home", 0),
    ):
        view = pressed(view, key, page=10, rows=100)
        assert view.top == top, key
    assert pressed(View(), "end", page=10, rows=4).top == 0


def test_a_range_is_typed_and_taken_back() -> None:
    view = View()
    for key in ("/", "1", "q", "backspace", "-", "3", "enter"):
        view = pressed(view, key, page=10, rows=100)
    assert (view.ranges, view.typed, view.ended) == (((1, 3),), None, False)
    assert pressed(view, "escape", page=10, rows=3).ranges == ()
    typing = pressed(view, "/", page=10, rows=3)
    assert pressed(typing, "escape", page=10, rows=3).ranges == ((1, 3),)


def test_keys_that_terminals_send() -> None:
    assert keys_of("s\x1b[A\x1bOB\x1b[5~\x1b[6~ \r\x7f") == [
        "s", "up", "down", "page up", "page down", " ", "enter", "backspace",
    ]  # fmt: skip
    assert keys_of("\x1b") == ["escape"]
    assert keys_of("\x1b[200~q\x1b[M\x1b[1;5C\x04") == ["q"]
    assert keys_of("\x1b[") == []


def test_a_large_job_fits_and_can_be_moved_through() -> None:
    lines = screen(snapshot(1024), View(), Trouble(), 80, 24)
    assert (len(lines), max(len(line) for line in lines)) == (24, 80)
    assert lines[5].plain.split()[0] == "7", "the worst one first"
    assert lines[-1].plain.endswith("1-18 of 1,024")
    moved = screen(snapshot(1024), View(order=Order.RANK, top=1006), Trouble(), 80, 24)
    assert moved[-2].plain.split()[0] == "1023"
    assert moved[-1].plain.endswith("1,007-1,024 of 1,024")


@pytest.mark.parametrize(("width", "height"), [(1, 1), (5, 2), (20, 5), (40, 12), (80, 24), (160, 50), (500, 3)])
def test_every_size_of_screen_is_filled_and_kept_to(width: int, height: int) -> None:
    trouble = Trouble("No answer for 12 s: the collector is away. " * 3, "")
    for view in (View(), View(help=True), View(paused=True, typed="1-"), View(ranges=((5000, 5001),))):
        lines = screen(snapshot(1024), view, trouble, width, height)
        assert len(lines) == height
        assert max(len(line) for line in lines) <= width


def test_help_fits_a_usual_terminal() -> None:
    assert len(HELP.splitlines()) <= 24
    assert max(map(len, HELP.splitlines())) < 80


@pytest.mark.parametrize("width", range(64, 220, 7))
def test_columns_fill_the_width_and_regions_keep_their_end(width: int) -> None:
    columns = columns_for(width)
    row = replace(
        ROW, rank=12345, host="a" * 40, region="model." + "layers.12." * 30 + "mlp", phase="backward", age_ns=99 * S
    )
    line = line_of([column.text(row) for column, _ in columns], columns)
    assert len(line) == width
    assert "mlp bwd" in line


@pytest.mark.parametrize(
    "region", ["モデル.層.注意機構.全結合", "e\u0301" * 40, "\N{GRINNING FACE}" * 30, "mlp", "a" * 99]
)
@pytest.mark.parametrize("width", [64, 80, 81, 160])
def test_columns_stand_below_each_other_whatever_the_letters(region: str, width: int) -> None:
    columns = columns_for(width)
    lines = [
        line_of(
            [column.text(replace(ROW, region=name, phase="forward", age_ns=9 * S)) for column, _ in columns], columns
        )
        for name in (region, "mlp")
    ]
    assert [cell_len(line) for line in lines] == [width, width]
    assert all(" fwd " in line and line.endswith("   9 s") for line in lines)


def test_durations_and_ages_fit_their_columns() -> None:
    for number in range(1, 10**6, 997):
        for size in (1, 10**3, 10**6, 10**9):
            assert len(short_duration(number * size)) <= 7, number * size
            assert len(signed_duration(number * size)) <= 8
            assert len(short_age(number * size)) <= 6
    assert [short_age(seconds * S) for seconds in (0, 119, 120, 5999, 6000, 172_799, 172_800)] == [
        "0 s", "119 s", "2 min", "99 min", "1 h", "47 h", "2 d",
    ]  # fmt: skip
    assert (short_duration(None), short_duration(8.53e6), signed_duration(8.53e6)) == ("-", "8.53 ms", "+8.53 ms")
