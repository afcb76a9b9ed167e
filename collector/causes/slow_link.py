"""Collectives whose transfer is slow in every group that passes through one rank, or one host (`slow_link`).

The transfer of a collective is the shortest duration among its ranks: that of the rank that came last, and needs no clock.
Groups side by side (the tensor-parallel group of each replica, say) move as much data in the same step, so the slow ones
stand out; what they have in common is the link. One group alone cannot tell its link from the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from annotq.collector.findings import MINIMAL_EFFECT, Finding
from annotq.collector.onset import span_of_effect
from annotq.collector.receipt import Receipt
from annotq.collector.screen import screen, windows
from annotq.collector.statistics import Floats, median_interval, medians_of_others
from annotq.collector.waits import Kind

FALSE_ALARMS = 0.001
LIKELY = 0.05
# What healthy links differ by for good.
USUAL_DIFFERENCE = 0.01
# Groups side by side from which the slow one can be told from a fast other.
FEWEST_GROUPS = 3
SMALLEST = math.log(MINIMAL_EFFECT)
MOST_FINDINGS = 8

Members = tuple[int, ...]


@dataclass(frozen=True)
class Siblings:
    """Groups that do the same in the same step. transfer_ns: of all their collectives, shape (groups, steps).

    location: how much longer a group's transfers last than the others', as a logarithm. slow: beyond chance, whatever else
    is slow. likely: slow with a chance of one in twenty, enough where another group of the same rank is slow.
    """

    groups: tuple[Members, ...]
    transfer_ns: Floats
    deviations: Floats
    location: Floats
    slow: NDArray[np.bool_]
    likely: NDArray[np.bool_]
    inflation: float


def slow_links(
    transfers: dict[Kind, dict[int, float]], members: dict[tuple[object, ...], Members], facts: Receipt
) -> list[Finding]:
    """Findings, the costliest link first. transfers: CollectiveSteps.transfers(). members: by (group_name, group_ranks,
    group_first_rank), the ranks of the group."""
    if len(set(members.values())) < 2:
        return []
    steps = sorted({step for by_step in transfers.values() for step in by_step})
    families: dict[tuple[object, ...], dict[Members, dict[int, float]]] = {}
    for (name, region, phase, *key), by_step in transfers.items():
        group = members.get(tuple(key))
        if group is not None:
            families.setdefault((name, region, phase, len(group)), {}).setdefault(group, {}).update(by_step)
    judged = [_judge(groups, transfers) for groups, transfers in _side_by_side(families, steps)]
    return _findings([one for one in judged if one.slow.any()], judged, np.array(steps), facts)


def _side_by_side(
    families: dict[tuple[object, ...], dict[Members, dict[int, float]]], steps: list[int]
) -> list[tuple[tuple[Members, ...], Floats]]:
    """Families of the same groups added up: (groups, transfers of shape (groups, steps))."""
    sums: dict[tuple[Members, ...], Floats] = {}
    for family in families.values():
        groups = tuple(sorted(family))
        if len(groups) < 2:
            continue
        transfers = np.array([[family[group].get(step, math.nan) for step in steps] for group in groups])
        sums[groups] = sums[groups] + transfers if groups in sums else transfers
    return list(sums.items())


def _judge(groups: tuple[Members, ...], transfers: Floats) -> Siblings:
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = np.log(np.maximum(transfers, 1) / np.maximum(medians_of_others(transfers, axis=0), 1))
    looks = [screen(deviations[None], window, USUAL_DIFFERENCE) for window in windows(deviations.shape[1])]
    slow, likely = np.zeros(len(groups), dtype=np.bool_), np.zeros(len(groups), dtype=np.bool_)
    location = np.nan_to_num(looks[0].location[0])
    for look in looks:
        large = np.nan_to_num(look.location) >= SMALLEST
        chance = look.chance(large)[0]
        slow |= chance * look.tests / look.window.share <= FALSE_ALARMS
        likely |= chance <= LIKELY
        location = np.maximum(location, np.nan_to_num(look.location[0]))
    return Siblings(groups, transfers, deviations, location, slow, likely, looks[0].noise.inflation)


def _findings(slow: list[Siblings], judged: list[Siblings], steps: NDArray[np.int64], facts: Receipt) -> list[Finding]:
    left = {(id(one), place) for one in slow for place in np.flatnonzero(one.slow).tolist()}
    by_id = {id(one): one for one in judged}
    found: list[Finding] = []
    while left and len(found) < MOST_FINDINGS:
        ranks, host, through = _common(left, judged, facts)
        here = through or {next(iter(left))}
        left -= here
        if not ranks:
            # Nothing passes only through slow groups: the group itself is all that can be said.
            (where, place) = next(iter(here))
            if len(by_id[where].groups) < FEWEST_GROUPS:
                continue
            ranks = by_id[where].groups[place]
            host = _one_host(ranks, facts)
        elif len({where for where, _ in here}) < 2 and all(
            len(by_id[where].groups) < FEWEST_GROUPS for where, _ in here
        ):
            continue
        found.append(_finding(ranks, host, [(by_id[where], place) for where, place in here], steps))
    return sorted(found, key=lambda finding: -finding.cost_ns_per_step)


def _common(
    left: set[tuple[int, int]], judged: list[Siblings], facts: Receipt
) -> tuple[Members, str | None, set[tuple[int, int]]]:
    """The rank, or the host, all of whose groups are slow, and that explains most of the slow groups; ranks that cannot
    be told apart together. Its ranks, its host, and its groups."""
    through: dict[int, set[tuple[int, int]]] = {}
    nearly = set(left)
    for one in judged:
        for place, group in enumerate(one.groups):
            if one.likely[place]:
                nearly.add((id(one), place))
            for rank in group:
                through.setdefault(rank, set()).add((id(one), place))
    candidates: list[tuple[int, int, Members, str | None, set[tuple[int, int]]]] = []
    for rank, groups in through.items():
        if groups <= nearly and groups & left:
            alike = tuple(other for other in sorted(through) if through[other] == groups)
            if alike[0] == rank:
                candidates.append((len(groups & left), 1, alike, _one_host(alike, facts), groups))
    hosts: dict[str, set[tuple[int, int]]] = {}
    for rank, groups in through.items():
        if (host := facts.hosts.get(rank)) is not None:
            hosts.setdefault(host, set()).update(groups)
    for host, groups in hosts.items():
        ranks = tuple(sorted(rank for rank in through if facts.hosts.get(rank) == host))
        if len(hosts) > 1 and len(ranks) > 1 and groups <= nearly and groups & left:
            candidates.append((len(groups & left), 0, ranks, host, groups))
    if not candidates:
        return (), None, set()
    # A rank rather than its host when both explain as much.
    _, _, ranks, where, groups = max(candidates, key=lambda entry: (entry[0], entry[1], -len(entry[2])))
    return ranks, where, groups


def _one_host(ranks: Members, facts: Receipt) -> str | None:
    """The host of a single rank, or of ranks that are all that a host has."""
    hosts = {facts.hosts.get(rank) for rank in ranks}
    host = hosts.pop() if len(hosts) == 1 else None
    alone = len(ranks) == 1 or sorted(ranks) == sorted(rank for rank, where in facts.hosts.items() if where == host)
    return host if alone else None


def _finding(ranks: Members, host: str | None, groups: list[tuple[Siblings, int]], steps: NDArray[np.int64]) -> Finding:
    # A step pays for each of the rank's groups, but groups side by side run at the same time.
    worst: dict[int, tuple[Siblings, int]] = {}
    for one, place in groups:
        if id(one) not in worst or one.location[place] > one.location[worst[id(one)][1]]:
            worst[id(one)] = (one, place)
    excess = sum(one.transfer_ns[place] * (1 - np.exp(-one.deviations[place])) for one, place in worst.values())
    series, inflation = _heaviest(list(worst.values()))
    span = span_of_effect(series, SMALLEST / 2, inflation)
    held = series[span.steps][~np.isnan(series[span.steps])]
    interval = median_interval(held, inflation)
    return Finding(
        cause="slow_link",
        rank=ranks[0] if len(ranks) == 1 else None,
        ranks=ranks,
        host=host,
        effect=math.exp(float(np.median(held))),
        effect_low=math.exp(interval[0]) if interval else None,
        effect_high=math.exp(interval[1]) if interval else None,
        cost_ns_per_step=float(np.nanmedian(np.asarray(excess)[span.steps])),
        steps=len(held),
        since_step=int(steps[span.first]) if span.first else None,
        until_step=int(steps[span.end - 1]) if span.end < len(steps) else None,
        detail=f"{len(groups)} groups" if len(groups) > 1 else "1 group",
    )


def _heaviest(groups: list[tuple[Siblings, int]]) -> tuple[Floats, float]:
    """The deviations of the group that moves most, and the inflation of its noise."""
    one, place = max(groups, key=lambda entry: float(np.nanmedian(entry[0].transfer_ns[entry[1]])))
    return one.deviations[place], one.inflation
