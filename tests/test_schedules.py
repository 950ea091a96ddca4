"""Learning-rate schedules against the paper's numbers."""

import doctest

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


def test_linear_decay_rises_and_falls_to_zero():
    schedule = schedules.linear_decay(0.5, 10, 100)
    rates = [float(schedule(count)) for count in range(101)]
    np.testing.assert_allclose(rates[:10], 0.05 * np.arange(1, 11), rtol=1e-5)
    np.testing.assert_allclose(np.diff(rates[9:]), -0.5 / 91, atol=1e-6)
    assert rates[100] == 0 < rates[99]


def test_impossible_warmups_are_errors():
    with pytest.raises(ValueError, match="warmup_steps"):
        schedules.inverse_sqrt(512, 0)
    with pytest.raises(ValueError, match="warmup_steps"):
        schedules.linear_decay(1.0, 10, 10)
    assert doctest.testmod(schedules).failed == 0 < doctest.testmod(schedules).attempted
