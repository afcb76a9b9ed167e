"""Ranks as they are chosen on the command line: 0-63,777."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from annotq.agent.errors import EXIT_USAGE, AnnotqError

RankRanges = Annotated[
    list[str] | None,
    typer.Option("--rank", metavar="RANGE", help="Only these ranks, such as 0-63,777. May be repeated."),
]

Ranges = tuple[tuple[int, int], ...]

# More than the largest jobs have; ranges are written out for the store.
MOST_RANKS = 1_000_000


def read_ranges(texts: Sequence[str]) -> Ranges:
    """("0-3,8", "12") as ((0, 3), (8, 8), (12, 12)). Raises AnnotqError (usage) for anything else."""
    found: list[tuple[int, int]] = []
    for part in ",".join(texts).split(","):
        if not part.strip():
            continue
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise AnnotqError(f"{part.strip()!r} is no rank or range of ranks.", "For example 0-63,777", EXIT_USAGE)
        found.append((first, last))
    return tuple(found)


def read_ranks(texts: Sequence[str]) -> tuple[int, ...]:
    """The ranks of the ranges, each once, in order. Raises AnnotqError (usage) as read_ranges, and for too many."""
    ranges = read_ranges(texts)
    if sum(last - first + 1 for first, last in ranges) > MOST_RANKS:
        raise AnnotqError(f"--rank {','.join(texts)} is more than {MOST_RANKS:,} ranks.", "Choose fewer.", EXIT_USAGE)
    return tuple(sorted({rank for first, last in ranges for rank in range(first, last + 1)}))
