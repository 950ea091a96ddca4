"""Tests of random offsets of positions in training (`model.random_start`)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import decoder_lm, transformer
from tfm import layers
from tfm.data.config import PairsConfig
from tfm.errors import UserError
from tfm.layers.block_config import SequenceConfig
from tfm.models import TransformerConfig
from tfm.tasks.translation.task import Config
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters

RNG = np.random.default_rng(0)
ROWS, LENGTH, LARGEST = 8, 5, 3
SOURCES, TARGETS = RNG.integers(3, 20, (2, ROWS, LENGTH))
INDEX = np.arange(LENGTH)


def shift(rows=ROWS, *, largest=LARGEST, train=True, seed=0):
    """Returns the shifted positions [B, L] of rows."""
    base = layers.TransformerBase(SequenceConfig(random_start=largest))
    options = {"rows": rows, "train": train, "rngs": {"dropout": jax.random.key(seed)}}
    return base.apply({}, jnp.asarray(INDEX), **options, method="shift_positions")[0]


def test_offsets_are_uniform_over_0_to_the_largest():
    offsets = np.asarray(shift(4000) - INDEX)
    assert (offsets == offsets[:, :1]).all()
    counts = np.bincount(offsets[:, 0])
    np.testing.assert_allclose(counts / 4000, np.full(LARGEST + 1, 1 / (LARGEST + 1)), atol=0.03)


def test_offsets_follow_the_key_and_are_absent_outside_of_training():
    assert (shift() == shift()).all()
    assert (shift() != shift(seed=1)).any()
    np.testing.assert_array_equal(shift(train=False), INDEX)
    np.testing.assert_array_equal(shift(largest=0), INDEX)


def find_offsets(run, shifted_runs):
    """Returns for each row of an output the offset with which a forward pass has the same output."""
    close = [np.isclose(run, other, atol=1e-4).all((1, 2)) for other in shifted_runs]
    assert (np.sum(close, 0) == 1).all()
    return np.argmax(close, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("make_model", "inputs", "positions"),
    [
        (transformer, (SOURCES, TARGETS), ("input_positions", "target_positions")),
        (decoder_lm, (SOURCES,), ("positions",)),
    ],
    ids=["transformer", "language model"],
)
def test_all_positions_of_a_row_have_the_same_offset(make_model, inputs, positions):
    model = make_model(random_start=LARGEST)
    params = random_parameters(model, *inputs)

    @quick_jit(static_argnums=0)
    def run(train, offset=0):
        shifted = dict.fromkeys(positions, INDEX[None] + offset)
        rngs = {"dropout": jax.random.key(0)}
        return model.apply({"params": params}, *inputs, **shifted, train=train, rngs=rngs)

    offsets = find_offsets(run(True), [run(False, offset) for offset in range(LARGEST + 1)])
    assert len(set(offsets)) > 1


def test_tables_of_learned_positions_need_rows_for_the_offsets():
    config = SequenceConfig(positions="learned", max_positions=40, random_start=30)
    assert config.max_length == 10
    model = TransformerConfig(positions="learned", max_positions=300, random_start=60)
    with pytest.raises(UserError, match=r"256.*model\.random_start=240"):
        Config(model=model, data=PairsConfig(max_length=256))
    assert SequenceConfig(max_positions=40, random_start=40).max_length is None
