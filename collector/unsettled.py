"""Job attempts whose steps and clocks have to be looked at again, and when that is affordable.

Settling reads all traces and clock samples of the attempt. For most jobs that takes milliseconds and is done in the
transaction in which a trace ends; for very large ones it is done less often, so that the writer gets on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import duckdb

from annotq.collector.instance import is_passing
from annotq.collector.rows import Target
from annotq.collector.trace_load import settle

QUICK_SECONDS = 0.05
# Of the writer's time, for what is not quick.
LARGEST_SHARE = 0.05


class SettlingError(Exception):
    """Settling a job attempt failed, which is no batch's fault; it is not tried again until the collector starts anew."""


class Unsettled:
    """Only the writer's thread uses it. Changes count once the transaction is committed."""

    def __init__(self) -> None:
        self._pending: set[Target] = set()
        self._not_before: dict[Target, float] = {}  # a monotonic time, for those that take long
        self._tried: dict[Target, tuple[float, float]] = {}  # began, ended

        self._given_up: set[Target] = set()

    def add(self, targets: Iterable[Target]) -> None:
        self._pending.update(target for target in targets if target not in self._given_up)

    def settle(self, connection: duckdb.DuckDBPyConnection, everything: bool = False) -> None:
        """Settle what is due; everything: whatever it takes. Raises SettlingError, or what `is_passing` names."""
        self._tried.clear()
        for target in list(self._pending):
            began = time.monotonic()
            if not everything and began < self._not_before.get(target, 0.0):
                continue
            try:
                settle(connection, target)
            except Exception as error:
                if is_passing(error):
                    raise
                self._pending.discard(target)
                self._given_up.add(target)
                raise SettlingError(f"{target}: {error}") from error
            self._tried[target] = began, time.monotonic()

    def committed(self) -> None:
        for target, (began, ended) in self._tried.items():
            self._pending.discard(target)
            if ended - began > QUICK_SECONDS:
                self._not_before[target] = ended + (ended - began) / LARGEST_SHARE
            else:
                self._not_before.pop(target, None)
        self._tried.clear()

    def __bool__(self) -> bool:
        return bool(self._pending)
