"""The Universal Transformer (Dehghani et al. 2019): every step applies the same layer to all positions.

Signals of position and step are added to the input of each step, in place of the positions that a Transformer
adds to its embeddings. With halting (adaptive computation time, Graves 2016), each position chooses how many
steps contribute to its output. Shape letters as in `tfm.layers`. S is the number of steps.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.config import field
from tfm.layers.block_config import fixed_field
from tfm.layers.loss_terms import add_loss_term
from tfm.layers.observe import observe
from tfm.models.transformer import Transformer, TransformerConfig
from tfm.positions import sinusoidal_encoding

HALTING_BIAS = 1.0  # initial bias of the halting units, from the authors' code


@dataclasses.dataclass(frozen=True)
class UniversalConfig(TransformerConfig):
    """The config of a Universal Transformer. The numbers of layers are the numbers of steps, T."""

    name: str = "universal"
    step_signal: str = fixed_field(
        "sinusoid",
        "Signal of each step: sinusoid (equations 6 and 7) or learned (a vector for each step, as in the "
        "authors' code).",
        choices=("sinusoid", "learned"),
    )
    halting: bool = fixed_field(
        False, "Adaptive computation time, in which each position chooses its number of steps."
    )
    halting_epsilon: float = fixed_field(
        0.01,
        "Halting probability that may be missing from 1 when a position halts, epsilon.",
        minimum=0,
        less_than=1,
    )
    ponder_cost: float = field(
        0.01, "Weight of the ponder cost in the loss, tau. Only with halting.", minimum=0, maximum=100
    )

    def _problems(self) -> Iterator[str]:
        """Yields an error message for each combination of fields that is not possible."""
        if self.d_model % 2 and self.step_signal == "sinusoid":
            yield f"model.d_model must be even for model.step_signal 'sinusoid', got {self.d_model}."
        yield from super()._problems()


class StepSignals(nn.Module):
    """The signals of position and step that are added to the input of each step (equations 6 and 7).

    Attributes:
      encode_positions: Function or module that maps positions [...] to vectors [..., D], or None.
      learned_steps: Number of steps with a learned vector. 0 means sinusoids.
    """

    encode_positions: Callable[[jax.Array], jax.Array] | None
    learned_steps: int = 0

    @nn.compact
    def __call__(self, x: jax.Array, index: int | jax.Array, positions: jax.Array) -> jax.Array:
        """Adds the signals of step `index`, counted from 0, and of positions [B, L] or [L] to x [B, L, D]."""
        features = x.shape[-1]
        if self.learned_steps:
            init = nn.initializers.normal(features**-0.5)
            signal = self.param("steps", init, (self.learned_steps, features))[index]
        else:
            signal = sinusoidal_encoding(jnp.asarray(index) + 1, features=features)
        if self.encode_positions is not None:
            signal = signal + self.encode_positions(positions)
        return observe(self, "input", x + signal.astype(x.dtype))


class Halting(nn.Module):
    """The output of a stack with adaptive computation time (Graves 2016, equations 5 to 13).

    After each step, a unit computes a halting probability. A position halts when the sum of its probabilities
    reaches 1 - epsilon, or after the last step. The weight of its last step is the remainder to 1.

    Attributes:
      epsilon: Halting probability that may be missing from 1 when a position halts.
      cost: Weight of the ponder cost in the loss, tau.
    """

    epsilon: float
    cost: float

    @nn.compact
    def __call__(self, outputs: list[jax.Array], mask: jax.Array | None) -> jax.Array:
        """Returns the sum of the outputs of all steps, weighted by their halting probabilities.

        Args:
          outputs: S arrays [B, L, D].
          mask: The mask of self-attention, bool [B, 1, L, M]. A position that may attend to nothing is
            padding and has no ponder cost.

        Returns:
          [B, L, D].
        """
        x = jnp.stack(outputs)
        unit = nn.Dense(1, bias_init=nn.initializers.constant(HALTING_BIAS), name="halt")
        probabilities = nn.sigmoid(unit(x.astype(jnp.float32))[..., 0])
        weights, steps, remainder = halting_weights(probabilities, self.epsilon)
        is_token = jnp.broadcast_to(True if mask is None else mask.any(-1)[:, 0], steps.shape)
        ponder = self.cost * jnp.where(is_token, steps + remainder, 0)
        add_loss_term(self, "ponder", ponder.sum(), is_token.sum())
        observe(self, "steps", steps, "BL", editable=False)
        weights = observe(self, "weights", jnp.moveaxis(weights, 0, -1), "BLS")
        return observe(self, "output", jnp.einsum("sbld,bls->bld", x, weights.astype(x.dtype)))


def halting_weights(probabilities: jax.Array, epsilon: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes the weights of the steps of each position, their number, and the remainder.

    Args:
      probabilities: Halting probability after each step, float [S, ...].
      epsilon: Halting probability that may be missing from 1 when a position halts.

    Returns:
      The weights [S, ...] of the steps, whose sum is 1. The number of steps [...] until the position halts,
      N in Graves 2016. The remainder [...], the weight of the last of these steps, R.

    Examples:
      >>> weights, steps, remainder = halting_weights(jnp.array([0.5, 0.25, 0.75, 0.5]), 0.01)
      >>> weights.tolist(), int(steps), float(remainder)
      ([0.5, 0.25, 0.25, 0.0], 3, 0.25)
    """
    # Neighbouring steps share each sum, so that rounding does not let a position halt twice or never.
    sums = jnp.cumsum(probabilities, axis=0)
    before = jnp.concatenate([jnp.zeros_like(sums[:1]), sums[:-1]])
    runs = before < 1 - epsilon  # whether the position has not halted before the step
    halts = (sums >= 1 - epsilon).at[-1].set(True)
    last = jnp.where(runs & halts, 1 - before, 0)
    return last + jnp.where(runs & ~halts, probabilities, 0), runs.sum(0), last.sum(0)


class UniversalTransformer(Transformer):
    """A Universal Transformer that implements `tfm.decoding.protocol.SequenceToSequence`.

    Attributes:
      config: See `UniversalConfig`.
      vocabulary_size: Size of the vocabulary that source and target share, V.
    """

    config: UniversalConfig

    def make_positions(self) -> None:
        """Returns None, because each step adds the positions, see `make_signals`."""

    def make_signals(self, steps: int) -> nn.Module:
        """Returns the module that adds the signals of position and step to the input of each step."""
        learned = steps if self.config.step_signal == "learned" else 0
        return StepSignals(super().make_positions(), learned)

    def make_halting(self) -> nn.Module:
        """Returns the module that computes the output of a stack from the outputs of all steps."""
        return Halting(self.config.halting_epsilon, self.config.ponder_cost)

    def make_stack(self, make_layer: Callable[[int], nn.Module], depth: int) -> nn.Module:
        """Returns a stack that applies the same layer `depth` times."""
        stack: Any = super().make_stack(make_layer, depth)
        halting = self.make_halting if self.config.halting else None
        return stack.clone(shared=True, before_layer=self.make_signals(depth), make_output=halting)


Config = UniversalConfig
Model = UniversalTransformer
