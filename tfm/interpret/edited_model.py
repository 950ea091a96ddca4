"""A model whose activations are edited, which can be used in place of the model.

Shape letters as in `tfm.layers`; N rows of the model in a search, B * W.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from tfm.errors import UserError
from tfm.interpret.recorder import Edit, Recorder
from tfm.layers.observe import activate, is_active
from tfm.search.state import gather_beams


class EditedModel:
    """A model with edits. Decoding, scoring and generation accept it in place of the model.

    In a search, each hypothesis is a row of the model's batch with a separate cache, whose keys and values
    move when hypotheses are reordered. An edit then receives one position of N = B * W rows, with the axes of
    a forward pass. `Point.rows` and `Point.positions` contain the rows and positions. Each batch of a search
    numbers its rows from 0.

    JAX compiles programs for each object, so create it once and use it often.
    """

    def __init__(self, model: nn.Module, edit: Mapping[str, Edit]):
        """Creates a model with edits, which are those of `tfm.interpret.run`."""
        self._model, self._edit = model, dict(edit)
        self._met: set[str] = set()

    def __getattr__(self, name):
        if name == "_model":  # of an object that is being copied
            raise AttributeError(name)
        return getattr(self._model, name)

    def clone(self, **changes: Any) -> Self:
        """Returns this model with other attributes and the same edits."""
        return type(self)(self._model.clone(**changes), self._edit)

    def apply(
        self, variables: Mapping[str, Any], *arguments: Any, method: str = "__call__", **keywords: Any
    ) -> Any:
        """Applies the model like `flax.linen.Module.apply`.

        Raises:
          UserError: A glob matches nothing in a forward pass, or in a decoding step and the calls before it.
        """
        cached: dict[str, Callable] = {
            "init_cache": self._init_cache,
            "prefill": self._prefill,
            "decode_step": self._decode_step,
        }
        if method in cached:
            return cached[method](variables, *arguments, **keywords)
        recorder = Recorder(edit=self._edit)
        found = self._apply(recorder, variables, *arguments, method=method, **keywords)
        if method in ("__call__", "features"):
            recorder.check()
        return found

    def _apply(self, recorder, *arguments, **keywords):
        with activate(recorder):
            found = self._model.apply(*arguments, **keywords)
        self._met.update(recorder.points)
        return found

    def _init_cache(self, variables, inputs, *, width, **keywords):
        keywords |= {"method": "init_cache", "width": 1}
        cache = self._apply(Recorder(edit=self._edit), variables, inputs, **keywords)
        return HypothesisRows(jax.tree.map(lambda x: jnp.repeat(x[:, None], width, axis=1), cache))

    def _prefill(self, variables, tokens, cache, **keywords):
        recorder = Recorder(edit=self._edit, rows_of_each=cache.width)
        tokens = jnp.repeat(tokens, cache.width, axis=0)
        found = self._apply(recorder, variables, tokens, cache.joined(), method="prefill", **keywords)
        return cache.split(found)

    def _decode_step(self, variables, tokens, cache, position):
        if is_active():  # the search reads the attention
            raise UserError("An edited model decodes without a coverage penalty: set coverage_penalty=0.")
        recorder = Recorder(edit=self._edit, rows_of_each=cache.width)
        arguments = (tokens.reshape(-1, 1), cache.joined(), position)
        logits, written = self._apply(recorder, variables, *arguments, method="decode_step")
        recorder.check(self._met)
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
        """Maximum number of positions, or None for no limit."""
        return getattr(self.cache, "max_length", None)

    def joined(self) -> Any:
        """Returns the cache of the model, with leaves [N, ...]."""
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), self.cache)

    def split(self, cache: Any) -> Self:
        """Returns these rows with another cache of the model, whose leaves are [N, ...]."""
        return self.replace(cache=jax.tree.map(lambda x: x.reshape(-1, self.width, *x.shape[1:]), cache))

    def reorder(self, parents: jax.Array) -> Self:
        """Returns the cache of hypotheses that continue `parents`, int32 [B, W]."""
        return self.replace(cache=gather_beams(self.cache, parents))
