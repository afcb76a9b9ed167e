"""Reads pickles of builtin containers and scalars, and refuses others: unpickling a stranger's file runs its code."""

from __future__ import annotations

import builtins
import collections
import io
import pickle
from typing import Any

# Enough for any graph; a pickle can claim sizes that no memory holds.
MAX_BYTES = 1 << 30

# No `bytes`: called with a number it takes that much memory; pickles of protocol 3 and later write bytes without it.
_ALLOWED: dict[tuple[str, str], Any] = {
    **{("builtins", name): getattr(builtins, name) for name in ("list", "dict", "set", "frozenset", "tuple")},
    **{("builtins", name): getattr(builtins, name) for name in ("str", "int", "float", "bool", "complex")},
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
}


class UnsafePickleError(Exception):
    """The pickle is damaged or holds something else than plain values; the message is a clause."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # Protocols 0 to 2 write Python 2's name of the module.
        found = _ALLOWED.get(("builtins" if module == "__builtin__" else module, name))
        if found is None:
            raise UnsafePickleError(f"the pickle asks for {module}.{name}, which is not a plain value: not read")
        return found

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafePickleError("the pickle refers to objects outside itself: not read")


def load_plain(data: bytes) -> Any:
    """Return the pickled value; UnsafePickleError when anything in it is not a plain value, or it is damaged."""
    if len(data) > MAX_BYTES:
        raise UnsafePickleError(f"the pickle is {len(data)} bytes, more than {MAX_BYTES}: not read")
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except UnsafePickleError:
        raise
    except Exception as error:
        # The pickle machine raises whatever the bytes lead it to: EOFError, KeyError, MemoryError, ...
        raise UnsafePickleError(f"the pickle is damaged ({type(error).__name__}: {error})") from None
