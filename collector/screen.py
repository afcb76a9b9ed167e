"""Tests every rank in every region against chance, over the whole run and over parts of it.

An effect that began late, or ended early, is diluted over the whole run; halves and the last quarter find it, and what holds
in other steps a segment that the rank's own steps propose. Every additional look costs: the chances are multiplied by the
number of tests, the whole run being charged least, and such a segment for every segment that might have been proposed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from annotq.collector.evidence import SHORTEST_WINDOW
from annotq.collector.noise import USUAL_DIFFERENCE, Noise, learn_noise, scales
from annotq.collector.onset import span_of_effect
from annotq.collector.statistics import Floats, huber_locations, medians


@dataclass(frozen=True)
class Window:
    """Steps, as a slice of their places, and the share of the allowed false alarms that is spent on them."""

    steps: slice
    share: float


# Of the allowed false alarms, what each part of the run gets, and all segments together.
PART = 0.1


def windows(steps: int) -> tuple[Window, ...]:
    """The whole run, its first, middle and last half, and its last quarter, as far as they have 3 steps."""
    half, quarter = -(-steps // 2), -(-steps // 4)
    parts = [slice(steps - half, steps), slice(steps - quarter, steps), slice(0, half), slice(quarter, quarter + half)]
    parts = [part for part in parts if SHORTEST_WINDOW <= part.stop - part.start < steps]
    return (Window(slice(0, steps), 1 - PART * (len(parts) + 1)), *(Window(part, PART) for part in parts))


def segment_of(series: Floats, smallest: float, inflation: float) -> Window | None:
    """The steps in which the series lies above `smallest`, as a window; None where it does so throughout, or hardly anywhere.

    series: of one rank, NaN where there is none. Its share is that of one among all segments of so many steps.
    """
    steps = len(series)
    span = span_of_effect(series, smallest, inflation)
    if span.end - span.first < SHORTEST_WINDOW or span.end - span.first == steps:
        return None
    segments = (steps - SHORTEST_WINDOW + 1) * (steps - SHORTEST_WINDOW + 2) // 2
    return Window(span.steps, PART / segments)


# Below this a location is not looked at closely.
SMALL = 0.02


@dataclass(frozen=True)
class Screen:
    """Series of one kind in one window. deviations: shape (series, ranks, steps of the window)."""

    window: Window
    deviations: Floats
    noise: Noise

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Steps compared; shape (series, ranks)."""
        found: NDArray[np.int64] = (~np.isnan(self.deviations)).sum(axis=2)
        return found

    @cached_property
    def location(self) -> Floats:
        """Where a rank lies over the steps, NaN with fewer than 3; shape (series, ranks).

        The median where it is small, Huber's estimate, which is more exact, where it may matter.
        """
        found = medians(self.deviations)[..., 0] if self.deviations.size else np.full(self.counts.shape, np.nan)
        found[self.counts < SHORTEST_WINDOW] = np.nan
        places = np.nonzero(np.abs(np.nan_to_num(found)) >= SMALL)
        if len(places[0]):
            found[places] = huber_locations(self.deviations[places], self._scale(places))
        return found

    @cached_property
    def error(self) -> Floats:
        """Standard error of the location, of ranks as noisy as most."""
        each = self.noise.scale[:, None] * np.sqrt(1.05 * self.noise.inflation / np.maximum(self.counts, 1))
        return np.asarray(each)

    @property
    def tests(self) -> int:
        return int((~np.isnan(self.location)).sum())

    def chance(self, asked: NDArray[np.bool_]) -> Floats:
        """Of such a location or a larger one if the rank were like the others, for one test; 1 where it is not asked for.

        asked: shape (series, ranks).
        """
        found = np.ones(asked.shape)
        places = np.nonzero(asked & ~np.isnan(self.location))
        if len(places[0]):
            own = self.deviations[places]
            lowest = np.nanmin(own, axis=1)
            found[places] = self.noise.chance(
                places[0], self.location[places], lowest, self.counts[places], self._scale(places)
            )
        return found

    def of_rank(self, deviations: Floats, rank: int, window: Window) -> Screen:
        """One rank alone in other steps, with the noise of this window."""
        return Screen(window, deviations[:, rank : rank + 1, window.steps], self.noise)

    def steps_needed(self, series: int, rank: int, bearable: float) -> int | None:
        """Steps from which the location would be beyond chance if it stayed as it is; None: not with any number of them.

        bearable: chance of a false alarm for one test.
        """
        place = (np.array([series]), np.array([rank]))
        steps = numbers_of_steps()
        same = np.zeros(len(steps), dtype=np.int64)
        lowest = np.nanmin(self.deviations[place], axis=1)
        chance = self.noise.chance(
            place[0][same], self.location[place][same], lowest[same], steps, self._scale(place)[same]
        )
        enough = steps[chance <= bearable]
        return int(enough[0]) if len(enough) else None

    def _scale(self, places: tuple[NDArray[np.intp], ...]) -> Floats:
        """The noise of some ranks: that of the series, or their own when they are noisier and the steps can tell."""
        usual = self.noise.scale[places[0]]
        if self.deviations.shape[2] < STEPS_FOR_OWN_NOISE:
            return usual
        own = self.deviations[places]
        return np.maximum(usual, OWN_NOISE_SHARE * scales(own - medians(own)))


# More steps than anybody records.
MOST_STEPS = 100_000


def numbers_of_steps() -> NDArray[np.int64]:
    """How many steps are tried where the question is how many would tell: from 3 on, each a tenth more than the last."""
    steps = [SHORTEST_WINDOW]
    while steps[-1] <= MOST_STEPS:
        steps.append(steps[-1] + max(1, steps[-1] // 10))
    return np.array(steps)


# Steps from which a rank's own noise is measured, and how far it has to exceed the usual one to count.
STEPS_FOR_OWN_NOISE, OWN_NOISE_SHARE = 8, 0.8


def with_differences_of(look: Screen, whole_run: Screen) -> Screen:
    """The look with what healthy ranks differ by for good as the whole run, which knows it best, says."""
    return replace(look, noise=replace(look.noise, between=whole_run.noise.between))


def screen(
    deviations: Floats, window: Window, usual_difference: float = USUAL_DIFFERENCE, finer: Screen | None = None
) -> Screen:
    """deviations: shape (series, ranks, steps). finer: the series of which these are sums, to know the tails from."""
    part = deviations[:, :, window.steps]
    return Screen(window, part, learn_noise(part, usual_difference, finer.noise.shape if finer else None))
