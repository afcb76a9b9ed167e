"""Clocks of hosts from the ends of collectives: all ranks of a synchronizing collective leave it together.

For host h and collective i, end[i, h] + offset[h] + drift[h] * t = T[i] + jitter, with one unknown moment T[i] per
collective: weighted least squares over the graph of hosts (the T[i] are eliminated), weights after Huber against ends that
were held up. The ranks of a host share its clock, so a host has one end per collective, the median of its ranks. The
pairing of the collectives rests on steps, sequence numbers and node order and needs no clock, so hosts may be minutes apart.

The error bounds what this cannot see. Ends that differ by the same amount in every collective look like an offset, so the
typical jitter itself is part of it; so are the standard error of the line at the edges of the host's windows, and how far
families of collectives, or parts of the window, disagree. The clock is refused where the ends scatter too much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# Of NCCL over a network the ranks leave within some ten microseconds. Steps that were paired wrongly scatter like steps.
LARGEST_JITTER_NS = 200_000
FEWEST_COLLECTIVES = 8
# A hundred times what crystals are specified to; only holds the drift back where all collectives lie close together.
USUAL_DRIFT = 1e-4
ROUNDS = 15
UNWEIGHTED_ROUNDS = 3  # the first residuals are mostly drift
HUBER = 1.345
# From a median absolute deviation to a standard deviation.
NORMAL_MAD = 1.4826
TIME_PARTS = 4
HOSTS_NAMED = 4
STANDARD_ERRORS = 3


@dataclass(frozen=True)
class Ends:
    """When hosts left collectives, one row per (collective, host), each host on its own clock.

    collective, family, host: numbers from 0. end_ns since the epoch. step: rows of one step share their luck.
    """

    collective: Integers
    family: Integers
    step: Integers
    host: Integers
    end_ns: Integers


@dataclass(frozen=True)
class HostClock:
    """aligned = t + offset_ns + (t - reference_ns) * drift_ppb / 1e9, wrong by less than error_ns against the other hosts."""

    offset_ns: int
    drift_ppb: int
    reference_ns: int
    error_ns: int


@dataclass(frozen=True)
class CollectiveClocks:
    """By host number the clocks of those that could be aligned, and why the others could not ("" where all could)."""

    clocks: dict[int, HostClock]
    objection: str


def fit_clocks(ends: Ends, windows: dict[int, tuple[int, int]], names: dict[int, str]) -> CollectiveClocks:
    """Clocks of the hosts in `names`, relative to the first of those that share collectives.

    windows: by host, first and last moment of its traces on its own clock, at which the error is to hold as well.
    """
    counts = {host: int((ends.host == host).sum()) for host in names}
    few = [host for host, count in counts.items() if count < FEWEST_COLLECTIVES]
    ends = _kept(ends, ~np.isin(ends.host, few))
    joined = _connected(ends)
    apart = [host for host in names if host not in few and host not in joined]
    ends = _kept(ends, np.isin(ends.host, sorted(joined)))
    objections = [
        _sentence(few, names, f"fewer than {FEWEST_COLLECTIVES} synchronizing collectives with other hosts"),
        _sentence(apart, names, "no collective shared with the others"),
    ]
    clocks: dict[int, HostClock] = {}
    if len(joined) > 1:
        fit = _Fit(ends, windows)
        scattered = [host for host in fit.hosts if fit.jitter_ns[host] > LARGEST_JITTER_NS]
        if scattered:
            worst = max(fit.jitter_ns[host] for host in scattered) / 1e3
            objections.append(_sentence(scattered, names, f"the ends of its collectives scatter by {worst:,.0f} us"))
        good = [host for host in fit.hosts if host not in scattered]
        if len(good) > 1:
            clocks = fit.clocks(good)
    return CollectiveClocks(clocks, " ".join(filter(None, objections)))


def _sentence(hosts: list[int], names: dict[int, str], what: str) -> str:
    if not hosts:
        return ""
    shown = ", ".join(names[host] for host in hosts[:HOSTS_NAMED])
    if len(hosts) > HOSTS_NAMED:
        shown += f" and {len(hosts) - HOSTS_NAMED} more"
    return f"Not on the common clock: {shown} ({what})."


def _kept(ends: Ends, rows: NDArray[np.bool_]) -> Ends:
    """Those rows, less collectives of which only one host is left."""
    _, place, sizes = np.unique(ends.collective[rows], return_inverse=True, return_counts=True)
    several = sizes[place] > 1
    return Ends(*(getattr(ends, name)[rows][several] for name in ("collective", "family", "step", "host", "end_ns")))


def _connected(ends: Ends) -> set[int]:
    """The largest set of hosts that are linked through collectives, the one with the lowest host of equal ones."""
    leader = {host: host for host in np.unique(ends.host).tolist()}

    def lead(host: int) -> int:
        while leader[host] != host:
            leader[host] = leader[leader[host]]
            host = leader[host]
        return host

    order = np.lexsort((ends.host, ends.collective))
    host, collective = ends.host[order], ends.collective[order]
    same = collective[1:] == collective[:-1]
    for one, other in np.unique(np.stack([host[:-1][same], host[1:][same]], axis=1), axis=0).tolist():
        first, second = sorted((lead(one), lead(other)))
        leader[second] = first
    sets: dict[int, set[int]] = {}
    for one in leader:
        sets.setdefault(lead(one), set()).add(one)
    return max(sets.values(), key=lambda members: (len(members), -min(members)), default=set())


class _Fit:
    """The least squares of one connected set of hosts."""

    def __init__(self, ends: Ends, windows: dict[int, tuple[int, int]]) -> None:
        self.hosts = np.unique(ends.host).tolist()
        self._windows = windows
        self._ends = ends
        self._host = np.searchsorted(self.hosts, ends.host)
        _, self._collective = np.unique(ends.collective, return_inverse=True)
        # Per host, times count from the middle of its collectives: float64 then holds them to less than a nanosecond.
        low, high = (
            np.array([edge(ends.end_ns[ends.host == host]) for host in self.hosts]) for edge in (np.min, np.max)
        )
        self._reference = low + (high - low) // 2
        self._since = (ends.end_ns - self._reference[self._host]).astype(np.float64)
        # Whole nanoseconds first: what is left for floating point then fits into it, however far apart the hosts are.
        self._guess = self._first_guess()
        self._shown = (ends.end_ns + self._guess[self._host] - self._reference[0]).astype(np.float64)
        self._weights = np.ones(len(self._since))
        self._solve()
        sizes = np.bincount(self._collective)[self._collective]
        # Each collective's own moment was fitted too: with k hosts the residuals are too small by sqrt(1 - 1/k).
        self._residuals *= np.sqrt(sizes / (sizes - 1))
        self.jitter_ns = {host: _jitter(self._residuals[self._host == place]) for place, host in enumerate(self.hosts)}

    def _solve(self) -> None:
        self._parameters = np.zeros(2 * len(self.hosts))
        self._residuals = self._residuals_of(self._parameters)
        for number in range(ROUNDS):
            scale = max(_spread(self._residuals), 1.0)
            if number >= UNWEIGHTED_ROUNDS:
                self._weights = np.minimum(1.0, HUBER * scale / np.maximum(np.abs(self._residuals), 1e-9))
                self._residuals = self._residuals_of(self._parameters)  # the moments move with the weights
            step = self._step(scale)
            self._parameters += step
            self._residuals = self._residuals_of(self._parameters)
            moved = (
                np.abs(step[: len(self.hosts)]).max()
                + np.abs(step[len(self.hosts) :]).max() * np.abs(self._since).max()
            )
            if number >= UNWEIGHTED_ROUNDS and moved < 0.5:
                break

    def _first_guess(self) -> Integers:
        """Offsets along a tree of hosts, from the medians of the differences in the collectives that two of them share."""
        order = np.argsort(self._collective, kind="stable")
        end, host = self._ends.end_ns[order], self._host[order]
        lead = np.concatenate([[0], np.flatnonzero(np.diff(self._collective[order])) + 1])
        lead = np.repeat(lead, np.bincount(self._collective))
        pair, difference = host[lead] * len(self.hosts) + host, end - end[lead]
        medians = {int(one): int(np.sort(difference[pair == one])[(pair == one).sum() // 2]) for one in np.unique(pair)}
        offsets: dict[int, int] = {0: 0}
        for _ in self.hosts:
            for both, median in medians.items():
                one, other = divmod(both, len(self.hosts))
                if one in offsets:
                    offsets.setdefault(other, offsets[one] - median)
                elif other in offsets:
                    offsets[one] = offsets[other] + median
        return np.array([offsets[place] for place in range(len(self.hosts))])

    def _residuals_of(self, parameters: Floats) -> Floats:
        """Aligned end less the moment of the collective, the weighted mean of its aligned ends."""
        offsets, drifts = np.split(parameters, 2)
        aligned = self._shown + offsets[self._host] + drifts[self._host] * self._since
        weight = np.bincount(self._collective, self._weights)
        moment = np.bincount(self._collective, self._weights * aligned) / weight
        residuals: Floats = aligned - moment[self._collective]
        return residuals

    def _step(self, scale: float) -> Floats:
        """One Gauss-Newton step for offsets and drifts; the first host stays as it is."""
        hosts, count = len(self.hosts), int(self._collective.max()) + 1
        seconds = self._since / 1e9
        design = np.zeros((count, 2 * hosts))
        np.add.at(design, (self._collective, self._host), self._weights)
        np.add.at(design, (self._collective, hosts + self._host), self._weights * seconds)
        total = np.bincount(self._collective, self._weights)
        matrix = -(design.T / total) @ design
        places = np.arange(hosts)
        for row, column, value in ((0, 0, np.ones_like(seconds)), (0, 1, seconds), (1, 0, seconds), (1, 1, seconds**2)):
            sums = np.bincount(self._host, self._weights * value, minlength=hosts)
            matrix[row * hosts + places, column * hosts + places] += sums
        right = -np.concatenate(
            [
                np.bincount(self._host, self._weights * value * self._residuals, minlength=hosts)
                for value in (1.0, seconds)
            ]
        )
        drifts = hosts + places
        held = (scale / (USUAL_DRIFT * 1e9)) ** 2
        matrix[drifts, drifts] += held
        right[drifts] -= held * self._parameters[drifts] * 1e9
        free = np.concatenate([places[1:], drifts[1:]])
        step = np.zeros(2 * hosts)
        step[free] = np.linalg.solve(matrix[np.ix_(free, free)], right[free])
        step[hosts:] /= 1e9
        return step

    def clocks(self, hosts: list[int]) -> dict[int, HostClock]:
        """The clocks of these hosts, on that of the first of them."""
        count = len(self.hosts)
        base = self.hosts.index(hosts[0])
        own = {host: self._own_error(self.hosts.index(host)) for host in hosts}
        worst = max(own.values())
        found = {}
        for host in hosts:
            place = self.hosts.index(host)
            # To the time of the job's first host, and from there to that of `base`, whose line is undone.
            drift, base_drift = 1 + self._parameters[count + place], 1 + self._parameters[count + base]
            moved = float(self._at(place) - self._at(base)) + self._parameters[place] - self._parameters[base]
            offset = int(self._reference[base]) - int(self._reference[place]) + round(moved / base_drift)
            error = round(own[host] + worst)
            found[host] = HostClock(offset, round((drift / base_drift - 1) * 1e9), int(self._reference[place]), error)
        return found

    def _at(self, place: int) -> int:
        """The host's reference on the first host's clock, by the first guess."""
        return int(self._reference[place]) + int(self._guess[place])

    def _own_error(self, place: int) -> float:
        """How far the host's aligned ends may be from those of the others, at any time in its windows; in ns."""
        mine = self._host == place
        residuals, since = self._residuals[mine], self._since[mine]
        jitter = self.jitter_ns[self.hosts[place]]
        begin, end = self._windows[self.hosts[place]]
        far = max(abs(begin - int(self._reference[place])), abs(end - int(self._reference[place])), 1)
        middle = float(since.mean())
        spread = float(((since - middle) ** 2).sum())
        # Collectives of one step are not independent of each other.
        steps = len(np.unique(self._ends.step[mine]))
        line = np.sqrt(1 / steps + (far + abs(middle)) ** 2 / max(spread * steps / len(since), 1.0))
        families = _medians(residuals, np.unique(self._ends.family[mine], return_inverse=True)[1])
        parts = _medians(residuals, np.argsort(np.argsort(since)) * TIME_PARTS // len(since))
        rounding = far * 0.5e-9 + 1
        return float(jitter + STANDARD_ERRORS * jitter * line + max(families, parts) + rounding)


def _spread(values: Floats) -> float:
    """Standard deviation of the middle of the values, in which outliers do not count."""
    return float(NORMAL_MAD * np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def _jitter(values: Floats) -> float:
    """The spread, with what few values may have hidden of it: with 10 of them 1 in 60 medians is too small by 40 %."""
    return _spread(values) * (1 + FEWEST_COLLECTIVES / len(values))


def _medians(values: Floats, group: NDArray[np.generic]) -> float:
    """The largest absolute median of a group with enough values to have one."""
    found = [abs(float(np.median(values[group == one]))) for one in np.unique(group) if (group == one).sum() >= 3]
    return max(found, default=0.0)
