"""The recurrent model: its forward pass and its cached decoding.

Shape letters as in `tfm.layers`. E is the width of an embedding, A is the width of an annotation (the encoder
states of all directions), F is the width of a state, and O is the width of the output layer.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.embedding import Embedding
from tfm.layers.observe import observe
from tfm.layers.state_cache import StateCache
from tfm.masks import PAD_ID, padding_mask, segment_mask
from tfm.systems.lstm_lm.cells import State, segment_begins, select_state
from tfm.systems.rnn_seq2seq.config import INITIALIZATIONS, RNNConfig
from tfm.systems.rnn_seq2seq.encoder_decoder import DecoderStep, Encoded, Encoder


class RNNSeq2Seq(nn.Module):
    """A recurrent model that implements `tfm.decoding.protocol.SequenceToSequence`.

    Attributes:
      config: See `RNNConfig`.
      vocabulary_size: Size of the vocabulary that source and target share, V.
    """

    config: RNNConfig
    vocabulary_size: int

    @property
    def attention_points(self) -> dict[str, str]:
        """Names of the attention weights, see `tfm.decoding.protocol.SequenceToSequence`."""
        return {} if self.config.attention == "none" else {"cross": "decoder.attention.weights"}

    @property
    def attention_tracks(self) -> dict[str, tuple[str, str]]:
        """Tracks that the attention joins, see `tfm.decoding.protocol.SequenceToSequence`."""
        return dict.fromkeys(self.attention_points, ("predicted", "source"))

    def setup(self) -> None:
        config = self.config
        table = functools.partial(
            Embedding,
            self.vocabulary_size,
            dtype=jnp.dtype(config.dtype),
            scale=1.0,
            table_init=INITIALIZATIONS[config.initialization].table,
        )
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
        """Returns the logits [B, L, V] of the next target token at each position.

        See `features` for the arguments.
        """
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
        """Returns the output features and the output table. Their product is the logits.

        Args:
          inputs: Source tokens, int [B, M], padded with 0.
          targets: Decoder input, int [B, L]. This is the target shifted right by one position, with BOS as
            the first token.
          input_positions, target_positions: Ignored, because recurrent layers depend only on the order.
          input_segments, target_segments: Number of the sentence that each token belongs to, [B, M] and
            [B, L], for rows that contain several sentences. 0 is padding. All states restart with each
            segment. None means one sentence in each row.
          train: Whether dropout is on.

        Returns:
          x [B, L, O] in the compute dtype and the table [V, O]. The logits are x @ table.T.
        """
        if input_segments is None:
            input_segments = (inputs != PAD_ID).astype(jnp.int32)
        if target_segments is None:
            target_segments = jnp.ones_like(targets)
        encoded = self.encode(inputs, segments=input_segments, train=train)
        first = self._initial_states(encoded, target_segments, input_segments)
        x = self.target_embedding(targets)
        begins = segment_begins(target_segments)
        mask = segment_mask(target_segments, input_segments)[:, 0]
        x, weights = self._run_decoder(x, encoded, first, begins, mask, train=train)
        self._observe_weights(weights)
        return x, self._output_table

    def _observe_weights(self, weights: jax.Array | None) -> None:
        """Lets observers read the attention weights [B, L, M].

        They cannot be edited, because the decoder has already used them. Only edits receive positions, so the
        weights have none.
        """
        if weights is not None:
            observe(self, "decoder.attention.weights", weights[:, None], "BHLM", editable=False)

    def _initial_states(
        self, encoded: Encoded, target_segments: jax.Array, input_segments: jax.Array
    ) -> tuple[State, ...]:
        """Returns the decoder's initial states [B, L, F] for the source segment of each target position."""
        positions = [
            last_read(target_segments, input_segments, backwards=name == "backward")[..., None]
            for name in self.config.initial_directions
        ]

        def join(*directions: jax.Array) -> jax.Array:
            pairs = zip(directions, positions, strict=True)
            return jnp.concatenate([jnp.take_along_axis(x, i, axis=1) for x, i in pairs], axis=-1)

        return self.decoder.initial_states(tuple(jax.tree.map(join, *layer) for layer in encoded.states))

    def _run_decoder(self, x, encoded, first, begins, mask, *, train):
        """Runs the decoder over x [B, L, E]. Returns features [B, L, O] and weights [B, L, M] or None.

        `first` are the initial states [B, L, F] for the segment of each position, `begins` bool [B, L] is
        True at the first position of each segment, and `mask` is bool [B, L, M].
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
        # The decoder expects the axis W of hypotheses. In a forward pass, W is 1.
        inputs = jax.tree.map(lambda x: x[:, :, None], (x, first, begins, mask))
        start = jax.tree.map(lambda x: jnp.zeros_like(x[:, 0]), inputs[1])
        carry = start, self.decoder.first_fed((x.shape[0], 1))
        _, outputs = scan(self.decoder, carry, inputs, encoded._replace(states=()))
        return jax.tree.map(lambda x: x[:, :, 0], outputs)

    def encode(self, inputs: jax.Array, *, segments: jax.Array | None = None, train: bool = False) -> Encoded:
        """Encodes source tokens int [B, M]. See `features` for the arguments."""
        segments = (inputs != PAD_ID).astype(jnp.int32) if segments is None else segments
        embedding = self.target_embedding if self.config.share_embeddings else self.source_embedding
        annotations, states = self.encoder(embedding(inputs), segments, train=train)
        return Encoded(annotations, self.decoder.keys(annotations), states)

    def init_cache(self, inputs: jax.Array, *, width: int, max_length: int) -> StateCache:
        """Encodes source tokens int [B, M], padded with 0, and returns a cache for W = `width` hypotheses.

        `max_length` is ignored, because the cache has the same size for hypotheses of any length.
        """
        encoded, (batch, length) = self.encode(inputs), inputs.shape
        input_segments = (inputs != PAD_ID).astype(jnp.int32)
        target_segments = jnp.ones((batch, width), jnp.int32)  # every hypothesis belongs to the only sentence
        states = self._initial_states(encoded, target_segments, input_segments)
        return StateCache(
            encoded=encoded._replace(states=()),
            source_mask=padding_mask(inputs),
            carry=(states, self.decoder.first_fed((batch, width))),
            coverage=jnp.zeros((batch, width, length), jnp.float32),
        )

    def decode_step(
        self, tokens: jax.Array, cache: StateCache, position: jax.Array
    ) -> tuple[jax.Array, StateCache]:
        """Computes one decoding step.

        Args:
          tokens: Last token of each hypothesis, int [B, W]. At position 0, this is BOS.
          cache: A `StateCache`.
          position: Ignored, because recurrent layers depend only on the order.

        Returns:
          The logits of the next tokens, [B, W, V], and the cache after this step.
        """
        del position
        x, mask = self.target_embedding(tokens), cache.source_mask[:, 0]
        carry, (x, weights) = self.decoder(cache.carry, x, cache.encoded, mask, train=False)
        self._observe_weights(weights)
        return self._logits(x, self._output_table), cache.replace(carry=carry)

    @property
    def _output_table(self):
        return self.target_embedding.table if self.config.tie_output else self.output_table.table

    def _logits(self, x, table):
        return x @ table.astype(x.dtype).T


def last_read(target_segments: jax.Array, input_segments: jax.Array, *, backwards: bool) -> jax.Array:
    """Returns the last source position that the encoder reads in the segment of each target position.

    Args:
      target_segments, input_segments: int [B, L] and [B, M].
      backwards: Whether the encoder reads backwards, so that it ends at the first position of a segment.

    Returns:
      int [B, L]. The value is arbitrary if the source does not contain the segment.
    """
    same = target_segments[:, :, None] == input_segments[:, None]
    if backwards:
        return same.argmax(-1)
    return same.shape[-1] - 1 - same[..., ::-1].argmax(-1)


Config = RNNConfig
Model = RNNSeq2Seq
