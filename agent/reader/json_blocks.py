"""Cut the JSON of a trace into blocks of whole events without parsing it.

The text from an event's start up to the colon after its first key (`\n  {\n    "ph":` as Kineto writes it,
`{"ph":` in a compact file) holds unescaped quotes, so it can only occur where an object starts and never inside a
string. The last occurrence in a buffer is a place to cut. Where that fails (no occurrence, or one in a nested
object, or damaged JSON), single elements are measured exactly with a JSON decoder, which costs about twice the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

BLOCK_BYTES = 2 << 20
# Neither the keys before the events nor those after them are events; 64 MB of them is no trace.
MAX_AROUND_BYTES = 64 << 20

_SPACE = b" \t\r\n"
_BLANK_OR_COMMA = _SPACE + b","
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)
_ARRAY_AFTER_KEY = re.compile(rb"\s*:\s*(\[)?")
_ELEMENT_START = re.compile(rb'(?:[\r\n]+[ \t]*)?\{\s*"[^"\\]*"\s*:')
_PLACE = re.compile(r"\(byte (\d+)\)")
_LONGEST_ESCAPE = len(r"\ud83d\ude00")
_BETWEEN = re.compile(rb"[\s,]*")
_CLOSING = re.compile(rb"\]")
_TRUNCATED = "truncated"
# While a damaged element is passed over: room for a token that straddles two chunks, and for the keys after the events.
_KEPT_WHILE_SKIPPING = 64 << 10
_LONGEST_FIRST_KEY = 64 << 10


@dataclass(frozen=True)
class Element:
    """One event's JSON text and its offset in the (inflated) file, in bytes."""

    offset: int
    text: bytes


@dataclass(frozen=True)
class Block:
    """Consecutive events as a JSON array; `elements` is set when they were measured one by one.

    gap is what stands between the last of them and the next event: a comma and blanks.
    """

    offset: int
    array: bytes
    gap: bytes = b""
    elements: tuple[Element, ...] | None = None


class NotEventsError(Exception):
    """The text holds no array of events; the message says what it holds instead."""


