"""Collectives whose transfer is slow in every group that passes through one rank, or one host (`slow_link`).

The transfer of a collective is the shortest duration among its ranks: that of the rank that came last, and needs no clock.
Groups side by side (the tensor-parallel group of each replica, say) move as much data in the same step, so the slow ones
stand out; what they have in common is the link. One group alone cannot tell its link from the network. A link is slow for
whatever passes through it: a group counts only where nearly all its collectives are slow, and by more than the ends of their
ranks are apart, since a kernel that ends at different times on two ranks holds more than the transfer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from annotq.collector.causes.sibling_groups import Members, Siblings, side_by_side
from annotq.collector.findings import MINIMAL_EFFECT, Finding
from annotq.collector.onset import span_of_effect
from annotq.collector.receipt import Receipt
from annotq.collector.statistics import Floats, median_interval
from annotq.collector.waits import Kind, RankWait

# Groups side by side from which the slow one can be told from a fast other.
FEWEST_GROUPS = 3
SMALLEST = math.log(MINIMAL_EFFECT)
MOST_FINDINGS = 8

# A group: which of the families it belongs to, and its place there.
Place = tuple[int, int]


def slow_links(transfers: dict[Kind, dict[int, float]], waits: Iterable[RankWait], facts: Receipt) -> list[Finding]:
    """Findings, the costliest link first. transfers: CollectiveSteps.transfers(). waits: who takes part in the groups, and
    how far their ranks' ends are apart."""
    steps = sorted({step for by_step in transfers.values() for step in by_step})
    judged = side_by_side(transfers, waits, steps, facts.clock_error_ns or 0)
    return _findings(judged, np.array(steps), facts)


def _findings(judged: list[Siblings], steps: NDArray[np.int64], facts: Receipt) -> list[Finding]:
    left = {(family, place) for family, one in enumerate(judged) for place in np.flatnonzero(one.slow).tolist()}
    found: list[Finding] = []
    # Every turn takes at least one group away.
    for _ in range(len(left)):
        if not left or len(found) >= MOST_FINDINGS:
            break
        ranks, host, through = _common(left, judged, facts)
        here = through or {min(left, key=lambda entry: (-judged[entry[0]].location[entry[1]], entry))}
        left -= here
        few = all(len(judged[family].groups) < FEWEST_GROUPS for family, _ in here)
        if not ranks:
            # Nothing passes only through slow groups: the group itself is all that can be said.
            ((family, place),) = here
            ranks = judged[family].groups[place]
            host = _one_host(ranks, facts)
        elif len({family for family, _ in here}) > 1:
            few = False
        finding = (
            None if few else _finding(ranks, host, [(judged[family], place) for family, place in sorted(here)], steps)
        )
        if finding:
            found.append(finding)
    return sorted(found, key=lambda finding: -finding.cost_ns_per_step)


def _common(left: set[Place], judged: list[Siblings], facts: Receipt) -> tuple[Members, str | None, set[Place]]:
    """The rank, or the host, all of whose groups are slow, and that explains most of the slow groups; ranks that cannot
    be told apart together. Its ranks, its host, and its groups."""
    through: dict[int, set[Place]] = {}
    nearly = set(left)
    for family, one in enumerate(judged):
        for place, group in enumerate(one.groups):
            if one.likely[place]:
                nearly.add((family, place))
            for rank in group:
                through.setdefault(rank, set()).add((family, place))
    candidates: list[tuple[int, int, Members, str | None, set[Place]]] = []
    for rank, groups in sorted(through.items()):
        if groups <= nearly and groups & left:
            alike = tuple(other for other in sorted(through) if through[other] == groups)
            if alike[0] == rank:
                candidates.append((len(groups & left), 1, alike, _one_host(alike, facts), groups))
    hosts: dict[str, set[Place]] = {}
    for rank, groups in sorted(through.items()):
        if (host := facts.hosts.get(rank)) is not None:
            hosts.setdefault(host, set()).update(groups)
    for host, groups in hosts.items():
        ranks = tuple(sorted(rank for rank in through if facts.hosts.get(rank) == host))
        if len(hosts) > 1 and len(ranks) > 1 and groups <= nearly and groups & left:
            candidates.append((len(groups & left), 0, ranks, host, groups))
    if not candidates:
        return (), None, set()
    # A rank rather than its host when both explain as much; of equals the one with the lowest number.
    _, _, ranks, where, groups = max(candidates, key=lambda entry: (entry[0], entry[1], -len(entry[2])))
    return ranks, where, groups


def _one_host(ranks: Members, facts: Receipt) -> str | None:
    """The host of a single rank, or of ranks that are all that a host has."""
    hosts = {facts.hosts.get(rank) for rank in ranks}
    host = hosts.pop() if len(hosts) == 1 else None
    alone = len(ranks) == 1 or sorted(ranks) == sorted(rank for rank, where in facts.hosts.items() if where == host)
    return host if alone else None


def _finding(
    ranks: Members, host: str | None, groups: list[tuple[Siblings, int]], steps: NDArray[np.int64]
) -> Finding | None:
    """None where what is left is less than a finding has to show."""
    # A step pays for each of the rank's groups, but groups side by side run at the same time.
    worst: dict[tuple[Members, ...], tuple[Siblings, int]] = {}
    for one, place in groups:
        if one.groups not in worst or one.location[place] > one.location[worst[one.groups][1]]:
            worst[one.groups] = (one, place)
    excess = sum(one.transfer_ns[place] * (1 - np.exp(-one.deviations[place])) for one, place in worst.values())
    series, inflation = _heaviest(list(worst.values()))
    span = span_of_effect(series, SMALLEST / 2, inflation)
    held = series[span.steps][~np.isnan(series[span.steps])]
    costs = np.asarray(excess)[span.steps]
    costs = costs[~np.isnan(costs)]
    if not len(held) or not len(costs) or float(np.median(held)) < SMALLEST or float(np.median(costs)) <= 0:
        return None
    interval = median_interval(held, inflation)
    return Finding(
        cause="slow_link",
        rank=ranks[0] if len(ranks) == 1 else None,
        ranks=ranks,
        host=host,
        effect=math.exp(float(np.median(held))),
        effect_low=math.exp(interval[0]) if interval else None,
        effect_high=math.exp(interval[1]) if interval else None,
        cost_ns_per_step=float(np.median(costs)),
        steps=len(held),
        since_step=int(steps[span.first]) if span.first else None,
        until_step=int(steps[span.end - 1]) if span.end < len(steps) else None,
        detail=f"{len(groups)} groups" if len(groups) > 1 else "1 group",
    )


def _heaviest(groups: list[tuple[Siblings, int]]) -> tuple[Floats, float]:
    """The deviations of the group that moves most, and the inflation of its noise."""
    one, place = max(groups, key=lambda entry: float(np.nanmedian(entry[0].transfer_ns[entry[1]])))
    return one.deviations[place], one.inflation
