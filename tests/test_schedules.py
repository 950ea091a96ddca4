"""Schedules: what all have in common; their formulas stand in training/test_optimizers."""

import doctest

import jax
import numpy as np
import pytest

from tfm import schedules


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.988e-4), (1024, 4.941e-4)])
def test_inverse_sqrt_peaks_as_in_the_paper(d_model, peak):
    schedule = schedules.inverse_sqrt(d_model, 4000)
    rates = np.array([schedule(count) for count in (0, 3998, 3999, 4000, 15_999)])
    assert rates.argmax() == 2
    np.testing.assert_allclose(rates[2], peak, rtol=1e-3)
    np.testing.assert_allclose(rates[0], peak / 4000, rtol=1e-3)
    np.testing.assert_allclose(rates[4], peak / 2, rtol=1e-3)


ALL = {
    "inverse_sqrt": lambda warmup: schedules.inverse_sqrt(16, warmup),
    "linear_decay": lambda warmup: schedules.linear_decay(0.5, warmup, 100),
    "cosine_decay": lambda warmup: schedules.cosine_decay(0.5, warmup, 100),
    "constant": lambda warmup: schedules.constant(0.5, warmup),
}
PEAKS = {"inverse_sqrt": (16 * 10) ** -0.5}


@pytest.mark.parametrize("name", ALL)
def test_schedules_rise_linearly_to_their_peak(name):
    rates = np.array([float(ALL[name](10)(count)) for count in range(100)])
    peak = PEAKS.get(name, 0.5)
    np.testing.assert_allclose(rates[:10], peak * np.arange(1, 11) / 10, rtol=1e-5)
    assert rates.max() == pytest.approx(peak)
    assert (np.diff(rates[9:]) <= 0).all()


@pytest.mark.parametrize("name", ["linear_decay", "cosine_decay"])
def test_a_decay_ends_at_zero_and_stays_there(name):
    schedule = ALL[name](10)
    assert [float(schedule(count)) for count in (100, 101, 10**6)] == [0, 0, 0]
    assert schedule(99) > 0


def test_cosine_is_half_way_down_in_the_middle():
    schedule = schedules.cosine_decay(1.0, 11, 110)  # falls over 100 steps behind step 11
    np.testing.assert_allclose([schedule(10 + 25), schedule(10 + 50)], [(1 + 0.5**0.5) / 2, 0.5], rtol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_schedules_trace_an_integer_count(name):
    schedule = ALL[name](10)
    np.testing.assert_allclose(jax.jit(schedule)(np.int32(6)), schedule(6), rtol=1e-6)
    assert jax.eval_shape(schedule, np.int32(6)).dtype == "float32"


@pytest.mark.parametrize("name", ALL)
def test_a_warm_up_of_no_step_is_refused(name):
    with pytest.raises(ValueError, match="warmup_steps must be at least 1"):
        ALL[name](0)
    if name in ("linear_decay", "cosine_decay"):
        with pytest.raises(ValueError, match="and below 100, got 100"):
            ALL[name](100)


def test_the_examples_of_the_docstrings_run():
    found = doctest.testmod(schedules)
    assert (found.failed, found.attempted) == (0, len(ALL))
