"""Tests of the constants of DeepNorm against values computed by hand."""

import pytest

from tfm.layers import encoder_decoder_constants, single_stack_constants


def test_constants_of_an_encoder_and_a_decoder():
    encoder, decoder = encoder_decoder_constants(6, 6)  # (N^4 M)^(1/16) = 6^(5/16) = 1.7505
    assert encoder == pytest.approx((0.81 * 1.7505, 0.87 / 1.7505), rel=1e-4)
    assert decoder == pytest.approx((18**0.25, 72**-0.25))
    encoder, decoder = encoder_decoder_constants(16, 1)
    assert encoder == pytest.approx((1.62, 0.435))
    assert decoder == pytest.approx((3**0.25, 12**-0.25))


def test_constants_of_one_stack():
    assert single_stack_constants(8) == pytest.approx((2.0, 64**-0.25))
