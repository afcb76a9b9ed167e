"""Tells what a file is by its name and, where that is not enough, its first bytes. Cheap: nothing but the standard library."""

from __future__ import annotations

import re
from pathlib import Path

PICKLE_SUFFIXES = (".pkl", ".pickle")
_INTEGER_KEY_FIRST = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"-?\d+"\s*:')


def is_annotation_file(path: Path) -> bool:
    """Tell from the name (.pkl, .pickle, *annotations*.json) or, for other .json, from a first key that is a number."""
    name = path.name.lower()
    if name.endswith(PICKLE_SUFFIXES):
        return True
    if not name.endswith(".json"):
        return False
    if "annotations" in name:
        return True
    try:
        with path.open("rb") as file:
            return _INTEGER_KEY_FIRST.match(file.read(4096)) is not None
    except OSError:
        return False


def is_graph_file(path: Path) -> bool:
    """Tell from the name: *graphs*.json, but not a trace."""
    name = path.name.lower()
    return name.endswith(".json") and "graphs" in name and not name.endswith(".trace.json")
