"""What the reader chose: order, ranks, place in the list, pause. Keys change it; nothing here knows of a terminal."""

from __future__ import annotations

from dataclasses import dataclass, replace

from annotq.agent.errors import AnnotqError
from annotq.cli.rank_ranges import Ranges, read_ranges
from annotq.cli.top.order import Order

_ORDERS = tuple(Order)


@dataclass(frozen=True)
class View:
    """typed: the ranges of ranks while they are being typed, else None. said: an answer to the last key, else empty.

    top: the first row shown, 0 for the head of the list.
    """

    order: Order = Order.WORST
    backwards: bool = False
    ranges: Ranges = ()
    top: int = 0
    paused: bool = False
    help: bool = False
    typed: str | None = None
    said: str = ""
    ended: bool = False


def pressed(view: View, key: str, page: int, rows: int) -> View:
    """The view after a key. page: rows on the screen. rows: in the list. Unknown keys change nothing."""
    view = replace(view, said="")
    if view.typed is not None:
        return _typing(view, view.typed, key)
    if view.help and key not in ("q", "Q"):
        return replace(view, help=False)
    match key:
        case "q" | "Q":
            return replace(view, ended=True)
        case "s" | "S" | ">" | "<":
            step = 1 if key in "s>" else -1
            order = _ORDERS[(_ORDERS.index(view.order) + step) % len(_ORDERS)]
            return replace(view, order=order, backwards=False, top=0)
        case "r":
            return replace(view, backwards=not view.backwards, top=0)
        case "p" | " ":
            return replace(view, paused=not view.paused)
        case "/":
            return replace(view, typed="")
        case "?" | "h":
            return replace(view, help=True)
        case "escape":
            return replace(view, ranges=(), top=0)
    return _moved(view, key, page, rows)


def _moved(view: View, key: str, page: int, rows: int) -> View:
    moves = {"down": 1, "j": 1, "up": -1, "k": -1, "page down": page, "page up": -page, "home": -rows, "end": rows}
    if key not in moves:
        return view
    return replace(view, top=max(0, min(view.top + moves[key], rows - page)))


def _typing(view: View, typed: str, key: str) -> View:
    match key:
        case "escape":
            return replace(view, typed=None)
        case "backspace":
            return replace(view, typed=typed[:-1])
        case "enter":
            try:
                return replace(view, typed=None, ranges=read_ranges([typed]), top=0)
            except AnnotqError as error:
                return replace(view, typed=None, said=str(error))
    return replace(view, typed=typed + key) if len(key) == 1 and len(typed) < 60 else view
