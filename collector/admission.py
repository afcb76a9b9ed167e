"""Which SQL may run at all: one SELECT or EXPLAIN, of a size that the parser manages, without values of any size.

The first wall of both doors, the one onto a file (query.py) and the collector's (answer.py).
"""

from __future__ import annotations

import re
from itertools import accumulate

import duckdb

from annotq.agent.errors import AnnotqError
from annotq.collector.query_errors import refusal
from annotq.collector.value_size import check_values

LONGEST_SQL = 100_000
DEEPEST_SQL = 500

# What may stand between EXPLAIN and the statement it explains; comments count as blanks.
_BLANK = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)"
_EXPLAIN = re.compile(rf"{_BLANK}*EXPLAIN{_BLANK}+(?:ANALYZE{_BLANK}+)?(?:\([^()]*\){_BLANK}*)?", re.I | re.S)


def admitted(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The text of the one statement in `sql`. Raises AnnotqError unless it only reads, duckdb.Error if it is no SQL."""
    _check_text(sql)
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise refusal("nothing" if not statements else f"{len(statements)} statements")
    statement = statements[0]
    if statement.type == duckdb.StatementType.EXPLAIN:
        prefix = _EXPLAIN.match(statement.query)
        inner = connection.extract_statements(statement.query[prefix.end() :]) if prefix else []
        if len(inner) != 1 or inner[0].type != duckdb.StatementType.SELECT:
            raise refusal("EXPLAIN of something else than a SELECT")
        check_values(connection, inner[0].query)
    elif statement.type != duckdb.StatementType.SELECT:
        raise refusal(str(statement.type).rpartition(".")[2])
    else:
        check_values(connection, statement.query)
    return _without_end(statement.query)


def _check_text(sql: str) -> None:
    """Refuses what would keep the parser busy: it cannot be interrupted, and 5,000 open parentheses take it minutes."""
    try:
        size = len(sql.encode())
    except UnicodeEncodeError:
        raise AnnotqError("The SQL is not valid UTF-8.") from None
    if size > LONGEST_SQL:
        raise AnnotqError(f"The SQL has {size:,} bytes; {LONGEST_SQL:,} are the most.", "Join with a view instead.")
    if max(accumulate((letter == "(") - (letter == ")") for letter in sql), default=0) > DEEPEST_SQL:
        raise AnnotqError(f"The SQL has more than {DEEPEST_SQL} open parentheses.", "Close them.")


def _without_end(sql: str) -> str:
    """Cuts closing semicolons and comments: DuckDB puts the text into parentheses. Its token positions are bytes."""
    text = sql.encode()
    for position, kind in reversed(duckdb.tokenize(sql)):
        if kind != duckdb.token_type.comment and text[position : position + 1] != b";":
            break
        text = text[:position]
    return text.decode().strip()
