"""What a page asks of the store: every statement is kept, since the page shows the SQL behind its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from annotq.agent.errors import AnnotqError
from annotq.cli.statement import Statement

if TYPE_CHECKING:
    import pyarrow as pa

    from annotq.cli.door import AnyDoor


class Questions:
    """An open door that remembers. asked: the statements so far, in order."""

    def __init__(self, door: AnyDoor) -> None:
        self.door = door
        self.asked: list[Statement] = []

    def ask(self, sql: str, parameters: Sequence[object] = ()) -> pa.Table:
        """All rows of one SELECT. Raises AnnotqError as Door.ask does, and when the door hands over only a part of them."""
        self.asked.append(Statement(sql, tuple(parameters)))
        answer = self.door.ask(sql, parameters)
        if answer.truncated:
            rows = f"{answer.table.num_rows:,}"
            raise AnnotqError(
                f"The page needs more than {rows} rows of {self.door.name}.",
                "That is the most it hands over: read the store file itself with --db once the collector has ended.",
            )
        return answer.table

    def rows(self, statement: Statement) -> pa.Table:
        """The same for a Statement."""
        return self.ask(statement.sql, statement.parameters)
