"""Axes of the comparison's pictures: where a time lies, in per cent of the width, and what is written below it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from annotq.cli.html.rendering import duration

# On a logarithmic axis, times below this are drawn to scale.
SMALLEST_NS = 1_000.0
_LEFT, _RIGHT = 2.0, 98.0


@dataclass(frozen=True)
class Tick:
    """at: per cent of the width. text_at, anchor: of the text, so that the outer ones stay inside."""

    at: float
    text: str
    text_at: float
    anchor: str


@dataclass(frozen=True)
class Axis:
    """From low to high, in ns; logarithmic to both sides of 0 where it says so."""

    low: float
    high: float
    logarithmic: bool
    ticks: tuple[Tick, ...]

    def at(self, value: float) -> float:
        return round(_place(value, self.low, self.high, self.logarithmic), 2)


def linear_axis(values: Iterable[float], with_zero: bool) -> Axis:
    """Around all values; three to six round ticks. Without values, or with one, around 0 or that one."""
    found = [*values, *([0.0] if with_zero else [])] or [0.0]
    low, high = min(found), max(found)
    if high - low < 1:
        low, high = (low, high + 1000) if with_zero else (low - 500, high + 500)
    room = 0.03 * (high - low)
    low, high = (low - room if low < 0 or not with_zero else low), high + room
    step = _round_step((high - low) / 5)
    first = math.ceil(low / step)
    marks = [step * place for place in range(first, math.floor(high / step) + 1)]
    return Axis(low, high, False, _ticks(marks, low, high, False, signed=with_zero and low < 0))


def logarithmic_axis(values: Iterable[float]) -> Axis:
    """Symmetric around 0: decades of both directions as far as the values reach, at least one."""
    found = [abs(value) for value in values]
    decades = max(1, math.ceil(math.log10(max([*found, SMALLEST_NS]) / SMALLEST_NS) + 0.05))
    largest = SMALLEST_NS * 10**decades
    every = max(1, math.ceil(decades / 3))
    powers = [SMALLEST_NS * 10**power for power in range(decades, 0, -every)][::-1]
    return Axis(
        -largest,
        largest,
        True,
        _ticks([*(-p for p in powers[::-1]), 0.0, *powers], -largest, largest, True, signed=True),
    )


def signed_duration(ns: float | None) -> str:
    """As duration, with + or - in front; a difference of nothing is 0."""
    if ns is None:
        return duration(None)
    if round(ns) == 0:
        return "0"
    return f"{'+' if ns > 0 else '-'}{duration(abs(ns))}"


def _place(value: float, low: float, high: float, logarithmic: bool) -> float:
    value, low, high = (map(_log, (value, low, high))) if logarithmic else (value, low, high)
    return _LEFT + (_RIGHT - _LEFT) * (value - low) / (high - low)


def _log(value: float) -> float:
    return math.copysign(math.log10(1 + abs(value) / SMALLEST_NS), value)


def _ticks(marks: list[float], low: float, high: float, logarithmic: bool, signed: bool) -> tuple[Tick, ...]:
    found = []
    for mark in marks:
        at = _place(mark, low, high, logarithmic)
        text = f"{'+' if signed and mark > 0 else ''}{_round_text(mark)}"
        text_at, anchor = round(at, 2), "middle"
        if len(text) > 2 and not 8 <= at <= 92:
            text_at, anchor = (0.0, "start") if at < 8 else (100.0, "end")
        found.append(Tick(round(at, 2), text, text_at, anchor))
    return tuple(found)


def _round_text(ns: float) -> str:
    """A round number with its unit: "-2 ms", "500 us", "0"."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)):
        if abs(ns) >= size * 0.9999:
            return f"{ns / size:.4g} {unit}"
    return "0"


def _round_step(raw: float) -> float:
    power = math.pow(10, math.floor(math.log10(raw)))
    return next(factor * power for factor in (1, 2, 5, 10) if raw <= factor * power * 1.0001)
