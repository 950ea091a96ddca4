"""A wrapper that edits the activations of a model and can be used in place of the model.

Shape letters as in `tfm.layers`. N = B * W is the number of rows that the model computes in a search.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from tfm.errors import UserError
from tfm.layers.observe import Edit, Recorder, activate, is_active
from tfm.search.state import gather_beams

# Methods of models that meet all activations. Other methods, such as `encode`, meet some of them.
FORWARD_PASSES = ("__call__", "features", "generate", "pretraining_outputs")


class EditedModel:
    """A model with edits. Decoding, scoring and generation accept it in place of the model.

    In a search, each hypothesis becomes a row of the model's batch with a separate cache. Reordering the
    hypotheses copies their keys and values. In each step, an edit receives one position of N = B * W rows,
    with the axes of a forward pass. `Point.rows` and `Point.positions` contain these rows and positions. Rows
    are counted from 0 in each batch of a search.

    JAX compiles separate programs for each object of this class, so create an object once and reuse it.
    """

    def __init__(self, model: nn.Module, edit: Mapping[str, Edit]):
        """Creates a model with edits. See `tfm.interpret.run` for the edits."""
        self._model, self._edit = model, dict(edit)
        self._met: set[str] = set()  # the names of all activations in the calls so far

    def __getattr__(self, name):
        if name == "_model":  # `copy` reads attributes of an object without its fields.
            raise AttributeError(name)
        return getattr(self._model, name)

    def clone(self, **changes: Any) -> Self:
        """Returns a copy with the same edits, in which fields of the model have other values."""
        return type(self)(self._model.clone(**changes), self._edit)

    def apply(
        self, variables: Mapping[str, Any], *arguments: Any, method: str = "__call__", **keywords: Any
    ) -> Any:
        """Applies the model like `flax.linen.Module.apply`.

        Raises:
          UserError: If a glob matches no activation, if an edit changes the shape or the dtype, or if a
            search with a coverage penalty makes a decoding step. A forward pass checks its own activations. A
            decoding step also counts the activations of all earlier calls.
        """
        cached: dict[str, Callable] = {
            "init_cache": self._init_cache,
            "prefill": self._prefill,
            "decode_step": self._decode_step,
        }
        if method in cached:
            return cached[method](variables, *arguments, **keywords)
        recorder = Recorder(edit=self._edit)
        result = self._apply(recorder, variables, *arguments, method=method, **keywords)
        if method in FORWARD_PASSES:
            self.check(recorder)
        return result

    def check(self, recorder: Recorder, other_names: Iterable[str] = ()) -> None:
        """Raises a UserError if an edit matches no activation, see `Recorder.check`."""
        recorder.check(other_names)

    def _apply(self, recorder: Recorder, *arguments: Any, **keywords: Any) -> Any:
        """Applies the model with an active recorder, and records the names of its activations."""
        with activate(recorder):
            result = self._model.apply(*arguments, **keywords)
        self._met.update(recorder.axes)
        return result

    def _init_cache(
        self, variables: Mapping[str, Any], inputs: Any, *, width: int, **keywords: Any
    ) -> "HypothesisRows":
        """Returns a cache with W = `width` copies of the model's cache for one hypothesis."""
        keywords |= {"method": "init_cache", "width": 1}
        cache = self._apply(Recorder(edit=self._edit), variables, inputs, **keywords)
        return HypothesisRows(jax.tree.map(lambda x: jnp.repeat(x[:, None], width, axis=1), cache))

    def _prefill(
        self, variables: Mapping[str, Any], tokens: jax.Array, cache: "HypothesisRows", **keywords: Any
    ) -> "HypothesisRows":
        """Appends tokens int [B, P] to the prefix of every hypothesis."""
        recorder = Recorder(edit=self._edit, rows_of_each=cache.width)
        tokens = jnp.repeat(tokens, cache.width, axis=0)
        filled = self._apply(recorder, variables, tokens, cache.joined(), method="prefill", **keywords)
        return cache.split(filled)

    def _decode_step(
        self, variables: Mapping[str, Any], tokens: jax.Array, cache: "HypothesisRows", position: jax.Array
    ) -> tuple[jax.Array, "HypothesisRows"]:
        """Returns the logits [B, W, V] after tokens int [B, W], and the cache with their keys and values.

        The model computes N = B * W rows of one hypothesis each.
        """
        if is_active():  # The search reads the attention for a coverage penalty.
            raise UserError(
                "An edited model does not support a coverage penalty. Set decoding.coverage_penalty=0."
            )
        recorder = Recorder(edit=self._edit, rows_of_each=cache.width)
        arguments = (tokens.reshape(-1, 1), cache.joined(), position)
        logits, written = self._apply(recorder, variables, *arguments, method="decode_step")
        self.check(recorder, self._met)
        return logits.reshape(*tokens.shape, -1), cache.split(written)


class HypothesisRows(flax.struct.PyTreeNode):
    """A `tfm.decoding.protocol.DecodingCache` in which each hypothesis is a row of the model's cache.

    Attributes:
      cache: The model's cache of one hypothesis for each row, with leaves [B, W, ...] instead of [N, ...].
    """

    cache: Any

    @property
    def width(self) -> int:
        """Number of hypotheses of a row, W."""
        return jax.tree.leaves(self.cache)[0].shape[1]

    @property
    def max_length(self) -> int | None:
        """Maximum number of positions in the cache. None means no limit."""
        return getattr(self.cache, "max_length", None)

    def joined(self) -> Any:
        """Returns the cache of the model, whose leaves are [N, ...]."""
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), self.cache)

    def split(self, cache: Any) -> Self:
        """Returns a copy that contains another cache of the model, whose leaves are [N, ...]."""
        return self.replace(cache=jax.tree.map(lambda x: x.reshape(-1, self.width, *x.shape[1:]), cache))

    def reorder(self, parents: jax.Array) -> Self:
        """Returns the cache in which hypothesis w of row b continues hypothesis `parents[b, w]`."""
        return self.replace(cache=gather_beams(self.cache, parents))
