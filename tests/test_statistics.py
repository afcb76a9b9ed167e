"""The statistics of the verdict against values that can be worked out by hand or by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from annotq.collector.noise import learn_noise
from annotq.collector.onset import Span, span_of_effect
from annotq.collector.statistics import (
    Floats,
    benjamini_hochberg,
    binomial_tail,
    huber_locations,
    median_interval,
    medians,
    medians_of_others,
    quantiles,
    variance_inflation,
)


def autoregressive(generator: np.random.Generator, shape: tuple[int, int], carry: float) -> Floats:
    """Normal values of variance 1 whose neighbours along the last axis correlate by `carry`."""
    values = generator.normal(size=shape)
    for step in range(1, shape[1]):
        values[:, step] = carry * values[:, step - 1] + math.sqrt(1 - carry**2) * values[:, step]
    return values


def test_the_binomial_tail_counts_coin_tosses() -> None:
    assert binomial_tail(3, 3, 0.5) == pytest.approx(1 / 8)
    assert binomial_tail(2, 3, 0.5) == pytest.approx(4 / 8)
    assert binomial_tail(0, 12, 0.25) == pytest.approx(1)
    assert binomial_tail(12, 12, 0.25) == pytest.approx(0.25**12)


def test_quantiles_lie_between_the_values_that_are_there() -> None:
    # A tenth of the way from 0 to 10 is 1; without the NaN a quarter of the way from 4 to 8 is 5.
    values = np.array([[10.0, 0.0], [4.0, np.nan], [np.nan, np.nan]])
    assert quantiles(values, 0.1) == pytest.approx([1.0, 4.0, np.nan], nan_ok=True)
    assert quantiles(np.array([[8.0, np.nan, 4.0], [0.0, 1.0, 2.0]]), 0.25) == pytest.approx([5.0, 0.5])


def test_medians_leave_out_what_is_missing() -> None:
    values = np.array([[3.0, np.nan, 1.0, 2.0], [np.nan, 4.0, np.nan, 6.0], [np.nan] * 4])
    assert medians(values)[:, 0].tolist()[:2] == [2.0, 5.0]
    assert np.isnan(medians(values)[2, 0])


def test_the_median_of_the_others_is_that_of_the_list_without_the_value() -> None:
    generator = np.random.default_rng(1)
    for count in (2, 3, 4, 7, 8):
        values = generator.integers(0, 5, size=count).astype(float)  # with ties
        expected = [np.median(np.delete(values, place)) for place in range(count)]
        assert medians_of_others(np.append(values, np.nan))[:-1].tolist() == expected
    assert np.isnan(medians_of_others(np.array([1.0, np.nan]))).all()


def test_hubers_estimate_solves_its_equation_and_does_not_follow_an_outlier() -> None:
    values = np.array([[0.9, 1.0, 1.1, 1.2, 50.0]])
    (found,) = huber_locations(values, np.array([0.1]))
    assert np.clip(values - found, -0.15, 0.15).sum() == pytest.approx(0, abs=1e-6)
    assert 1.0 < found < 1.2


@pytest.mark.parametrize(("carry", "truth"), [(0.0, 1.0), (0.5, 3.0), (0.8, 9.0)])
def test_dependence_between_steps_is_measured(carry: float, truth: float) -> None:
    # The variance of a mean of AR(1) values is (1 + r) / (1 - r) times that of independent ones.
    values = autoregressive(np.random.default_rng(3), (64, 200), carry)
    found = variance_inflation(values - np.median(values, axis=1, keepdims=True))
    assert found == pytest.approx(truth, rel=0.15)


def test_skewed_noise_does_not_seem_to_last() -> None:
    # Independent values whose mean is not their median: each correlates with no other.
    values = np.random.default_rng(3).exponential(size=(8, 20))
    residuals = np.clip(values - np.median(values, axis=1, keepdims=True), -3, 3)
    assert variance_inflation(residuals) < 1.3


def test_a_rank_that_is_slow_for_some_steps_is_not_taken_for_noise() -> None:
    deviations = 0.02 * np.random.default_rng(4).normal(size=(6, 8, 20))
    alone = learn_noise(deviations)
    deviations[:, 3, 6:14] += 0.5
    with_it = learn_noise(deviations)
    assert with_it.inflation < 1.3
    assert with_it.scale == pytest.approx(alone.scale, rel=0.15)


def test_five_steps_are_too_few_for_an_interval_and_six_are_enough() -> None:
    # The widest interval, minimum to maximum, misses the median with probability 2 * 0.5**n: 6.3 % at 5, 3.1 % at 6.
    assert median_interval(np.arange(5.0)) is None
    low, high = median_interval(np.arange(6.0)) or (0.0, 0.0)
    assert (0.0 < low < 0.5, 4.5 < high < 5.0) == (True, True)


def test_twelve_steps_leave_out_more_than_two_values_on_each_side() -> None:
    # P(Binomial(12, 1/2) <= 2) = 79 / 4096 = 1.9 %, with 3 it is 7.3 %: the bounds lie between the 3rd and the 4th.
    low, high = median_interval(np.arange(12.0)) or (0.0, 0.0)
    assert 2 < low < 3 and 8 < high < 9


@pytest.mark.parametrize(
    ("carry", "steps", "least"), [(0, 6, 0.93), (0, 20, 0.93), (0.5, 12, 0.9), (0.5, 20, 0.92), (0.8, 50, 0.92)]
)
def test_the_interval_covers_the_median_as_often_as_it_says(carry: float, steps: int, least: float) -> None:
    # Of eight ranks at a time, from which the dependence between the steps is learnt together.
    generator = np.random.default_rng(7)
    covered = []
    for _ in range(60):
        values = autoregressive(generator, (8, steps), carry)  # its median is 0
        inflation = variance_inflation(values - np.median(values, axis=1, keepdims=True))
        intervals = [median_interval(series, inflation) for series in values]
        covered += [low <= 0 <= high for low, high in filter(None, intervals)]
    assert least <= np.mean(covered) <= 0.985, np.mean(covered)


def test_benjamini_hochberg_on_a_worked_example() -> None:
    # Sorted p: .01 .02 .03 .50, times 4 / rank: .04 .04 .04 .50; adjusted values never fall with growing p.
    adjusted = benjamini_hochberg(np.array([0.03, 0.5, 0.01, 0.02]))
    assert adjusted == pytest.approx([0.04, 0.5, 0.04, 0.04])


@pytest.mark.parametrize("heavy", [False, True])
def test_the_chance_of_a_location_is_that_among_healthy_ranks(heavy: bool) -> None:
    # 40,000 series of 8 steps: how often chance calls a location as unlikely as 1 in 1,000.
    generator = np.random.default_rng(5)
    shape = (1, 128, 8)
    unlikely = 0
    for _ in range(320):
        noise = 0.05 * (generator.standard_t(3, size=shape) if heavy else generator.normal(size=shape))
        known = learn_noise(noise, usual_difference=0.0)
        places = (np.zeros(128, dtype=np.intp), np.arange(128))
        scale = known.scale[places[0]]
        location = huber_locations(noise[0], scale)
        steps = np.full(128, 8)
        unlikely += int((known.chance(places[0], location, noise[0].min(axis=1), steps, scale) < 1e-3).sum())
    assert 5 <= unlikely <= 60


@pytest.mark.parametrize(("first", "end"), [(0, 20), (12, 20), (0, 7), (6, 14)])
def test_the_steps_in_which_an_effect_holds_are_found(first: int, end: int) -> None:
    series = 0.02 * np.random.default_rng(first).normal(size=20)
    series[first:end] += 0.2
    assert span_of_effect(series, 0.05) == Span(first, end)


def test_the_edges_of_an_effect_in_a_long_run_are_exact() -> None:
    series = 0.02 * np.random.default_rng(2).normal(size=3000)
    series[1234:1777] += 0.2
    assert span_of_effect(series, 0.05) == Span(1234, 1777)


def test_a_single_step_that_was_held_up_is_no_edge() -> None:
    series = 0.2 + 0.02 * np.random.default_rng(2).normal(size=20)
    for step in (0, 7, 19):
        held_up = series.copy()
        held_up[step] += 5.0
        assert span_of_effect(held_up, 0.05) == Span(0, 20)


def test_noise_has_no_onset() -> None:
    generator = np.random.default_rng(2)
    whole = [span_of_effect(0.2 + 0.05 * generator.normal(size=20), 0.05) == Span(0, 20) for _ in range(300)]
    assert np.mean(whole) == 1
