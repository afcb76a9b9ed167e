"""The statistics of the verdict against values that can be worked out by hand or by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from annotq.collector.statistics import benjamini_hochberg, binomial_tail, median_interval


def test_the_binomial_tail_counts_coin_tosses() -> None:
    assert binomial_tail(3, 3, 0.5) == pytest.approx(1 / 8)
    assert binomial_tail(2, 3, 0.5) == pytest.approx(4 / 8)
    assert binomial_tail(0, 12, 0.25) == pytest.approx(1)
    assert binomial_tail(12, 12, 0.25) == pytest.approx(0.25**12)


def test_five_steps_are_too_few_for_an_interval_and_six_are_enough() -> None:
    # The widest interval, minimum to maximum, misses the median with probability 2 * 0.5**n: 6.3 % at 5, 3.1 % at 6.
    assert median_interval(np.arange(5.0)) is None
    assert median_interval(np.arange(6.0)) == (0.0, 5.0)


def test_twelve_steps_leave_out_two_values_on_each_side() -> None:
    # P(Binomial(12, 1/2) <= 2) = 79 / 4096 = 1.9 %, with 3 it is 7.3 %: the 3rd smallest and 3rd largest are the bounds.
    assert median_interval(np.arange(12.0)) == (2.0, 9.0)


def test_the_interval_covers_the_median_at_least_as_often_as_it_says() -> None:
    generator = np.random.default_rng(7)
    for steps in (6, 12, 40):
        samples = generator.lognormal(sigma=0.5, size=(4000, steps))  # its median is 1
        intervals = [median_interval(sample) for sample in samples]
        covered = np.mean([low <= 1 <= high for low, high in filter(None, intervals)])
        assert 0.94 <= covered <= 0.995, (steps, covered)


def test_benjamini_hochberg_on_a_worked_example() -> None:
    # Sorted p: .01 .02 .03 .50, times 4 / rank: .04 .04 .04 .50; adjusted values never fall with growing p.
    adjusted = benjamini_hochberg(np.array([0.03, 0.5, 0.01, 0.02]))
    assert adjusted == pytest.approx([0.04, 0.5, 0.04, 0.04])
