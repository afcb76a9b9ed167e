"""Cutting JSON into blocks of events finds the events that a JSON parser finds, wherever the cuts fall."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from annotq.agent.reader.json_blocks import EventBlocks

TEXT = st.text(st.sampled_from('ab"\\{}[]:,\n \u00e9'), max_size=8) | st.sampled_from(
    ['{"ph":', '\n  {\n    "ph":', "]", "traceEvents"]
)
VALUES = st.recursive(
    st.none() | st.integers(-5, 5) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.just("ph"), inner, max_size=3),
    max_leaves=8,
)
EVENTS = st.fixed_dictionaries({"ph": st.just("X"), "args": VALUES}) | st.dictionaries(TEXT, VALUES, max_size=3)


def read(text: bytes, chunk_bytes: int, block_bytes: int) -> tuple[list[Any], EventBlocks]:
    blocks = EventBlocks((text[i : i + chunk_bytes] for i in range(0, len(text), chunk_bytes)), block_bytes)
    events: list[Any] = []
    for block in blocks:
        try:
            events += msgspec.json.decode(block.array)
        except msgspec.DecodeError:
            events += msgspec.json.decode(blocks.rescue(block).array)
    return events, blocks


@given(
    events=st.lists(EVENTS, max_size=6),
    around=st.dictionaries(TEXT, VALUES, max_size=3),
    indent=st.sampled_from([None, 0, 2]),
    array=st.booleans(),
    first=st.booleans(),
    chunk_bytes=st.integers(1, 60),
    block_bytes=st.integers(1, 200),
)
@settings(max_examples=200, deadline=None)
def test_blocks_hold_the_events_of_the_file(
    events: list[Any],
    around: dict[str, Any],
    indent: int | None,
    array: bool,
    first: bool,
    chunk_bytes: int,
    block_bytes: int,
) -> None:
    around = {key: value for key, value in around.items() if key != "traceEvents"}
    whole: Any = events if array else {"traceEvents": events} | around if first else around | {"traceEvents": events}
    text = json.dumps(whole, indent=indent, ensure_ascii=False).encode()
    found, blocks = read(text, chunk_bytes, block_bytes)
    assert found == events
    assert blocks.ended
    assert blocks.damaged == []
    if not array:
        assert json.loads(blocks.around) == around | {"traceEvents": []}


@given(
    cut=st.integers(20, 400),
    chunk_bytes=st.integers(1, 60),
    block_bytes=st.integers(1, 200),
    indent=st.sampled_from([None, 2]),
)
@settings(max_examples=200, deadline=None)
def test_a_cut_file_gives_the_whole_events_before_the_cut(
    cut: int, chunk_bytes: int, block_bytes: int, indent: int | None
) -> None:
    events = [{"ph": "X", "name": f"k{i}", "args": {"ph": [{"ph": i}]}} for i in range(8)]
    text = json.dumps({"traceEvents": events}, indent=indent).encode()[:cut]
    found, blocks = read(text, chunk_bytes, block_bytes)
    assert found == events[: len(found)]
    whole = sum(text.count(json.dumps(event, indent=indent).encode().replace(b"\n", b"\n    ")) for event in events)
    assert len(found) == whole
    assert not blocks.ended


@given(
    bad=st.integers(0, 7),
    chunk_bytes=st.integers(1, 60),
    block_bytes=st.integers(1, 300),
    indent=st.sampled_from([None, 2]),
)
@settings(max_examples=200, deadline=None)
def test_a_damaged_event_costs_only_itself(bad: int, chunk_bytes: int, block_bytes: int, indent: int | None) -> None:
    events = [{"ph": "X", "name": f"k<{i}>", "pid": 3, "args": {"stream": 7}} for i in range(8)]
    text = json.dumps({"traceEvents": events, "traceName": "t"}, indent=indent).encode()
    damaged = text.replace(b"k<%d>" % bad, b'k"%d"' % bad)
    found, blocks = read(damaged, chunk_bytes, block_bytes)
    assert found == [event for event in events if event["name"] != f"k<{bad}>"]
    assert len(blocks.damaged) == 1
    # The token that starts an event takes its line break along.
    start = damaged.index(b'k"') - len(b'{"ph": "X", "name": "')
    assert abs(blocks.damaged[0][0] - start) < 60
    assert blocks.ended
