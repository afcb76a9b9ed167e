"""The looks at a window of steps from fine to coarse: single regions, regions that are the same code, all of a rank's."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from annotq.collector.evidence import Evidence
from annotq.collector.findings import MINIMAL_EFFECT
from annotq.collector.screen import Screen, Window, screen, with_differences_of
from annotq.collector.statistics import Floats

SMALLEST = math.log(MINIMAL_EFFECT)

# A rank's regions are compared with each other only when there are enough to take a median of.
REGIONS_FOR_CONTRAST = 5
# What healthy ranks differ by for good in a kind of region, and in all together; and the part of it that differs from
# region to region.
USUAL_IN_KIND, USUAL_IN_ALL = 0.0085, 0.0075
USUAL_CONTRAST, USUAL_CONTRAST_IN_KIND = 0.0075, 0.006


@dataclass(frozen=True)
class Looked:
    """One window, looked at from fine to coarse: each region and phase, regions of one kind together, all of them together;
    the first two also against what the rank's regions have in common.

    members: regions of each kind, shape (kinds, regions).
    """

    window: Window
    members: NDArray[np.bool_]
    regions: Screen
    regions_apart: Screen
    kinds: Screen
    kinds_apart: Screen
    whole: Screen

    @property
    def tests(self) -> int:
        looks = (self.regions, self.regions_apart, self.kinds, self.kinds_apart, self.whole)
        return sum(look.tests for look in looks)

    def chances(self) -> tuple[Floats, Floats, Floats]:
        """Smallest chance of the looks by (region, rank), by (kind, rank) and by rank; 1 where the effect is too small."""
        by_region = _smaller(self.regions, self.regions_apart)
        by_kind = _smaller(self.kinds, self.kinds_apart)
        whole = self.whole.chance(np.nan_to_num(self.whole.location) >= SMALLEST)[0]
        return by_region, by_kind, whole

    def of_rank(self, series: Series, rank: int, window: Window) -> Looked:
        """One rank alone in other steps, with the noise of this window."""
        return Looked(
            window,
            self.members,
            self.regions.of_rank(series.regions, rank, window),
            self.regions_apart.of_rank(series.regions_apart, rank, window),
            self.kinds.of_rank(series.kinds, rank, window),
            self.kinds_apart.of_rank(series.kinds_apart, rank, window),
            self.whole.of_rank(series.whole, rank, window),
        )


def _smaller(plain: Screen, apart: Screen) -> Floats:
    slow = np.nan_to_num(plain.location) >= SMALLEST
    alone = slow & (np.nan_to_num(apart.location) >= SMALLEST / 2)
    return np.minimum(plain.chance(slow), apart.chance(alone))


@dataclass(frozen=True)
class Series:
    """What is looked at; members as in Looked, the others with shape (regions, kinds or 1, ranks, steps).

    apart: less what the rank's regions have in common in the step, NaN where it has fewer than 5; a rank's constant
    difference and noise that its regions share fall out.
    """

    members: NDArray[np.bool_]
    regions: Floats
    regions_apart: Floats
    kinds: Floats
    kinds_apart: Floats
    whole: Floats


def series_of(evidence: Evidence) -> Series:
    deviations = evidence.deviations
    enough = (~np.isnan(deviations)).sum(axis=0, keepdims=True) >= REGIONS_FOR_CONTRAST
    common = np.where(enough, evidence.common, np.nan)
    members = kinds_of(evidence.work.regions)
    kinds = np.stack([evidence.together(kind) for kind in members]) if len(members) else deviations[:0]
    return Series(members, deviations, deviations - common, kinds, kinds - common, evidence.whole)


def kinds_of(regions: tuple[tuple[str, str], ...]) -> NDArray[np.bool_]:
    """Regions that are the same code: both phases of one region, and regions whose names differ in numbers only."""
    found: dict[tuple[int, ...], None] = {}
    for fold in (lambda name: name, lambda name: re.sub(r"\d+", "*", name)):
        kinds: dict[str, list[int]] = {}
        for place, (name, _) in enumerate(regions):
            kinds.setdefault(fold(name), []).append(place)
        found |= dict.fromkeys(tuple(places) for places in kinds.values() if 1 < len(places) < len(regions))
    members = np.zeros((len(found), len(regions)), dtype=np.bool_)
    for kind, places in enumerate(found):
        members[kind, list(places)] = True
    return members


def looks_at(series: Series, parts: tuple[Window, ...]) -> list[Looked]:
    """The looks at the windows, of which the first is the whole run."""
    first, *others = [look_at(series, window) for window in parts]
    return [first, *(_with_differences_of(look, first) for look in others)]


def _with_differences_of(look: Looked, whole_run: Looked) -> Looked:
    return Looked(
        look.window,
        look.members,
        with_differences_of(look.regions, whole_run.regions),
        with_differences_of(look.regions_apart, whole_run.regions_apart),
        with_differences_of(look.kinds, whole_run.kinds),
        with_differences_of(look.kinds_apart, whole_run.kinds_apart),
        with_differences_of(look.whole, whole_run.whole),
    )


def look_at(series: Series, window: Window) -> Looked:
    regions = screen(series.regions, window)
    apart = screen(series.regions_apart, window, USUAL_CONTRAST)
    return Looked(
        window,
        series.members,
        regions,
        apart,
        screen(series.kinds, window, USUAL_IN_KIND, regions),
        screen(series.kinds_apart, window, USUAL_CONTRAST_IN_KIND, apart),
        screen(series.whole, window, USUAL_IN_ALL, regions),
    )
