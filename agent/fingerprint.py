"""The identity of a CUDA graph across ranks and re-instantiations, where graph ids mean nothing."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b


def fingerprint(kinds: Sequence[str], names: Sequence[str | None]) -> str:
    """Hash a graph's nodes, given in node order: kinds[i] and names[i] (None: no kernel) of node i; 16 hex digits.

    Two graphs with the same fingerprint launch the same kernels in the same order. Sizes, streams and edges
    are left out: a trace does not show them.
    """
    digest = blake2b(digest_size=8)
    for kind, name in zip(kinds, names, strict=True):
        # NUL and newline occur in neither part, so no two lists of nodes give the same text.
        digest.update(f"{kind}\0{name or ''}\n".encode())
    return digest.hexdigest()
