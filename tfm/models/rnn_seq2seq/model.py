"""The recurrent model: forward pass, cached decoding, attention to the source.

Shape letters as in `tfm.layers`; E features of an embedding, A of an annotation (a state of the encoder, of
both directions), F of a state, O of the output layer.
"""

import functools
from typing import Any, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from tfm.layers import activations
from tfm.layers.recurrent import State, segment_begins, select_state
from tfm.masks import padding_mask, segment_mask
from tfm.models.rnn_seq2seq.config import INITIALIZATIONS, RNNConfig
from tfm.models.rnn_seq2seq.encoder_decoder import DecoderStep, Encoded, Encoder, Table
from tfm.models.rnn_seq2seq.memory import RecurrentMemory
from tfm.search.state import gather_beams

PAD_ID = 0


class RecurrentCache(flax.struct.PyTreeNode):
    """The state of decoding between two positions.

    Attributes:
      annotations, keys: as in `Encoded`, once for all W hypotheses.
      memory_mask: bool [B, 1, 1, M], which source positions are tokens.
      carry: what goes from step to step, see `DecoderStep`; leaves [B, W, ...].
      coverage: float32 [B, W, M], attention of each hypothesis to each source position so far, summed.
    """

    annotations: jax.Array
    keys: jax.Array
    memory_mask: jax.Array
    carry: Any
    coverage: jax.Array

    def add_coverage(self, weights: jax.Array) -> Self:
        """The cache with attention weights [B, W, M] of one more position added to `coverage`."""
        return self.replace(coverage=self.coverage + weights)

    def reorder(self, parents: jax.Array) -> Self:
        """The cache of hypotheses that continue `parents`, int32 [B, W]."""
        carry, coverage = gather_beams((self.carry, self.coverage), parents)
        return self.replace(carry=carry, coverage=coverage)


