"""Tests that the contract of encoders accepts a model with several outputs, and finds its mistakes."""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
import pytest

from tfm.testing.models import VOCABULARY, EncoderContract


@dataclasses.dataclass(frozen=True)
class Config:
    dropout: float = 0.0
    dtype: str = "float32"


class Averages(nn.Module):
    """Adds to each token the mean of the tokens of its row. Returns logits of the tokens and of the row.

    Attributes:
      reads_padding: counts padding as tokens.
      is_causal: uses the first token in place of the mean.
    """

    config: Config
    reads_padding: bool = False
    is_causal: bool = False

    @nn.compact
    def __call__(self, tokens, *, train):
        x = nn.Embed(VOCABULARY, 4, dtype=self.config.dtype)(tokens)
        weights = jnp.where(self.reads_padding | (tokens > 0), 1.0, 0.0)[..., None].astype(x.dtype)
        mean = x[:, 0] if self.is_causal else (x * weights).sum(1) / weights.sum(1)
        mean = nn.Dropout(self.config.dropout, deterministic=not train)(mean)
        return nn.Dense(3, dtype=x.dtype)(x + mean[:, None]), nn.Dense(2, dtype=x.dtype)(mean)


class TestAverages(EncoderContract):
    cases: ClassVar = {"averages": Averages(Config())}


@pytest.mark.parametrize(
    ("fault", "message"), [("reads_padding", "padding is read"), ("is_causal", "some token is ignored")]
)
def test_contract_finds_a_fault(fault, message):
    with pytest.raises(AssertionError, match=message):
        EncoderContract().test_every_token_reaches_every_output_and_padding_reaches_none(
            Averages(Config(), **{fault: True})
        )
