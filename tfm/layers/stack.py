"""A stack of layers: the encoder or the decoder (section 3.1). Shape letters as in `tfm.layers`."""

from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from tfm.errors import UserError
from tfm.layers.observe import is_active, observe, with_positions


class Stack(nn.Module):
    """Applies N = `depth` layers one after the other, and a norm for norm orders that do not end in one.

    Attributes:
      make_layer: Maps the index of a layer to the layer. The layers may differ.
      depth: Number of layers, N.
      final_norm: Makes the norm of the output. None for no norm.
      remat: Whether the backward pass recomputes a layer's activations. Saves memory and costs time.
      scan: Whether one compiled layer runs N times. Deep stacks compile faster. Layers must be equal. The
        parameters have the same names and shapes as without it.
      shared: Whether all N layers are one layer with the same parameters.
      before_layer: Changes the input of a layer, such as by adding an encoding of its index: (x, index of
        the layer, positions) -> like x. None changes nothing.
      make_output: Makes a module that maps the outputs of all layers, a list of N arrays [B, L, D], to the
        output of the stack, in place of `final_norm`. None returns the output of the last layer.
    """

    make_layer: Callable[[int], nn.Module]
    depth: int
    final_norm: Callable[[], nn.Module] | None = None
    remat: bool = False
    scan: bool = False
    shared: bool = False
    before_layer: Callable[[Array, int, Array | None], Array] | None = None
    make_output: Callable[[], nn.Module] | None = None

    def setup(self) -> None:
        self.layers = [self.make_layer(index) for index in range(1 if self.shared else self.depth)]
        self.norm = self.final_norm() if self.final_norm else lambda x: x
        if self.make_output is not None:
            self.output = self.make_output()

    def __call__(self, x: Array, *arguments: Any, train: bool, **keywords: Any) -> Any:
        """Maps x [B, L, D] to [B, L, D], or to what `make_output` makes of it.

        Each layer receives all other arguments, too.

        Raises:
          UserError: `scan` is set and the layers are not equal.
        """
        # Activations that somebody reads cannot leave a scan or a recomputation.
        plain = self.is_initializing() or is_active()
        if self.scan and not plain:
            return self.norm(self._scanned(x, arguments, keywords | {"train": train}))

        def call(layer, x):
            return layer(x, *arguments, train=train, **keywords)

        outputs, positions = [], keywords.get("positions")
        with with_positions(positions):
            for index, layer in self._steps():
                x = self._prepare(x, index, positions)
                x = nn.remat(call)(layer, x) if self.remat and not plain else call(layer, x)
                outputs.append(x)
            return self._finish(outputs)

    def _steps(self) -> Iterator[tuple[int, nn.Module]]:
        return ((index, self.layers[0 if self.shared else index]) for index in range(self.depth))

    def _prepare(self, x, index, positions):
        return x if self.before_layer is None else self.before_layer(x, index, positions)

    def _finish(self, outputs):
        """Maps the outputs of all layers to the output of the stack."""
        if self.make_output is not None:
            return self.output(outputs)
        return observe(self, "output", self.norm(outputs[-1]))

    def _scanned(self, x, arguments, keywords):
        self._check_scan()
        layer, _ = self.layers[0].unbind()
        params = [layer.variables["params"] for _, layer in self._steps()]
        keys = None
        if keywords["train"] and self.has_rng("dropout"):
            keys = jax.random.split(self.make_rng("dropout"), self.depth)

        def call(x, params_and_key):
            params, key = params_and_key
            rngs = None if key is None else {"dropout": key}
            return layer.apply({"params": params}, x, *arguments, rngs=rngs, **keywords), None

        call = jax.checkpoint(call) if self.remat else call
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *params)
        return jax.lax.scan(call, x, (stacked, keys))[0]

    def _check_scan(self):
        shapes = {str(jax.tree.map(jnp.shape, layer.variables["params"])) for layer in self.layers}
        if len(shapes) > 1 or self.before_layer is not None or self.make_output is not None:
            raise UserError(
                "model.scan needs layers that are all equal, but the layers of this stack differ, or it uses "
                "their index or all of their outputs. Set model.scan=False."
            )

    def init_cache(
        self, example: Array, encoder_output: Array | None = None, *, width: int, max_length: int
    ) -> list[Any]:
        """Returns a list of each layer's cache. The arguments are those of `Layer.init_cache`."""
        options = {"width": width, "max_length": max_length}
        return [layer.init_cache(example, encoder_output, **options) for _, layer in self._steps()]

    def decode_step(
        self, x: Array, caches: list[Any], position: Array, *, positions: Array, **where: Any
    ) -> tuple[Any, list[Any]]:
        """Computes one position of W hypotheses: x [B, W, D] and caches -> ([B, W, D], caches).

        The other arguments are those of `Layer.decode_step`.
        """
        outputs, written = [], []
        with with_positions(positions):
            for (index, layer), cache in zip(self._steps(), caches, strict=True):
                x = self._prepare(x, index, positions)
                x, cache = layer.decode_step(x, cache, position, positions=positions, **where)
                outputs.append(x)
                written.append(cache)
            return self._finish(outputs), written

    def prefill(self, x: Array, caches: list[Any], *, positions: Array, **where: Any) -> list[Any]:
        """Returns the caches after x [B, P', D] was appended to their prefix, see `Layer.prefill`."""
        written = []
        with with_positions(positions):
            for (index, layer), cache in zip(self._steps(), caches, strict=True):
                x = self._prepare(x, index, positions)
                x, cache = layer.prefill(x, cache, positions=positions, **where)
                written.append(cache)
        return written
