"""The window: so many batches and bytes may be unacknowledged, whoever hands over more waits."""

from __future__ import annotations

import threading
from itertools import islice

import pytest
from spools import wait_for

from annotq.agent.outbox import MOST_BATCHES, MOST_BYTES, Outbox, RewoundError, StoppedError
from annotq.v1 import collector_pb2 as pb


def batch(sequence: int, size: int = 0, process_id: int = 1) -> pb.Batch:
    return pb.Batch(process_id=process_id, sequence=sequence, payload=bytes(size))


def handing_over(outbox: Outbox, batches: list[pb.Batch]) -> threading.Thread:
    """A thread that hands them over one after the other."""
    thread = threading.Thread(target=lambda: [outbox.put(each) for each in batches], daemon=True)
    thread.start()
    return thread


def never() -> bool:
    return False


@pytest.mark.parametrize(("size", "fit"), [(0, MOST_BATCHES), (MOST_BYTES // 4, 3), (MOST_BYTES + 1, 1)])
def test_what_does_not_fit_into_the_window_waits(size: int, fit: int) -> None:
    outbox = Outbox(never)
    thread = handing_over(outbox, [batch(i, size) for i in range(MOST_BATCHES + 1)])
    wait_for(lambda: len(outbox.waiting(1)) == fit)
    thread.join(0.3)
    assert outbox.waiting(1) == list(range(fit))
    assert outbox.acknowledge(1, 0)
    wait_for(lambda: outbox.waiting(1) == list(range(1, fit + 1)))


def test_a_new_stream_begins_with_what_is_unacknowledged() -> None:
    outbox = Outbox(never)
    for i in range(4):
        outbox.put(batch(i))
    first = outbox.stream()
    assert [next(first).sequence for _ in range(3)] == [0, 1, 2]
    outbox.acknowledge(1, 0)
    second = outbox.stream()
    assert list(first) == []
    assert [each.sequence for each in islice(second, 3)] == [1, 2, 3]


def test_a_rewound_process_hands_over_nothing_until_it_restarts() -> None:
    outbox = Outbox(never)
    for process_id in (1, 2):
        outbox.put(batch(5, process_id=process_id))
    outbox.rewind(1)
    with pytest.raises(RewoundError):
        outbox.put(batch(6))
    assert (outbox.processes(), outbox.rewound()) == ({2}, {1})
    outbox.restart(1)
    outbox.put(batch(5))
    assert [each.process_id for each in islice(outbox.stream(), 2)] == [2, 1]


def test_who_waits_for_room_is_let_go_at_the_end() -> None:
    stop = threading.Event()
    outbox = Outbox(stop.is_set, most_batches=1)
    outbox.put(batch(1))
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(StoppedError):
        outbox.put(batch(2))


def test_an_acknowledgement_of_something_else_is_none() -> None:
    outbox = Outbox(never)
    outbox.put(batch(1))
    assert not outbox.acknowledge(1, 2)
    assert not outbox.wait_until_empty(0.1)
    assert outbox.acknowledge(1, 1)
    assert outbox.wait_until_empty(0.1)
