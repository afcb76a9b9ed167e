"""The identity of a CUDA graph across ranks and re-instantiations, where graph ids mean nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b


def fingerprint(kinds: Sequence[str], names: Sequence[str | None], edges: Iterable[tuple[int, int]] = ()) -> str:
    """Hash a graph's nodes, given in node order: kinds[i] and names[i] (None: no kernel) of node i; 16 hex digits.

    edges: (from, to) as positions in node order, in any order. Two graphs with the same fingerprint launch the same
    kernels in the same order; with edges, also with the same dependencies. Sizes and streams are left out. A trace shows no
    edges, so a graph known from a trace alone has another fingerprint than the same graph reported by its recorder.
    """
    digest = blake2b(digest_size=8)
    # NUL and newline occur in neither part, so no two lists of nodes give the same text.
    digest.update("".join([f"{kind}\0{name or ''}\n" for kind, name in zip(kinds, names, strict=True)]).encode())
    if ordered := sorted(edges):
        # No node begins like this: its kind is never empty.
        digest.update(b"\0edges\n")
        digest.update("".join([f"{start} {end}\n" for start, end in ordered]).encode())
    return digest.hexdigest()
