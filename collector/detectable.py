"""What a job could have shown: how slow a rank would have had to be to be found, and how many steps would tell."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from annotq.collector.causes.slow_rank import FALSE_ALARMS, Slowness
from annotq.collector.evidence import SHORTEST_WINDOW, Evidence
from annotq.collector.looks import SMALLEST, Looked
from annotq.collector.screen import Screen, Window, numbers_of_steps, screen
from annotq.collector.statistics import Floats, benjamini_hochberg, medians_of_others

FEWEST_STEPS = SHORTEST_WINDOW


def largest(slowness: Slowness) -> tuple[int, int] | None:
    """The place (region, rank) of the largest location over the whole run; None where nothing could be compared."""
    look = slowness.whole_run
    if look is None or look.regions.tests == 0:
        return None
    region, rank = np.unravel_index(int(np.nanargmax(look.regions.location)), look.regions.location.shape)
    return int(region), int(rank)


def q_values(slowness: Slowness) -> Floats:
    """Of every comparison over the whole run, corrected for all of them (Benjamini-Hochberg); shape (regions, ranks)."""
    assert slowness.whole_run is not None
    look = slowness.whole_run.regions
    judged = ~np.isnan(look.location)
    chances = look.chance(judged)
    found = np.ones_like(chances)
    found[judged] = benjamini_hochberg(chances[judged])
    return found


def bearable(look: Looked) -> float:
    """The chance that a single test may have for its rank to be called slow."""
    return FALSE_ALARMS * look.window.share / max(look.tests, 1)


def detectable(slowness: Slowness) -> float | None:
    """The factor from which a rank slow in one region, or in all, would have been found half of the time.

    For the region, or the whole of a rank, with the usual noise; the smaller of the two. None when no factor would.
    """
    look = slowness.whole_run
    if look is None:
        return None
    found = [
        smallest for one in (look.regions, look.whole) if (smallest := _smallest_seen(one, bearable(look))) is not None
    ]
    return math.exp(max(min(found), SMALLEST)) if found else None


def _smallest_seen(one: Screen, allowed: float) -> float | None:
    """The smallest location that is beyond chance, for the usual series and rank."""
    if one.tests == 0:
        return None
    locations = np.geomspace(0.01, 3, 120)
    steps = np.full(len(locations), int(np.median(one.counts[one.counts >= FEWEST_STEPS])))
    seen = locations[_usual_chance(one, locations, steps) <= allowed]
    return float(seen[0]) if len(seen) else None


def steps_to_see(look: Looked, factor: float) -> int | None:
    """Steps from which a rank slower by the factor would be found half of the time; None: not in any number of them."""
    steps = numbers_of_steps()
    location = np.full(len(steps), math.log(factor))
    looks = [one for one in (look.regions, look.whole) if one.tests]
    seen = [_usual_chance(one, location, steps) <= bearable(look) for one in looks]
    enough = steps[np.any(seen, axis=0)] if seen else steps[:0]
    return int(enough[0]) if len(enough) else None


def _usual_chance(one: Screen, location: Floats, steps: NDArray[np.int64]) -> Floats:
    """Chance that a healthy rank reaches a location in so many steps, for the usual series; both of one shape."""
    usual = one.noise.of_usual_series()
    # What the smallest of that many values of the noise lies below its middle.
    depth = -np.quantile(usual.shape.sample, 1 / (steps + 1)) * usual.scale
    first = np.zeros(len(location), dtype=np.int64)
    return usual.chance(first, location, location - depth, steps, np.repeat(usual.scale, len(location)))


@dataclass(frozen=True)
class SlowInTotal:
    """A rank whose steps hold more compute than the others', in regions or not."""

    rank: int
    ratio: float
    excess_ns: float


def slow_in_total(evidence: Evidence) -> SlowInTotal | None:
    """The slowest such rank beyond chance; only where all ranks run the same regions, else totals mean nothing."""
    work = evidence.work
    if len(work.ranks) < 2 or not evidence.compared.all():
        return None
    others = medians_of_others(work.total_ns, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = np.log(np.maximum(work.total_ns, 1) / np.maximum(others, 1))[None]
    look = screen(deviations, Window(slice(0, len(work.steps)), 1.0))
    chances = look.chance(np.nan_to_num(look.location) >= SMALLEST)[0]
    rank = int(np.argmin(chances))
    if chances[rank] * look.tests > FALSE_ALARMS:
        return None
    excess = float(np.nanmedian(work.total_ns[rank] - others[rank]))
    return SlowInTotal(int(work.ranks[rank]), float(np.exp(look.location[0, rank])), excess)
