"""Text that UTF-8, and so JSON, protobuf and the store, can carry. Only the standard library."""

from __future__ import annotations

import re

# What Python makes of bytes that are no UTF-8 (os.fsdecode) is U+DC80 to U+DCFF; these are the surrogates besides.
_OTHER_SURROGATES = re.compile(r"[\ud800-\udc7f\udd00-\udfff]")


def valid_text(text: str) -> str:
    """`text` with bytes of names that are no UTF-8 written out, as `a\\xff`, and every other lone surrogate as `\\ud800`."""
    if text.isascii():
        return text
    told = _OTHER_SURROGATES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return told.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_valid(text: str) -> bool:
    """Whether UTF-8 can carry it as it is."""
    return valid_text(text) == text