class EventBlocks:
    """Iterate over the blocks of `traceEvents` (or of a top-level array).

    A block that does not decode goes to `rescue`, before the next block is asked for. After the last block: `around`
    is the JSON of everything but the events, `ended` says whether the array was closed, and `damaged` lists the
    elements that are no JSON, each as its offset and the decoder's message. Raises NotEventsError.
    """

    def __init__(self, chunks: Iterable[bytes], block_bytes: int = BLOCK_BYTES) -> None:
        self.ended = False
        self.damaged: list[tuple[int, str]] = []
        self._chunks = iter(chunks)
        self._block_bytes = block_bytes
        self._head = b""
        self._tail = b""
        self._text = b""  # starts where an element starts
        self._offset = 0  # of self._text in the file
        self._more = True
        self._exact = False
        self._skipping = False
        self._token = b""

    @property
    def around(self) -> bytes:
        """The object around the events with an empty array in their place; b"" for a top-level array."""
        if self._head.strip(_SPACE) in (b"", b"["):
            return b""
        return self._head + b"]" + (self._tail[1:] if self.ended else b"}")

    def __iter__(self) -> Iterator[Block]:
        self._read_head()
        while not self.ended:
            if block := self._cut(b"") or self._cut(self._read()):
                yield block
            elif not self._wants_more():
                elements = self._measure(len(self._text))
                if elements:
                    yield _joined(elements)
                if not self._more and not self._text.strip(_BLANK_OR_COMMA):
                    break
        self._read_tail()

    def rescue(self, block: Block) -> Block:
        """Return the whole elements of a block that did not decode, and take back what belongs to the next one."""
        text = block.array[1:-1] + block.gap
        self._text = text + self._text
        self._offset = block.offset
        self._exact = True
        return _joined(self._measure(len(text)))

    def _read(self) -> bytes:
        chunk = next(self._chunks, None)
        self._more = chunk is not None
        return chunk or b""

    def _wants_more(self) -> bool:
        """Whether the text is too short to give up looking for a place to cut."""
        return self._more and not self._exact and not self._skipping and len(self._text) < self._block_bytes

    def _cut(self, chunk: bytes) -> Block | None:
        """Cut at the last element start in text and chunk and keep what follows it; without one, keep all of it."""
        text = self._text
        found = -1 if self._exact or self._skipping else chunk.rfind(self._token)
        # One copy of the chunk, no more: each costs 0.05 s per 160 MB, most of it page faults.
        if found >= 0 and text:
            self._text = chunk[found:]
            return self._block(text, chunk, found)
        self._text = text + chunk
        # Less than half a block is worth waiting for the next chunk.
        if self._exact or self._skipping or len(self._text) < self._block_bytes // 2:
            return None
        found = self._text.rfind(self._token, 1)
        if found <= 0:
            return None
        text, self._text = self._text, self._text[found:]
        return self._block(b"", text, found)

    def _block(self, before: bytes, text: bytes, cut: int) -> Block:
        end = cut
        while end and text[end - 1] in _BLANK_OR_COMMA:
            end -= 1
        block = Block(self._offset, b"".join((b"[", before, memoryview(text)[:end], b"]")), text[end:cut])
        self._offset += len(before) + cut
        return block

    def _advance(self, size: int) -> None:
        self._text = self._text[size:]
        self._offset += size

    def _measure(self, at_least: int) -> list[Element]:
        """Take whole elements off the text, past at least this many bytes; note what is no JSON."""
        elements: list[Element] = []
        text, position = self._text, 0
        view = memoryview(text)
        self._exact = False
        while position < at_least:
            if self._skipping:
                position = self._next_token(text, position)
                if self._skipping:
                    break
            between = _BETWEEN.match(text, position)
            start = between.end() if between else position
            if text[start : start + 1] == b"]":
                self.ended = True
                position = start
                break
            size, message = _element_size(view[start:])
            if not message:
                elements.append(Element(self._offset + start, text[start : start + size]))
                position = start + size
            elif message == _TRUNCATED:
                # The element may go on in the next chunk; without one the file is cut here.
                position = start if self._more else len(text)
                self._exact = not elements
                break
            else:
                self.damaged.append((self._offset + start, message))
                position = start + 1
                self._skipping = True
        self._advance(position)
        return elements

    def _next_token(self, text: bytes, position: int) -> int:
        """Find where the next element starts after a damaged one; without one, keep looking in what follows."""
        found = text.find(self._token, position)
        if found >= 0:
            self._skipping = False
            return found
        if self._more:
            return max(position, len(text) - _KEPT_WHILE_SKIPPING)
        # The last element is damaged: the array ends where the rest makes sense as the JSON around it.
        for end in _CLOSING.finditer(text, position):
            if _is_json(self._head + text[end.start() :]):
                self._skipping = False
                return end.start()
        return len(text)

    def _read_head(self) -> None:
        text = self._read().removeprefix(b"\xef\xbb\xbf")
        start = _events_start(text)
        while start is None:
            if not self._more or len(text) > MAX_AROUND_BYTES:
                raise NotEventsError(_what_is(text))
            text += self._read()
            start = _events_start(text)
        while not text[start:].strip(_SPACE) and self._more:
            text += self._read()
        self._head, self._offset, self._text = text[:start], start, text[start:]
        while not (found := _ELEMENT_START.search(self._text)) and self._more and len(self._text) < _LONGEST_FIRST_KEY:
            self._text += self._read()
        # Without a token nothing is ever found, and every element is measured.
        self._token = found.group() if found else b'{"ph"\0'

    def _read_tail(self) -> None:
        self._tail = self._text
        for chunk in self._chunks:
            if len(self._tail) < MAX_AROUND_BYTES:
                self._tail += chunk


def _joined(elements: list[Element]) -> Block:
    array = b"[" + b",".join([element.text for element in elements]) + b"]"
    return Block(elements[0].offset if elements else 0, array, elements=tuple(elements))


def _element_size(view: memoryview) -> tuple[int, str]:
    """Measure the JSON value at the start of a text: its size in bytes, else why there is none."""
    try:
        msgspec.json.decode(view, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        message = str(error)
        # The decoder counts bytes from 1.
        place = _PLACE.search(message)
        if place and "trailing characters" in message:
            return int(place.group(1)) - 1, ""
        # A number, a literal or an escape that is cut counts as malformed, not as truncated.
        if not place or int(place.group(1)) > len(view) - _LONGEST_ESCAPE:
            return 0, _TRUNCATED
        return 0, message
    return len(view), ""


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _events_start(text: bytes) -> int | None:
    """Find the first byte after the bracket that opens the events; None when the text ends before it."""
    if (first := text.lstrip(_SPACE)[:1]) == b"[":
        return text.index(b"[") + 1
    if first not in (b"{", b""):
        raise NotEventsError(_what_is(text))
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        token = found.group()
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and token == b'"traceEvents"':
            after = _ARRAY_AFTER_KEY.match(text, found.end())
            if after and after.group(1):
                return after.end()
    return None


def _what_is(text: bytes) -> str:
    start = text.lstrip(_SPACE)[:40]
    if start.startswith(b"{"):
        return 'a JSON object without an array "traceEvents"'
    return f"text that starts with {start.decode(errors='replace')!r}" if start else "only blanks"
