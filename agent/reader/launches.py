"""Which step and which user annotation a moment on a thread lies in, and which launch a GPU event came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from annotq.agent.reader.exact_ns import Int64s
from annotq.agent.reader.trace_events import NULL


class Nesting:
    """Spans of one thread, found by the moment they contain; a span contains its start and not its end."""

    def __init__(self, starts: Int64s, ends: Int64s) -> None:
        """starts, ends: [n] ns, in any order. Positions in the results are those in these arrays."""
        self._order = np.lexsort((-ends, starts))
        self._starts, self._ends = starts[self._order], ends[self._order]
        self._parents = np.full(len(starts), -1, np.int64)
        open_spans: list[int] = []
        for i, (start, end) in enumerate(zip(self._starts.tolist(), self._ends.tolist(), strict=True)):
            while open_spans and self._ends[open_spans[-1]] <= start:
                open_spans.pop()
            if open_spans:
                self._parents[i] = open_spans[-1]
            if end > start:
                open_spans.append(i)

    def innermost(self, moments: Int64s) -> Int64s:
        """Return the position of the innermost span around each moment [m]; -1 where there is none."""
        if not len(self._starts):
            return np.full(len(moments), -1, np.int64)
        found = np.searchsorted(self._starts, moments, side="right") - 1
        while True:
            # A span that began last but is over: try the one around it.
            over = np.flatnonzero((found >= 0) & (self._ends[found] <= moments))
            if not len(over):
                return np.where(found >= 0, self._order[found], -1)
            found[over] = self._parents[found[over]]

    def parents(self) -> Int64s:
        """Return the position of the span around each span [n]; -1 for the outermost."""
        result = np.full(len(self._order), -1, np.int64)
        inner = self._parents >= 0
        result[self._order[inner]] = self._order[self._parents[inner]]
        return result


@dataclass(frozen=True)
class Spans:
    """n spans on host threads: start and end in ns, thread id, and a value of their own (a name's code, a step)."""

    start_ns: Int64s
    end_ns: Int64s
    thread: Int64s
    value: Int64s

    def innermost(self, moments: Int64s, threads: Int64s) -> Int64s:
        """Return the position of the innermost span of the same thread around each moment [m]; -1: none."""
        result = np.full(len(moments), -1, np.int64)
        for thread in np.unique(self.thread).tolist():
            mine = np.flatnonzero(self.thread == thread)
            asked = np.flatnonzero(threads == thread)
            found = Nesting(self.start_ns[mine], self.end_ns[mine]).innermost(moments[asked])
            result[asked] = np.where(found >= 0, mine[found], -1)
        return result

    def around(self, moments: Int64s) -> Int64s:
        """Return the value of the innermost span of any thread around each moment [m]; NULL: none."""
        found = Nesting(self.start_ns, self.end_ns).innermost(moments)
        return take(self.value, found)

    def ordinals(self) -> Int64s:
        """Return for each span [n] how many spans of the same value began before it."""
        order = np.lexsort((self.start_ns, self.value))
        _, first, inverse = np.unique(self.value[order], return_index=True, return_inverse=True)
        result = np.empty(len(order), np.int64)
        result[order] = np.arange(len(order)) - first[inverse]
        return result

    def paths(self, names: list[str], separator: str = " > ") -> list[str]:
        """Return for each span the names (by code) of the spans around it and its own, outermost first."""
        paths = [""] * len(self.start_ns)
        for thread in np.unique(self.thread).tolist():
            mine = np.flatnonzero(self.thread == thread)
            parents = Nesting(self.start_ns[mine], self.end_ns[mine]).parents()
            # By start, longest first: a parent's path is known before its children ask.
            for i in np.lexsort((-self.end_ns[mine], self.start_ns[mine])).tolist():
                name = names[self.value[mine[i]]]
                paths[mine[i]] = paths[mine[parents[i]]] + separator + name if parents[i] >= 0 else name
        return paths


class Lookup:
    """From a correlation to what is known of it."""

    def __init__(self, correlation: Int64s, value: Int64s) -> None:
        """correlation, value: [n]; of equal correlations the first counts."""
        self._keys, first = np.unique(correlation, return_index=True)
        self._values = value[first]

    def __call__(self, correlation: Int64s) -> Int64s:
        """Return the value of each correlation [m]; NULL where it is unknown or itself NULL."""
        if not len(self._keys):
            return np.full(len(correlation), NULL, np.int64)
        found = np.minimum(np.searchsorted(self._keys, correlation), len(self._keys) - 1)
        known = (self._keys[found] == correlation) & (correlation != NULL)
        return np.where(known, self._values[found], NULL)


def take(values: Int64s, positions: Int64s) -> Int64s:
    """Return values[positions], NULL for position -1."""
    return np.where(positions >= 0, values[positions], NULL) if len(values) else np.full(len(positions), NULL, np.int64)
