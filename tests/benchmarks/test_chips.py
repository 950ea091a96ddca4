"""Tests of the roofline, which says which part of a step limits its speed."""

import pytest

from benchmarks.chips import CHIPS, Chip, estimate

CHIP = Chip(flops=100.0, memory=1, memory_bandwidth=10.0, interconnect=5.0)


@pytest.mark.parametrize(
    ("work", "seconds", "bound"),
    [
        ((400, 10, 5, 0), 4 + 1, "compute"),
        ((100, 30, 5, 0), 3 + 1, "HBM"),
        ((100, 10, 15, 10), 3 + 2, "interconnect"),
        ((100, 10, 0, 15), 3, "interconnect"),
        ((100, 10, 15, 0), 3 + 1, "interconnect"),
    ],
)
def test_time_of_a_step_is_that_of_its_slowest_part(work, seconds, bound):
    found = estimate(CHIP, *work)
    assert found.seconds == pytest.approx(seconds)
    assert found.bound == bound
    assert found.utilisation == pytest.approx(work[0] / CHIP.flops / seconds)


def test_later_chips_compute_more():
    assert CHIPS["v5e"].flops < CHIPS["v4"].flops < CHIPS["v5p"].flops < CHIPS["v6e"].flops
