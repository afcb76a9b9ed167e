"""Values that users attach to regions, as JSON can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from annotq.agent.valid_text import valid_text

_DEEPEST = 8


def plain(value: Any, depth: int = 0) -> Any:
    """`value` with texts, numbers, lists and dictionaries kept and everything else as text.

    A tensor becomes its shape, type and device: to print its content would wait for the GPU, and break a capture.
    """
    if value is None or isinstance(value, bool) or type(value) is int:
        return value
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return {text_of(key): plain(field, depth + 1) for key, field in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(entry, depth + 1) for entry in value]
        if isinstance(value, (set, frozenset)):
            return sorted((plain(entry, depth + 1) for entry in value), key=repr)
    if hasattr(value, "__dlpack__"):  # a tensor of any library
        described = (getattr(value, name, "?") for name in ("shape", "dtype", "device"))
        return f"{type(value).__name__} {' '.join(map(str, described))}"
    return text_of(value)


def text_of(value: object) -> str:
    """`value` as text, whatever it is: what a user attaches must not cost a training run."""
    try:
        return valid_text(str(value))
    except Exception:
        return f"<{type(value).__name__}>"
