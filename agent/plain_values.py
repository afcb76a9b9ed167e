"""Values that users attach to regions, as JSON can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_DEEPEST = 8


def plain(value: Any, depth: int = 0) -> Any:
    """`value` with texts, numbers, lists and dictionaries kept and everything else as text.

    A tensor becomes its shape, type and device: to print its content would wait for the GPU, and break a capture.
    """
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return {str(key): plain(field, depth + 1) for key, field in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(entry, depth + 1) for entry in value]
        if isinstance(value, (set, frozenset)):
            return sorted((plain(entry, depth + 1) for entry in value), key=repr)
    if hasattr(value, "__dlpack__"):  # a tensor of any library
        described = (getattr(value, name, "?") for name in ("shape", "dtype", "device"))
        return f"{type(value).__name__} {' '.join(map(str, described))}"
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"
