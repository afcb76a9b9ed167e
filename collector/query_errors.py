"""DuckDB's complaints about a question, as sentences with the next command."""

from __future__ import annotations

import re
from collections.abc import Callable

from annotq.agent.errors import AnnotqError

_KIND = re.compile(r"^(?:\w+ )*Error: ")
# Advice that the locked configuration refuses.
_SETTING = re.compile(r' Use "SET .*')
_CANDIDATES = re.compile(r"^(?:Did you mean|Candidate bindings:).*$", re.M)
# DuckDB counts the lines of a text it has wrapped: the number is wrong, the excerpt under it is right.
_EXCERPT = re.compile(r"^LINE \d+: ", re.M)


def refusal(what: str) -> AnnotqError:
    """A statement that may not run here: `what` names what was found instead."""
    hint = "Ask one SELECT (or EXPLAIN SELECT) over the views: annotq views"
    if what.startswith("MULTI"):
        hint = "A PIVOT has to name its values: PIVOT ... ON column IN (1, 2). " + hint
    return AnnotqError(f"annotq query runs one SELECT and never changes anything; this is {what}.", hint)


def asked_error(text: str, views: Callable[[], list[str]], memory: str) -> AnnotqError:
    """What went wrong with an admitted statement; `text` is DuckDB's, `views` is called when a name was not found."""
    if text.startswith("Out of Memory Error"):
        return AnnotqError(
            f"The query needs more than {memory} of memory.",
            "Ask for less (one job, rank, region or step; fewer columns under ORDER BY), or raise --memory.",
        )
    head, _, rest = text.partition("\n")
    message = _SETTING.sub("", _KIND.sub("", head)).strip().rstrip("!.") + "."
    parts = [match.group(0).strip() for match in _CANDIDATES.finditer(rest)]
    if "Table with name" in head:
        # DuckDB proposes from its own catalog too ("pg_enum"); only a view of ours is a useful proposal.
        parts = [part for part in parts if any(f'"{name}"' in part for name in views())]
        parts.append(f"The views are: {', '.join(views())}.")
    elif "Referenced column" in head or "does not have a column" in head:
        parts.append("Columns of a view: annotq views NAME")
    elif "file system operations are disabled" in head:
        parts = ["Only the store can be read here; load files with annotq ingest."]
    return AnnotqError(message, "\n".join([*_excerpt(rest), *parts]))


def _excerpt(text: str) -> list[str]:
    """The line of the SQL and the mark under the place, moved left by what is cut away; empty when there is none."""
    start = _EXCERPT.search(text)
    if start is None:
        return []
    lines = text[start.start() :].splitlines()[:2]
    return [line[len(start.group(0)) :] for line in lines]
