"""How the noise of a job is distributed, tails included: no distribution is assumed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from annotq.collector.statistics import HUBER_LIMIT, Floats

# No sample is so small that a deviation of this many scales would be unheard of.
LARGEST_EXPECTED = 4.0

_LEVELS = np.concatenate([np.arange(0, 4, 0.1), np.arange(4, 15.1, 0.5)])
_TILTS = np.geomspace(0.03, 6, 28)
_EXTREMES, _QUANTILES = 32, 128


@dataclass(frozen=True)
class Shape:
    """How the noise is distributed. sample: sorted residuals in units of their scale, not empty. independent: how many of
    them are independent."""

    sample: Floats
    independent: int

    def exceeding(self, level: Floats) -> Floats:
        """Share of the noise at or above a level.

        Beyond all that was seen it falls from one in the independent values plus one as the tails of Student's t with two
        degrees of freedom do, by the square of the level; the heaviest that times of kernels have shown.
        """
        above = len(self.sample) - np.searchsorted(self.sample, np.nan_to_num(level, nan=-np.inf))
        largest = max(float(self.sample[-1]), LARGEST_EXPECTED)
        unseen = np.minimum(1.0, largest / np.maximum(np.nan_to_num(level), largest)) ** 2 / (self.independent + 1)
        share: Floats = np.maximum(above / len(self.sample), unseen)
        return share

    def reaching(self, level: Floats, steps: Floats) -> Floats:
        """Chance that Huber's estimate over so many steps reaches a level: exp(-steps rate), sharpened by the factor
        1 / (l s sqrt(2 pi steps)) of Bahadur & Ranga Rao (1960)."""
        rates, tilts = self._table
        rate, tilt = np.interp(level, _LEVELS, rates), np.interp(level, _LEVELS, tilts)
        sharpened: Floats = np.exp(-steps * rate) / np.maximum(1.0, tilt * np.sqrt(2 * np.pi * steps))
        return np.where(level > 0, sharpened, 1.0)

    @cached_property
    def _table(self) -> tuple[Floats, Floats]:
        """By level, how fast the chance that Huber's estimate reaches it falls with each step (Chernoff), and l s.

        The estimate exceeds t exactly when the sum of psi(noise - t) is positive, so the chance is at most
        E[exp(l psi)] ** steps for every l > 0. One value that nobody has seen yet is allowed for above all others.
        """
        values, mass = _condensed(self.sample, self.independent)
        psi = np.clip(values[None, :] - _LEVELS[:, None], -HUBER_LIMIT, HUBER_LIMIT)
        tilted = np.exp(_TILTS[:, None, None] * psi) * mass
        total = tilted.sum(axis=-1)
        best = np.argmin(total, axis=0)
        at = np.arange(len(_LEVELS))
        rate = np.maximum(0.0, -np.log(total[best, at]))
        spread = np.sqrt((tilted[best, at] * psi**2).sum(axis=-1) / total[best, at])
        return np.maximum.accumulate(rate), _TILTS[best] * spread


def _condensed(sample: Floats, independent: int) -> tuple[Floats, Floats]:
    """The sample by a few hundred values and their mass: the extremes as they are, the rest by quantiles."""
    unseen = 1 / (independent + 1)
    if len(sample) > 2 * _EXTREMES + _QUANTILES:
        middle = sample[_EXTREMES:-_EXTREMES]
        places = ((np.arange(_QUANTILES) + 0.5) * len(middle) / _QUANTILES).astype(np.int64)
        values = np.concatenate([sample[:_EXTREMES], middle[places], sample[-_EXTREMES:]])
        mass = np.concatenate([np.ones(_EXTREMES), np.full(_QUANTILES, len(middle) / _QUANTILES), np.ones(_EXTREMES)])
    else:
        values, mass = sample, np.ones(len(sample))
    values = np.append(values, np.inf)
    return values, np.append(mass / mass.sum() * (1 - unseen), unseen)
