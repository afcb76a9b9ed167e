"""Strings that are written once and referred to by number: names of slices, categories, names and texts of arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import DebugAnnotation, InternedData, TrackEvent

from annotq.cli.perfetto.wire import fields

# Below that, values are JSON text: readers of protobuf give up on a file with messages in messages a hundred levels deep.
DEEPEST = 20

Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]


class Interned:
    """Gives strings their numbers (from 1; 0 is none) and keeps those that are not in the file yet."""

    def __init__(self, write: Callable[[InternedData], None]) -> None:
        self._write = write
        self._new = InternedData()
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._arguments: dict[str, int] = {}
        self._texts: dict[str, int] = {}

    def flush(self) -> None:
        """Write the new strings. To be called before an event that refers to them is written."""
        if self._new.ByteSize():
            self._write(self._new)
            self._new = InternedData()

    def name(self, name: str) -> int:
        number, new = _number(self._names, name)
        if new:
            self._new.event_names.add(iid=number, name=name)
        return number

    def category(self, category: str) -> int:
        number, new = _number(self._categories, category)
        if new:
            self._new.event_categories.add(iid=number, name=category)
        return number

    def arguments(self, values: Mapping[str, Value]) -> bytes:
        """The arguments of an event as fields of its TrackEvent; those that are None are left out."""
        event = TrackEvent()
        for name, value in values.items():
            if value is not None:
                annotation = event.debug_annotations.add(name_iid=self._argument(name))
                self._fill(annotation, value)
        return fields(event)

    def _argument(self, name: str) -> int:
        number, new = _number(self._arguments, name)
        if new:
            self._new.debug_annotation_names.add(iid=number, name=name)
        return number

    def _text(self, text: str) -> int:
        number, new = _number(self._texts, text)
        if new:
            self._new.debug_annotation_string_values.add(iid=number, str=text.encode())
        return number

    def _fill(self, annotation: DebugAnnotation, value: Value, depth: int = 0) -> None:
        if isinstance(value, bool):
            annotation.bool_value = value
        elif isinstance(value, int) and -(2**63) <= value < 2**63:
            annotation.int_value = value
        elif isinstance(value, float):
            annotation.double_value = value
        elif isinstance(value, dict) and value and depth < DEEPEST:
            for name, part in value.items():
                self._fill(annotation.dict_entries.add(name_iid=self._argument(name)), part, depth + 1)
        elif isinstance(value, list) and value and depth < DEEPEST:
            for part in value:
                self._fill(annotation.array_values.add(), part, depth + 1)
        else:
            annotation.string_value_iid = self._text(value if isinstance(value, str) else json.dumps(value))


def _number(known: dict[str, int], text: str) -> tuple[int, bool]:
    found = known.get(text)
    if found is not None:
        return found, False
    known[text] = len(known) + 1
    return len(known), True
