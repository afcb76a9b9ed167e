"""Clock samples: when a ping left and came back by this host's clock, and when the collector had it by its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from annotq.v1 import collector_pb2 as pb

Clock = Callable[[], int]

FIRST_BURST = 8
LATER_BURST = 2
BETWEEN_BURSTS_SECONDS = 10.0

_GAP_SECONDS = 0.02  # so that one hiccup does not spoil a whole burst
_CALL_SECONDS = 5.0


def sample(stub: Any, clock: Clock = time.time_ns) -> pb.ClockSample:
    """Ping the collector once. clock: CLOCK_REALTIME of this host in ns. Raises grpc.RpcError."""
    sent = clock()
    pong = stub.SyncClock(pb.Ping(sent_ns=sent), timeout=_CALL_SECONDS)
    returned = clock()
    return pb.ClockSample(
        sent_ns=sent, received_ns=pong.received_ns, answered_ns=pong.answered_ns, returned_ns=returned
    )


def burst(stub: Any, count: int, clock: Clock = time.time_ns) -> list[pb.ClockSample]:
    """Ping several times, a few hundredths of a second apart. Raises grpc.RpcError."""
    found = []
    for i in range(count):
        if i:
            time.sleep(_GAP_SECONDS)
        found.append(sample(stub, clock))
    return found
