"""A SELECT with its parameters, as the commands build it and as --show-sql prints it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Condition:
    """One condition of a WHERE, with a `?` per parameter."""

    sql: str
    parameters: tuple[object, ...]


@dataclass(frozen=True)
class Statement:
    """SQL with a `?` per parameter; no other question mark may stand in it."""

    sql: str
    parameters: tuple[object, ...] = ()

    def filled(self) -> str:
        """The same statement with its parameters written in, to be run by `annotq query`."""
        pieces = self.sql.split("?")
        assert len(pieces) == len(self.parameters) + 1, "one ? per parameter"
        values = [*map(_literal, self.parameters), ""]
        return "".join(piece + value for piece, value in zip(pieces, values, strict=True))


def select(columns: str, view: str, conditions: Sequence[Condition | None], order: str) -> Statement:
    """SELECT over one view; conditions that are None are left out."""
    given = [condition for condition in conditions if condition is not None]
    where = f"\nWHERE {' AND '.join(condition.sql for condition in given)}" if given else ""
    parameters = tuple(value for condition in given for value in condition.parameters)
    return Statement(f"SELECT {columns}\nFROM {view}{where}\nORDER BY {order}", parameters)


def equals(column: str, value: object | None) -> Condition | None:
    return None if value is None else Condition(f"{column} = ?", (value,))


def one_of(column: str, values: Sequence[object] | None) -> Condition | None:
    if not values:
        return None
    return Condition(f"{column} IN ({', '.join('?' * len(values))})", tuple(values))


def fits(column: str, glob: str | None) -> Condition | None:
    """Shell pattern with *, ? and [...]; upper and lower case differ."""
    return None if glob is None else Condition(f"{column} GLOB ?", (glob,))


def _literal(value: object) -> str:
    if isinstance(value, bool | int | float):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"
