"""Tests of the common properties of schedules. training/test_optimizers.py covers their formulas."""

import doctest

import jax
import numpy as np
import pytest

from tfm import schedules

# {name: (function of the warm-up steps, peak after 10 warm-up steps)}
ALL = {
    "inverse_sqrt": (lambda warmup: schedules.inverse_sqrt(16, warmup), (16 * 10) ** -0.5),
    "linear_decay": (lambda warmup: schedules.linear_decay(0.5, warmup, 100), 0.5),
    "cosine_decay": (lambda warmup: schedules.cosine_decay(0.5, warmup, 100), 0.5),
    "constant": (lambda warmup: schedules.constant(0.5, warmup), 0.5),
}
DECAYS = ["linear_decay", "cosine_decay"]


def rates(name, *counts):
    return np.asarray(ALL[name][0](10)(np.array(counts)))


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.988e-4), (1024, 4.941e-4)])
def test_inverse_sqrt_peaks_as_in_the_paper(d_model, peak):
    values = np.asarray(schedules.inverse_sqrt(d_model, 4000)(np.array([0, 3998, 3999, 4000, 15_999])))
    assert values.argmax() == 2
    np.testing.assert_allclose(values[[0, 2, 4]], [peak / 4000, peak, peak / 2], rtol=1e-3)


@pytest.mark.parametrize("name", ALL)
def test_schedules_rise_linearly_to_their_peak(name):
    values, peak = rates(name, *range(100)), ALL[name][1]
    np.testing.assert_allclose(values[:10], peak * np.arange(1, 11) / 10, rtol=1e-5)
    assert values.max() == pytest.approx(peak)
    assert (np.diff(values[9:]) <= 0).all()


@pytest.mark.parametrize("name", DECAYS)
def test_decays_end_at_zero_and_stay_there(name):
    last, *later = rates(name, 99, 100, 101, 10**6)
    assert last > 0
    assert later == [0, 0, 0]


def test_cosine_decay_is_half_of_the_peak_in_the_middle():
    schedule = schedules.cosine_decay(1.0, 11, 110)  # decays for 100 steps after step 11
    np.testing.assert_allclose(schedule(np.array([35, 60])), [(1 + 0.5**0.5) / 2, 0.5], rtol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_schedules_accept_a_traced_integer(name):
    schedule = ALL[name][0](10)
    np.testing.assert_allclose(jax.jit(schedule)(np.int32(6)), schedule(6), rtol=1e-6)
    assert jax.eval_shape(schedule, np.int32(6)).dtype == "float32"


@pytest.mark.parametrize("name", ALL)
def test_warm_up_without_steps_or_longer_than_the_schedule_is_an_error(name):
    make = ALL[name][0]
    make(1)
    with pytest.raises(ValueError, match=r"warmup_steps to be at least 1.*got 0"):
        make(0)
    if name in DECAYS:
        assert make(100)(99) == 0.5  # the last of 100 updates has the peak
        with pytest.raises(ValueError, match=r"at most total_steps \(100\), got 101"):
            make(101)


def test_examples_of_the_docstrings_run():
    results = doctest.testmod(schedules)
    assert (results.failed, results.attempted) == (0, len(ALL))
