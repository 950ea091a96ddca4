"""Tests of the regularizers that are compared on Multi30k."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.regularizers import drop_words, teach
from tfm.data.tokenizers.learning import UNK_ID
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID


class TestDropWords:
    tokens = jnp.arange(UNK_ID + 1, 10_001 + UNK_ID).reshape(100, 100)

    def test_rate_0_drops_nothing(self):
        np.testing.assert_array_equal(drop_words(self.tokens, jax.random.key(0), 0.0), self.tokens)

    def test_dropped_tokens_become_the_unknown_piece(self):
        found = np.asarray(drop_words(self.tokens, jax.random.key(0), 0.1))
        dropped = found != np.asarray(self.tokens)
        assert (found[dropped] == UNK_ID).all()
        assert abs(dropped.mean() - 0.1) < 0.02  # six standard deviations

    def test_padding_and_the_ends_of_sentences_stay(self):
        special = jnp.array([[PAD_ID, BOS_ID, EOS_ID]] * 100)
        np.testing.assert_array_equal(drop_words(special, jax.random.key(0), 0.9), special)


class TestTeach:
    rng = np.random.default_rng(0)
    logits, teacher = (jnp.asarray(x) for x in rng.normal(size=(2, 3, 4, 5)))

    def test_it_is_the_sum_over_tokens_and_words(self):
        weights = jnp.ones((3, 4)).at[1, 2].set(0)
        expected = 0.0
        for row, column in np.argwhere(weights):
            log_q = np.log(np.exp(self.logits[row, column]) / np.exp(self.logits[row, column]).sum())
            p = np.exp(self.teacher[row, column]) / np.exp(self.teacher[row, column]).sum()
            expected -= p @ log_q
        np.testing.assert_allclose(teach(self.logits, self.teacher, weights), expected, rtol=1e-5)

    def test_a_student_like_its_teacher_learns_nothing(self):
        gradient = jax.grad(teach)(self.teacher, self.teacher, jnp.ones((3, 4)))
        np.testing.assert_allclose(gradient, 0, atol=1e-6)
