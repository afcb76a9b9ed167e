"""Warnings of the recorder: one per cause and process, and never an exception in user code."""

from __future__ import annotations

import sys
import warnings

_seen: set[str] = set()


def warn_once(cause: str, sentence: str) -> None:
    """Warn with `sentence` unless a warning of the same `cause` was given before.

    Under `-W error` a warning is an exception: then the sentence goes to stderr instead.
    """
    if cause in _seen:
        return
    _seen.add(cause)
    text = f"annotq: {sentence} `annotq doctor` says more."
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except Warning:
        print(text, file=sys.stderr)


def error_text(error: BaseException) -> str:
    """What went wrong, in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
