"""What was wrong with a file, as sentences: equal causes once, with the first place and the count."""

from __future__ import annotations


class Problems:
    """Collects problems while a file is read; `sentences()` gives one per cause, in order of first appearance."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._count: dict[str, int] = {}

    def add(self, cause: str, where: str = "", count: int = 1) -> None:
        """Note a cause (a clause without a full stop) and where it was seen; later places are only counted."""
        self._first.setdefault(cause, where)
        self._count[cause] = self._count.get(cause, 0) + count

    def sentences(self) -> tuple[str, ...]:
        """Return the sentences: cause, first place, how often."""
        return tuple(self._sentence(cause, where) for cause, where in self._first.items())

    def _sentence(self, cause: str, where: str) -> str:
        count = self._count[cause]
        if not where:
            return f"{cause}." if count == 1 else f"{cause} ({count} times)."
        return f"{cause}: {where}." if count == 1 else f"{cause}: first {where}; {count} in all."
