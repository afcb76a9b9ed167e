"""Groups side by side, and which of them take longer for the same transfers: what `slow_link` rests on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from annotq.collector.findings import MINIMAL_EFFECT
from annotq.collector.onset import span_of_effect
from annotq.collector.screen import screen, windows
from annotq.collector.statistics import Floats, medians, medians_of_others
from annotq.collector.waits import Kind, RankWait, group_members

FALSE_ALARMS = 0.001
LIKELY = 0.05
# What healthy links differ by for good.
USUAL_DIFFERENCE = 0.01
SMALLEST = math.log(MINIMAL_EFFECT)
# What of a group's transfer time has to lie in slow collectives: a slow link slows whatever passes through it, but small
# messages less than large ones.
SLOW_SHARE = 2 / 3
# How slow they have to be, against the group as a whole.
SLOW_ALIKE = 0.5

Members = tuple[int, ...]


@dataclass(frozen=True)
class Family:
    """One kind of collective of groups side by side. transfers: shape (groups, steps). doubts_ns: by how much the ranks' ends
    lie apart in a step, beyond the error of their clocks; shape (groups,)."""

    transfers: Floats
    doubts_ns: Floats


@dataclass(frozen=True)
class Siblings:
    """Groups that do the same in the same step. transfer_ns: of all their collectives, shape (groups, steps).

    location: how much longer a group's transfers last than the others', as a logarithm. slow: beyond chance, whatever else
    is slow. likely: slow with a chance of one in twenty, enough where another group of the same rank is slow. Both only
    where nearly all its collectives are slow.
    """

    groups: tuple[Members, ...]
    transfer_ns: Floats
    deviations: Floats
    location: Floats
    slow: NDArray[np.bool_]
    likely: NDArray[np.bool_]
    inflation: float


def side_by_side(
    transfers: dict[Kind, dict[int, float]], waits: Iterable[RankWait], steps: list[int], clock_error_ns: float
) -> list[Siblings]:
    """Kinds of collectives of the same groups, judged together; in the order of the groups' ranks."""
    waits = tuple(waits)
    members, apart = group_members(waits), _apart(waits, transfers)
    kinds: dict[tuple[object, ...], dict[Members, list[Kind]]] = {}
    for kind in transfers:
        name, region, phase, *key = kind
        group = members.get(tuple(key))
        if group is not None:
            kinds.setdefault((name, region, phase, len(group)), {}).setdefault(group, []).append(kind)
    families: dict[tuple[Members, ...], list[Family]] = {}
    for by_group in kinds.values():
        groups = tuple(sorted(by_group))
        if len(groups) > 1:
            sums = np.array([_summed([transfers[kind] for kind in by_group[group]], steps) for group in groups])
            doubts = [
                sum(max(apart.get(kind, 0.0) - clock_error_ns, 0.0) for kind in by_group[group]) for group in groups
            ]
            families.setdefault(groups, []).append(Family(sums, np.array(doubts)))
    judged = [_judge(groups, families[groups]) for groups in sorted(families)]
    return [one for one in judged if one is not None]


def _summed(kinds: list[dict[int, float]], steps: list[int]) -> list[float]:
    """By step, the transfers of all kinds; NaN where one of them has none."""
    return [sum(by_step.get(step, math.nan) for by_step in kinds) for step in steps]


def _apart(waits: Iterable[RankWait], transfers: dict[Kind, dict[int, float]]) -> dict[Kind, float]:
    """By kind, how far the end of a rank lies from where the shortest duration puts it, in a usual step; the rank with most."""
    found: dict[Kind, float] = {}
    for row in waits:
        if row.disagreement_ns is not None and transfers.get(row.kind):
            calls_in_step = row.judged / len(transfers[row.kind])
            found[row.kind] = max(found.get(row.kind, 0.0), row.disagreement_ns * calls_in_step)
    return found


def _judge(groups: tuple[Members, ...], families: list[Family]) -> Siblings | None:
    """None where no two of the groups have a step in common."""
    families = [family for family in families if not np.isnan(_deviations(family.transfers)).all()]
    if not families:
        return None
    transfers = np.sum([family.transfers for family in families], axis=0)
    deviations = _deviations(transfers)
    if np.isnan(deviations).all():
        return None
    looks = [screen(deviations[None], window, USUAL_DIFFERENCE) for window in windows(deviations.shape[1])]
    slow, likely = np.zeros(len(groups), dtype=np.bool_), np.zeros(len(groups), dtype=np.bool_)
    location = np.nan_to_num(looks[0].location[0])
    for look in looks:
        large = np.nan_to_num(look.location) >= SMALLEST
        chance = np.where(large, look.chance(large), 1.0)[0]
        slow |= chance * max(look.tests, 1) / look.window.share <= FALSE_ALARMS
        likely |= chance <= LIKELY
        location = np.maximum(location, np.nan_to_num(look.location[0]))
    inflation = looks[0].noise.inflation
    everywhere = np.zeros(len(groups), dtype=np.bool_)
    for place in np.flatnonzero(slow | likely).tolist():
        steps = span_of_effect(deviations[place], SMALLEST / 2, inflation).steps
        everywhere[place] = _slow_everywhere(families, place, steps, _median(deviations[place, steps]))
    return Siblings(groups, transfers, deviations, location, slow & everywhere, likely & everywhere, inflation)


def _slow_everywhere(families: list[Family], place: int, steps: slice, usual: float) -> bool:
    """Whether most of a group's transfer time lies in collectives that are slow, by more than their ranks' ends are apart.

    usual: how slow the group is as a whole, as a logarithm.
    """
    slow, total = 0.0, 0.0
    for family in families:
        time = _median(family.transfers[place, steps])
        location = _median(_deviations(family.transfers)[place, steps])
        excess = time * (1 - math.exp(-location))
        total += time
        if location >= SLOW_ALIKE * max(usual, SMALLEST) and excess > family.doubts_ns[place]:
            slow += time
    return slow >= SLOW_SHARE * total


def _deviations(transfers: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(np.maximum(transfers, 1) / np.maximum(medians_of_others(transfers, axis=0), 1)))


def _median(values: Floats) -> float:
    """Of the values that are there; 0 without any."""
    return float(np.nan_to_num(medians(values)[0])) if len(values) else 0.0
