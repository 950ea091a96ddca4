"""A model whose activations are edited, in the place of the model itself.

Shape letters as in `tfm.layers`; N rows of the model in a search, B * W.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from tfm.errors import UserError
from tfm.layers.activations import Edit, Interception, intercept, is_active
from tfm.search.state import gather_beams


class EditedModel:
    """A model under edits, in the place of the model: in `decode`, `score_pairs`, `continue_tokens`.

    In a search each hypothesis has a row of the model's batch and a cache of its own, whose keys and values
    move when beams reorder: an edit then sees one position of N = B * W rows, axes in the order of a forward
    pass, and `Point.rows` and `Point.positions` say which. A search of several batches numbers rows by batch.

    A program is compiled for each object: make one, and use it often.
    """

    def __init__(self, model: nn.Module, edit: Mapping[str, Edit]):
        """`edit`: as in `tfm.interpret.run`."""
        self._model, self._edit = model, dict(edit)
        self._met: set[str] = set()

    def __getattr__(self, name):
        if name == "_model":  # of an object that is being copied
            raise AttributeError(name)
        return getattr(self._model, name)

    def clone(self, **changes: Any) -> Self:
        """This model with other attributes, under the same edits."""
        return type(self)(self._model.clone(**changes), self._edit)

    def apply(
        self, variables: Mapping[str, Any], *arguments: Any, method: str = "__call__", **keywords: Any
    ) -> Any:
        """As `flax.linen.Module.apply`.

        Raises:
          UserError: a glob matches nothing of a forward pass, or of the cached steps with what precedes them.
        """
        cached: dict[str, Callable] = {
            "init_cache": self._init_cache,
            "prefill": self._prefill,
            "decode_step": self._decode_step,
        }
        if method in cached:
            return cached[method](variables, *arguments, **keywords)
        interception = Interception(edit=self._edit)
        found = self._apply(interception, variables, *arguments, method=method, **keywords)
        if method in ("__call__", "features"):
            interception.check()
        return found

    def _apply(self, interception, *arguments, **keywords):
        with intercept(interception):
            found = self._model.apply(*arguments, **keywords)
        self._met.update(interception.points)
        return found

    def _init_cache(self, variables, inputs, *, width, **keywords):
        keywords |= {"method": "init_cache", "width": 1}
        cache = self._apply(Interception(edit=self._edit), variables, inputs, **keywords)
        return HypothesisRows(jax.tree.map(lambda x: jnp.repeat(x[:, None], width, axis=1), cache))

    def _prefill(self, variables, tokens, cache, **keywords):
        interception = Interception(edit=self._edit, rows_of_each=cache.width)
        tokens = jnp.repeat(tokens, cache.width, axis=0)
        found = self._apply(interception, variables, tokens, cache.joined(), method="prefill", **keywords)
        return cache.split(found)

    def _decode_step(self, variables, tokens, cache, position):
        if is_active():  # the search reads the attention
            raise UserError("An edited model decodes without a coverage penalty: set coverage_penalty=0.")
        interception = Interception(edit=self._edit, rows_of_each=cache.width)
        arguments = (tokens.reshape(-1, 1), cache.joined(), position)
        logits, written = self._apply(interception, variables, *arguments, method="decode_step")
        interception.check(self._met)
        return logits.reshape(*tokens.shape, -1), cache.split(written)


class HypothesisRows(flax.struct.PyTreeNode):
    """A cache of the model, each hypothesis a row of it: a `tfm.decoding.protocol.DecodingCache`.

    Attributes:
      cache: of one hypothesis a row, leaves [B, W, ...] in place of [N, ...].
    """

    cache: Any

    @property
    def width(self) -> int:
        """W."""
        return jax.tree.leaves(self.cache)[0].shape[1]

    @property
    def max_length(self) -> int | None:
        """Of the cache."""
        return getattr(self.cache, "max_length", None)

    def joined(self) -> Any:
        """The cache of the model, leaves [N, ...]."""
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), self.cache)

    def split(self, cache: Any) -> Self:
        """These rows with another cache of the model, leaves [N, ...]."""
        return self.replace(cache=jax.tree.map(lambda x: x.reshape(-1, self.width, *x.shape[1:]), cache))

    def reorder(self, parents: jax.Array) -> Self:
        """The cache of hypotheses that continue `parents`, int32 [B, W]."""
        return self.replace(cache=gather_beams(self.cache, parents))
