"""The rank that a file's name tells."""

from __future__ import annotations

import re

# "rank3", "rank_3", "rank-3", but not the end of a longer word such as "prank3".
_RANK = re.compile(r"(?<![a-z])rank[_-]?(\d{1,9})(?!\d)", re.IGNORECASE)
# torchtitan: "000003.1712345678.pt.trace.json.gz"; torch's own handler puts the host there, never a bare number.
_TORCHTITAN = re.compile(r"(\d{1,9})\.[^.]+\.pt\.trace\.json", re.IGNORECASE)


def rank_from_name(name: str) -> int | None:
    """Read the rank from a file name (not a path); None when the name tells none."""
    found = _RANK.search(name) or _TORCHTITAN.match(name)
    return int(found.group(1)) if found else None
