"""Slices of one track may only nest. What overlaps is drawn on several tracks, lanes, that the page shows as one row."""

from __future__ import annotations


class Lanes:
    """Gives each slice the first lane that is free when it starts. Slices come in the order of their starts.

    No slice is moved, cut or put inside another one: two that overlap are on different lanes, and one that starts when
    another ends may follow it.
    """

    def __init__(self) -> None:
        self._free_ns: list[int] = []

    def place(self, start_ns: int, end_ns: int) -> int:
        """The number of the lane."""
        for lane, free_ns in enumerate(self._free_ns):
            if free_ns <= start_ns:
                self._free_ns[lane] = end_ns
                return lane
        self._free_ns.append(end_ns)
        return len(self._free_ns) - 1