class RNNSeq2Seq(nn.Module):
    """Recurrent sequence-to-sequence model, a `tfm.decoding.protocol.SequenceToSequence`.

    Attributes:
      config: every choice, see `RNNConfig`.
      vocabulary_size: V, of source and target.
    """

    config: RNNConfig
    vocabulary_size: int

    @property
    def memory_estimate(self) -> RecurrentMemory:
        """Its bytes, by arithmetic."""
        return RecurrentMemory(self.config, self.vocabulary_size)

    @property
    def attention_points(self) -> dict[str, str]:
        """Names of the attention weights, see `tfm.decoding.protocol.SequenceToSequence`."""
        return {} if self.config.attention == "none" else {"cross": "decoder.attention.weights"}

    def setup(self) -> None:
        config = self.config
        initialize = INITIALIZATIONS[config.initialization].table
        table = functools.partial(Table, self.vocabulary_size, initialize=initialize)
        self.target_embedding = table(config.embedding_features)
        if not config.share_embeddings:
            self.source_embedding = table(config.embedding_features)
        if not config.tie_output:
            self.output_table = table(config.output_features)
        self.encoder = Encoder(config)
        self.decoder = DecoderStep(config)

    def __call__(
        self, inputs: jax.Array, targets: jax.Array, *, train: bool, **packing: jax.Array | None
    ) -> jax.Array:
        """Logits [B, L, V] of each next target token, in the compute dtype; arguments as in `features`."""
        x, table = self.features(inputs, targets, train=train, **packing)
        return self._logits(x, table)

    def features(
        self,
        inputs: jax.Array,
        targets: jax.Array,
        *,
        input_positions: jax.Array | None = None,
        input_segments: jax.Array | None = None,
        target_positions: jax.Array | None = None,
        target_segments: jax.Array | None = None,
        train: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """Features of the output and output table, whose product is the logits of each next target token.

        Args:
          inputs: int [B, M] source tokens, 0 is padding.
          targets: int [B, L] decoder input: the target shifted right, beginning with BOS.
          input_positions, target_positions: not used; the order is enough.
          input_segments, target_segments: [B, M] and [B, L], for rows packed with several sentences; 0 is
            padding. All states restart with each segment. When None each row is one sentence, padded with
            token 0.
          train: turns dropout on.

        Returns:
          x [B, L, O] in the compute dtype and the table [V, O]; the logits are x @ table.T.
        """
        if input_segments is None:
            input_segments = (inputs != PAD_ID).astype(jnp.int32)
        if target_segments is None:
            target_segments = jnp.ones_like(targets)
        encoded = self.encode(inputs, segments=input_segments, train=train)
        first = self._initial_states(encoded, target_segments, input_segments)
        x = self._embed(self.target_embedding, targets)
        x, weights = self._run_decoder(
            x,
            encoded,
            first,
            segment_begins(target_segments),
            segment_mask(target_segments, input_segments)[:, 0],
            train=train,
        )
        self._observe_weights(weights)
        return x, self._output_table

    def _observe_weights(self, weights: jax.Array | None, position: jax.Array | None = None) -> None:
        """Lets callers read attention weights [B, L, M]. Edits would come too late."""
        if weights is not None:
            name, weights = "decoder.attention.weights", weights[:, None]
            activations.observe(self, name, weights, "BHLM", positions=position, editable=False)

    def _initial_states(
        self, encoded: Encoded, target_segments: jax.Array, input_segments: jax.Array
    ) -> tuple[State, ...]:
        """Returns the decoder's first states [B, L, F] for the source segment of each target position."""
        positions = [
            last_read(target_segments, input_segments, backwards=name == "backward")[..., None]
            for name in self.config.initial_directions
        ]

        def join(*directions: jax.Array) -> jax.Array:
            pairs = zip(directions, positions, strict=True)
            return jnp.concatenate([jnp.take_along_axis(x, i, axis=1) for x, i in pairs], axis=-1)

        return self.decoder.initial_states(tuple(jax.tree.map(join, *layer) for layer in encoded.states))

    def _run_decoder(self, x, encoded, first, begins, mask, *, train):
        """The decoder over all positions.

        Takes x [B, L, E]; the first states [B, L, F]; begins [B, L]; mask [B, L, M]. Returns the features
        [B, L, O] and the attention weights [B, L, M] or None.
        """

        def step(decoder, carry, inputs, encoded):
            (states, fed), (x, first, begins, mask) = carry, inputs
            states = select_state(begins, first, states)
            if fed is not None:
                fed = jnp.where(begins[..., None], 0, fed)
            return decoder((states, fed), x, encoded, mask, train=train)

        scan = nn.scan(
            step,
            variable_broadcast="params",
            split_rngs={"params": False, "dropout": True},
            in_axes=(1, nn.broadcast),
            out_axes=1,
        )
        inputs = jax.tree.map(lambda x: x[:, :, None], (x, first, begins, mask))  # one hypothesis: W = 1
        start = jax.tree.map(lambda x: jnp.zeros_like(x[:, 0]), inputs[1])
        carry = start, self.decoder.first_fed((x.shape[0], 1))
        _, found = scan(self.decoder, carry, inputs, encoded._replace(states=()))
        return jax.tree.map(lambda x: x[:, :, 0], found)

    def encode(self, inputs: jax.Array, *, segments: jax.Array | None = None, train: bool = False) -> Encoded:
        """inputs [B, M] -> `Encoded`."""
        segments = (inputs != PAD_ID).astype(jnp.int32) if segments is None else segments
        embedding = self.target_embedding if self.config.share_embeddings else self.source_embedding
        annotations, states = self.encoder(self._embed(embedding, inputs), segments, train=train)
        return Encoded(annotations, self.decoder.keys(annotations), states)

    def init_cache(self, inputs: jax.Array, *, width: int, max_length: int) -> RecurrentCache:
        """Encodes inputs [B, M]: the cache of W = `width` hypotheses, of any length."""
        encoded, segments = self.encode(inputs), (inputs != PAD_ID).astype(jnp.int32)
        ones = jnp.ones((len(inputs), width), jnp.int32)
        return RecurrentCache(
            annotations=encoded.annotations,
            keys=encoded.keys,
            memory_mask=padding_mask(inputs),
            carry=(self._initial_states(encoded, ones, segments), self.decoder.first_fed(ones.shape)),
            coverage=jnp.zeros((*ones.shape, inputs.shape[1]), jnp.float32),
        )

    def decode_step(
        self, tokens: jax.Array, cache: RecurrentCache, position: jax.Array
    ) -> tuple[jax.Array, RecurrentCache]:
        """Logits of the next token of each hypothesis.

        Args:
          tokens: int [B, W], the last token of each (BOS at position 0).
          cache: a `RecurrentCache`.
          position: not used; the cache is the state.

        Returns:
          logits [B, W, V] and the cache after this position.
        """
        x, encoded = self._embed(self.target_embedding, tokens), Encoded(cache.annotations, cache.keys, ())
        carry, (x, weights) = self.decoder(cache.carry, x, encoded, cache.memory_mask[:, 0], train=False)
        self._observe_weights(weights, position)
        return self._logits(x, self._output_table), cache.replace(carry=carry)

    def _embed(self, embedding, tokens):
        return embedding(tokens).astype(self.config.dtype)

    @property
    def _output_table(self):
        return self.target_embedding.table if self.config.tie_output else self.output_table.table

    def _logits(self, x, table):
        return x @ table.astype(x.dtype).T


def last_read(target_segments: jax.Array, input_segments: jax.Array, *, backwards: bool) -> jax.Array:
    """The position of its own source that the encoder reads last, for each target position.

    Args:
      target_segments, input_segments: [B, L] and [B, M].
      backwards: the first position of the segment, not the last.

    Returns:
      int [B, L]; any position for a segment that the source does not have.
    """
    same = target_segments[:, :, None] == input_segments[:, None]
    if backwards:
        return same.argmax(-1)
    return same.shape[-1] - 1 - same[..., ::-1].argmax(-1)
