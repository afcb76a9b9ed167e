"""Fits a host's clock against the collector's from ping samples: a straight line, and a bound of its error.

A sample says that at the time of the ping the collector was ahead by ((received - sent) + (answered - returned)) / 2, give or
take half its round trip, as the two ways may differ by all of it (RFC 5905, section 8). Slow samples say little, so the
fastest of every stretch of time are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Two clocks that are each off by 50 ppm, as much as a computer's quartz may be. Assumed only where samples do not tell.
LARGEST_DRIFT_PPB = 100_000
# How fast the drift itself may change outside of the samples: temperature.
DRIFT_WANDER_PPB = 1_000

_BUCKETS = 32
_SLOWER = (1.5, 3.0, np.inf)  # how much slower than the fastest a kept sample may be; the best bound wins


@dataclass(frozen=True)
class ClockFit:
    """collector's time = t + offset_ns + (t - reference_ns) * drift_ppb / 1e9, give or take error_ns."""

    offset_ns: int
    drift_ppb: int
    reference_ns: int
    error_ns: int


def fit_clock(
    sent: Int64s, received: Int64s, answered: Int64s, returned: Int64s, first_ns: int, last_ns: int
) -> ClockFit | None:
    """The fit of one host's samples; error_ns holds from first_ns to last_ns of its clock. None without a usable sample.

    The bound is exact for a clock that drifts evenly; where it does not, no sample contradicts it.
    """
    usable = (returned >= sent) & (answered >= received) & (returned - sent >= answered - received)
    sent, received, answered, returned = (times[usable] for times in (sent, received, answered, returned))
    if not len(sent):
        return None
    reference = (int(sent.min()) + int(sent.max())) // 2
    base = int(received[0] - sent[0])  # so that floats hold small numbers
    seconds = ((sent - reference) + (returned - reference)) / 2e9
    offset = ((received - sent - base) + (answered - returned - base)) / 2
    half_trip = ((returned - sent) - (answered - received)) / 2
    window = ((first_ns - reference) / 1e9, (last_ns - reference) / 1e9)
    fits = [_line(seconds, offset, half_trip, kept, window) for kept in _kept(seconds, half_trip)]
    level, drift, error = min(fits, key=lambda fit: fit[2])
    return ClockFit(base + round(level), round(drift), reference, int(np.ceil(error)) + 1)


def _kept(seconds: Floats, half_trip: Floats) -> list[npt.NDArray[np.int64]]:
    """Choices of samples: the fastest of each stretch of time, less those much slower than the fastest of all."""
    span = max(float(np.ptp(seconds)), 1e-9)
    bucket = np.minimum(((seconds - seconds.min()) / span * _BUCKETS).astype(np.int64), _BUCKETS - 1)
    order = np.lexsort((half_trip, bucket))
    _, first = np.unique(bucket[order], return_index=True)
    fastest = order[first]
    limit = float(half_trip.min())
    return [fastest[half_trip[fastest] <= factor * limit] for factor in _SLOWER]


def _line(
    seconds: Floats, offset: Floats, half_trip: Floats, kept: npt.NDArray[np.int64], window: tuple[float, float]
) -> tuple[float, float, float]:
    """(offset at second 0 in ns, drift in ppb, bound of the error within the window in ns)."""
    x, y, wrong = seconds[kept], offset[kept], half_trip[kept] + 1.0  # times are whole nanoseconds
    weight = 1.0 / wrong**2
    length = float(np.ptp(x))
    # Of samples so close together the slope says less than what is known of any clock.
    sloped = LARGEST_DRIFT_PPB * length > 2 * float(wrong.max())
    middle = float(np.average(x, weights=weight))
    drift = 0.0
    if sloped:
        drift = round(float(np.sum(weight * (x - middle) * y) / np.sum(weight * (x - middle) ** 2)))
    level = float(np.average(y - drift * x, weights=weight))
    # By how much line and truth may differ at a kept sample. Both are straight, so between two samples it is no more.
    bound = float(np.max(np.abs(y - level - drift * x) + wrong))
    # What any other sample proves them to differ, where the truth is not so straight.
    proven = float(np.max(np.abs(offset - level - drift * seconds) - half_trip))
    bound = max(bound, proven + float(half_trip.min()))
    beyond = max(float(x.min()) - window[0], window[1] - float(x.max()), 0.0)
    if not sloped:
        return level, drift, bound + LARGEST_DRIFT_PPB * (length + beyond)
    steepness = min(2 * bound / length + DRIFT_WANDER_PPB, LARGEST_DRIFT_PPB + abs(drift))
    return level, drift, bound + steepness * beyond
