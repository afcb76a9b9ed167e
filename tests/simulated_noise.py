"""How the times of a simulated job scatter when nothing is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Noise:
    """All of it multiplies the time of a pass through a region; 0 switches a part off.

    sigma: of the logarithm, drawn anew for every pass. tail: its shape, "normal" or "heavy" (Student t with 2 degrees of
    freedom, cut at 40). shared: the same for all regions of a rank in a step, an AR(1) series with `carry` from one step
    to the next. between: constant difference between ranks and, apart from that, between the regions of a rank.
    held_up: chance of a kernel to last 100 times as long. transfer: sigma of a collective's transfer.
    gap_ns: usual time between the end of a step and the start of the next graph, sigma 0.3.
    jitter_ns: mean by which a rank leaves a collective after the first (exponential).
    """

    sigma: float = 0.05
    tail: Literal["normal", "heavy"] = "normal"
    shared: float = 0.0
    carry: float = 0.0
    between: float = 0.01
    held_up: float = 0.0
    transfer: float = 0.05
    gap_ns: float = 20_000.0
    jitter_ns: float = 300.0


# What the false positives are counted over.
KINDS = {
    "log-normal": Noise(),
    "heavy tails": Noise(tail="heavy"),
    "held-up kernels": Noise(held_up=0.002),
    "autocorrelated": Noise(shared=0.04, carry=0.7),
    "all of them": Noise(tail="heavy", shared=0.03, carry=0.7, held_up=0.001),
}
SILENT = Noise(sigma=0, between=0, transfer=0, gap_ns=20_000, jitter_ns=0)

HELD_UP_RATIO = 100.0
GAP_SIGMA = 0.3


def exponents(noise: Noise, generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """What a pass adds to the logarithm of its time, any shape."""
    if noise.tail == "heavy":
        return noise.sigma * np.clip(generator.standard_t(2, size=shape), -40, 40)
    return noise.sigma * generator.normal(size=shape)


def shared_exponents(noise: Noise, generator: np.random.Generator, ranks: int, steps: int) -> NDArray[np.float64]:
    """What all regions of a rank have in common in a step; shape (ranks, steps)."""
    values = generator.normal(size=(ranks, steps))
    for step in range(1, steps):
        values[:, step] = noise.carry * values[:, step - 1] + np.sqrt(1 - noise.carry**2) * values[:, step]
    return noise.shared * values


def held_up(noise: Noise, generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """By kernel, by what its time is multiplied: 1 or, rarely, 100."""
    if noise.held_up == 0:
        return np.ones(shape)
    return np.where(generator.random(shape) < noise.held_up, HELD_UP_RATIO, 1.0)
