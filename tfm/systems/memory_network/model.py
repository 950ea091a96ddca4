"""The end-to-end memory network (Sukhbaatar et al. 2015): a question attends several times to sentences.

    p = softmax(u m),    o = sum_i p_i c_i,    u' = u + o    for each hop    (equations 1, 2 and 4)

m_i and c_i are the sums of the embeddings of the words of sentence i, plus an embedding of its age. Tables
are tied between neighbouring hops: C of a hop is A of the next hop, the first A also embeds the question, and
the last C is the output layer (section 2.2, "adjacent").

Shape letters as in `tfm.layers`. S is the number of sentences and W is the number of words of a sentence.
"""

import dataclasses
import itertools
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.attention import masked_softmax
from tfm.config import InheritsHelp, check_fields
from tfm.dropout import STEPS, hash_indices
from tfm.layers.block_config import fixed_field, name_field, rate_field, size_field
from tfm.layers.observe import observe
from tfm.masks import PAD_ID

INIT = nn.initializers.normal(0.1)  # section 4.2


@dataclasses.dataclass(frozen=True)
class MemoryNetworkConfig(InheritsHelp):
    """The config of a memory network. The defaults are the sizes for bAbI (section 4.2)."""

    name: str = name_field("memory_network")
    features: int = size_field(20, "Width of the embeddings, d.")
    hops: int = fixed_field(3, "Number of hops, K.", minimum=1, maximum=100, unit="hops")
    memories: int = fixed_field(
        50,
        "Number of the most recent sentences that the model sees.",
        minimum=1,
        maximum=1 << 20,
        unit="sentences",
    )
    position_encoding: bool = fixed_field(
        True, "Weights each word by its position in the sentence. If False, a sentence is a bag of words."
    )
    temporal_encoding: bool = fixed_field(True, "Embeddings of the age of a sentence.")
    time_noise: float = rate_field(
        0.1,
        "Share of empty sentences inserted in training. Each makes all earlier sentences one step older.",
    )

    def __post_init__(self):
        check_fields(self, "model")

    @property
    def max_length(self) -> None:
        """Returns None, because the model forgets the oldest sentences of a long story."""
        return None


class MemoryNetwork(nn.Module):
    """A memory network that answers a question about a story with one word.

    Attributes:
      config: See `MemoryNetworkConfig`.
      vocabulary_size: Number of words, including padding, V.
    """

    config: MemoryNetworkConfig
    vocabulary_size: int
    attention_points: ClassVar[dict[str, str]] = {"memory": "hops_*.weights"}

    @nn.compact
    def __call__(
        self,
        stories: jax.Array,
        questions: jax.Array,
        *,
        train: bool,
        linear: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the logits [B, V] of the answers.

        Args:
          stories: Words of the sentences, the oldest sentence first, int [B, S, W]. 0 is padding after the
            words of a sentence, and after the sentences of a story.
          questions: int [B, W].
          train: Whether to add noise to the ages.
          linear: A boolean scalar that removes the softmax of all hops, so that the products of query and
            keys are the weights (linear start, section 4.1). None keeps the softmax.
        """
        config = self.config
        words, ages = (self.vocabulary_size, config.features), (config.memories, config.features)
        tables = [self.param(f"words_{k}", INIT, words) for k in range(config.hops + 1)]
        is_filled = (stories != PAD_ID).any(-1)
        age = self._find_ages(is_filled, train=train)
        mask = is_filled & (age < config.memories)
        memories = [self._encode(stories, table) for table in tables]
        if config.temporal_encoding:
            index = jnp.minimum(age, config.memories - 1)
            memories = [x + self.param(f"ages_{k}", INIT, ages)[index] for k, x in enumerate(memories)]
        u = self._encode(questions, tables[0])
        for hop, (keys, values) in enumerate(itertools.pairwise(memories)):
            products = jnp.einsum("bd,bsd->bs", u, keys)
            weights = masked_softmax(products, mask)
            if linear is not None:
                weights = jnp.where(linear, jnp.where(mask, products, 0), weights)
            weights = observe(self, f"hops_{hop}.weights", weights[:, None, None], "BHLM")[:, 0, 0]
            u = u + jnp.einsum("bs,bsd->bd", weights, values)
        return u @ tables[-1].T

    def _encode(self, words: jax.Array, table: jax.Array) -> jax.Array:
        """Returns the sums [..., D] of the embeddings of words int [..., W], weighted by their positions."""
        is_word = words != PAD_ID
        weights = is_word[..., None].astype(table.dtype)
        if self.config.position_encoding:
            count = is_word.sum(-1)[..., None, None]
            weights = weights * weigh_positions(words.shape[-1], count, self.config.features)
        return (table[words] * weights).sum(-2)

    def _find_ages(self, is_filled: jax.Array, *, train: bool) -> jax.Array:
        """Returns the number of sentences after each sentence, int [B, S], with noise in training."""
        steps = is_filled.astype(jnp.int32)
        if train and self.config.time_noise:
            noise = hash_indices(self.make_rng("dropout"), steps.shape)
            steps = steps + (is_filled & (noise < self.config.time_noise * STEPS))
        return jnp.cumsum(steps[:, ::-1], axis=1)[:, ::-1] - 1


def weigh_positions(length: int, count: jax.Array, features: int) -> jax.Array:
    """Returns the position encoding l [..., W, D] of sentences with `count` words [..., 1, 1] (section 4.1).

    l_kj = (1 - j / J) - (k / d) (1 - 2 j / J) for word j of J and feature k of d, counted from 1.
    """
    place = jnp.arange(1, length + 1)[:, None] / jnp.maximum(count, 1)
    share = jnp.arange(1, features + 1) / features
    return (1 - place) - share * (1 - 2 * place)


Config = MemoryNetworkConfig
Model = MemoryNetwork
