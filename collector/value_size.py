"""Functions that must not run in a process that others need: they make a value of any size out of a number.

DuckDB counts the memory of rows, groups and sorts and can stop them. A single value it makes in one go, outside of its
memory limit and deaf to interrupts: repeat('x', 3000000000) takes 3 GB and 10 s, whatever the limits are (DuckDB 2.0.1).
What remains possible, and what then happens, is in docs/live.md under Security.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import duckdb

from annotq.agent.errors import AnnotqError

# Of sizes and of texts that are repeated; it leaves room for rulers, padding and small tables of numbers.
LARGEST_SIZE = 1000

_ROWS_INSTEAD = "Make rows instead of a list: FROM range(...), also FROM steps, range(steps.step)."
_SIZE = (
    f"Its size has to be written as a number up to {LARGEST_SIZE:,}; bar(x, 0, 100, 40) draws, columns hold the rest."
)
_REPLACED = "Write what it puts in as a text: a value of each row may make the result as long as its square."
# Which arguments have to be literals, and what to do instead. None: all.
_SIZED: dict[str, tuple[int | None, str]] = {
    "repeat": (None, _SIZE),
    "range": (None, _ROWS_INSTEAD),
    "generate_series": (None, _ROWS_INSTEAD),
    "lpad": (1, _SIZE),
    "rpad": (1, _SIZE),
    "list_resize": (1, _SIZE),
    "array_resize": (1, _SIZE),
    "bitstring": (1, _SIZE),
    "replace": (2, _REPLACED),
    "regexp_replace": (2, _REPLACED),
}
_FORMATS = ("format", "printf")
_FORMAT_HINT = "Write the format as a text with widths below 1,000."
# A width of four digits, or one that is an argument itself.
_WIDE = re.compile(r"\d{4,}|%[^a-zA-Z%]*\*|\{[^{}]*\{")
_REFUSED = {
    "list_reduce": "Unnest the list and use an aggregate.",
    "array_reduce": "Unnest the list and use an aggregate.",
    "reduce": "Unnest the list and use an aggregate.",
    "reservoir_quantile": "Use approx_quantile or quantile_cont.",
    "combine": "Use the aggregate itself.",
    "finalize": "Use the aggregate itself.",
    "to_aggregate_state": "Use the aggregate itself.",
}
_NAMED_AGGREGATES = ("list_aggregate", "list_aggr", "array_aggregate", "array_aggr", "aggregate")
# Everything else in FROM that looks like a function takes SQL as a text or an address in memory, or acts on the database.
_IN_FROM = (
    "range",
    "generate_series",
    "unnest",
    "repeat",
    "repeat_row",
    "json_each",
    "json_tree",
    "regexp_split_to_table",
)
_IN_FROM_BEGIN = ("duckdb_", "pragma_", "pg_", "summary", "histogram")
# What reads files or changes settings: other walls refuse it, and their words say why.
_REFUSED_LATER = ("read_", "parquet_", "sniff_", "glob", "enable_", "disable_")

_NAME = re.compile(r'"function_name":"((?:[^"\\]|\\.)*)"')


def check_values(connection: duckdb.DuckDBPyConnection, select: str) -> None:
    """Raises AnnotqError for a SELECT that calls a function which may make a value of any size, or do worse."""
    ((text,),) = connection.execute("SELECT json_serialize_sql(CAST(? AS VARCHAR))", [select]).fetchall()
    in_from = '"type":"TABLE_FUNCTION"' in text
    names = {name.lower() for name in _NAME.findall(text)}
    if not in_from and not names & (_SIZED.keys() | _REFUSED.keys() | {*_FORMATS, *_NAMED_AGGREGATES}):
        if text.startswith('{"error":true'):
            raise AnnotqError("The parts of this statement cannot be checked.", "Ask a plain SELECT.")
        return
    try:
        parsed = json.loads(text)
    except RecursionError:
        raise AnnotqError("The SQL is nested too deeply.", "Chain fewer operators, or ask without functions.") from None
    for call, called_in_from in _calls(parsed):
        _check_call(call, called_in_from)


def _calls(parsed: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """Each function call below a node, and whether it stands in FROM."""
    left: list[tuple[Any, bool]] = [(parsed, False)]
    while left:
        node, in_from = left.pop()
        if isinstance(node, dict):
            if "function_name" in node:
                yield node, in_from
            of_from = node.get("type") == "TABLE_FUNCTION"
            left += [(value, of_from and key == "function") for key, value in node.items()]
        elif isinstance(node, list):
            left += [(value, False) for value in node]


def _check_call(call: dict[str, Any], in_from: bool) -> None:
    name = str(call["function_name"]).lower()
    arguments = [argument.get("expression", argument) for argument in call.get("arguments", call.get("children", []))]
    named = any(argument.get("name") for argument in call.get("arguments", []))
    if in_from:
        if name not in _IN_FROM and not name.startswith(_IN_FROM_BEGIN + _REFUSED_LATER):
            raise AnnotqError(f"{name} cannot be used in FROM here.", "Ask the views: annotq views")
    elif name in _REFUSED:
        raise AnnotqError(f"{name} cannot be used here.", _REFUSED[name])
    elif name in _NAMED_AGGREGATES:
        aggregate = _text(arguments[1]) if len(arguments) > 1 and not named else None
        if aggregate is None or aggregate.lower() in _REFUSED:
            raise AnnotqError(f"{name} cannot be used like this here.", "Unnest the list and use an aggregate.")
    elif name in _FORMATS:
        form = _text(arguments[0]) if arguments and not named else None
        if form is None or _WIDE.search(form):
            raise AnnotqError(f"{name} may make a value of any size here.", _FORMAT_HINT)
    elif name in _SIZED:
        position, hint = _SIZED[name]
        sizes = arguments if position is None else arguments[position : position + 1]
        if named or not all(map(_is_small, sizes)):
            raise AnnotqError(f"{name} may make a value of any size here.", hint)


def _literal(node: Any) -> tuple[str, str]:
    """Kind and text of a literal; two empty texts for anything else."""
    found = node.get("literal") if isinstance(node, dict) and node.get("class") == "CONSTANT" else None
    return (str(found.get("kind")), str(found.get("text"))) if isinstance(found, dict) else ("", "")


def _text(node: Any) -> str | None:
    kind, text = _literal(node)
    return text if kind == "STRING" else None


def _is_small(node: Any) -> bool:
    kind, text = _literal(node)
    if kind == "STRING":
        return len(text) <= LARGEST_SIZE and not text.strip().lstrip("+-").replace("_", "").isdigit()
    return kind == "INTEGER" and text.lstrip("-").isdigit() and len(text) < 6 and abs(int(text)) <= LARGEST_SIZE
