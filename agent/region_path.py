"""The nesting of regions: per thread and per asyncio task, the names of the regions around, outermost first.

Generators share the path of whoever resumes them, and may be closed in any order and in any context: a region that is left
while another is inside it is marked, and what comes later passes it over. Only the standard library.
"""

from __future__ import annotations

from contextvars import ContextVar

from annotq.agent.graph_snapshots import PATH_SEPARATOR


class Place(str):
    """The path of a region that was entered. outer: the path around it. left: it was left."""

    __slots__ = ("left", "name", "outer")

    name: str
    outer: str
    left: bool


# Plain text where a part of a model runs on its own (module_regions.py).
_path: ContextVar[str] = ContextVar("annotq_region_path", default="")


def current_path() -> str:
    """Names of the regions around, joined with PATH_SEPARATOR; empty in none."""
    return _open(_path.get())


def enter(name: str) -> Place:
    """Go into a region. Returns what leave() wants."""
    outer = _open(_path.get())
    around = _text(outer)
    place = Place(f"{around}{PATH_SEPARATOR}{name}" if around else name)
    place.name, place.outer, place.left = name, outer, False
    _path.set(place)
    return place


def leave(place: Place) -> None:
    """Leave a region, also while others are inside it; then the path of those stays what it is."""
    place.left = True
    current = _path.get()
    if isinstance(current, Place):
        # Of two generators that take turns, each is entered inside the other: the chain must not grow with every turn.
        current.outer = _open(current.outer)
        if current.left:
            _path.set(_open(current))


def _open(path: str) -> str:
    """The innermost region from `path` outwards that was not left."""
    while isinstance(path, Place) and path.left:
        path = path.outer
    return path


def _text(path: str) -> str:
    """The path of the regions that were not left."""
    names = []
    while isinstance(path, Place):
        if not path.left:
            names.append(path.name)
        path = path.outer
    return PATH_SEPARATOR.join([*([path] if path else []), *reversed(names)])
