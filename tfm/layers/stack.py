"""A stack of layers: the encoder or the decoder (section 3.1). Shape letters as in `tfm.layers`."""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from tfm.devices import shards
from tfm.errors import UserError
from tfm.layers.loss_terms import LOSS_TERMS
from tfm.layers.observe import is_active, observe, with_positions
from tfm.masks import AttentionMask, mask_to_array


class Program(NamedTuple):
    """A traced layer. JAX's own type of it is not used because newer versions of JAX do not export its name.

    Attributes:
      text: Operations as JAX prints them.
      constants: Arrays that the operations use.
    """

    text: str
    constants: Sequence[Any]


class Stack(nn.Module):
    """A stack of N = `depth` layers, optionally followed by a norm.

    Attributes:
      make_layer: Function that maps the index of a layer, counted from 0, to the layer. Layers may differ.
      depth: Number of layers, N.
      final_norm: Function that returns the norm of the stack's output, for layers that do not end in a norm.
        None means no norm.
      remat: Whether the backward pass recomputes the activations of each layer. Training then needs less
        memory but more time.
      scan: Whether to compile one layer that runs N times. Deep stacks then compile faster. All layers must
        have parameters with the same shapes. The names and shapes of parameters do not depend on this field.
      shared: Whether all N layers are the same module with the same parameters.
      before_layer: Function or module that changes the input of each layer, for example by adding an encoding
        of the layer's index: (x, index of the layer, positions) -> array like x. With `scan`, the index is
        traced. None changes nothing.
      make_output: Function that returns a module. The module maps the outputs of all layers (a list of N
        arrays [B, L, D]) and the mask of self-attention (or None) to the output of the stack. A position that
        may attend to nothing is padding. The stack then ignores `final_norm`. With None, the stack returns
        the output of the last layer after the final norm.
    """

    make_layer: Callable[[int], nn.Module]
    depth: int
    final_norm: Callable[[], nn.Module] | None = None
    remat: bool = False
    scan: bool = False
    shared: bool = False
    before_layer: Callable[[Array, Any, Array | None], Array] | None = None
    make_output: Callable[[], nn.Module] | None = None

    def setup(self) -> None:
        self.layers = [self.make_layer(index) for index in range(1 if self.shared else self.depth)]
        self.norm = self.final_norm() if self.final_norm else lambda x: x
        self.prepare = self.before_layer or (lambda x, index, positions: x)
        if self.make_output is not None:
            self.output = self.make_output()

    def __call__(self, x: Array, *arguments: Any, train: bool, **keywords: Any) -> Any:
        """Applies all layers to x [B, L, D].

        Every layer receives all other arguments, too.

        Returns:
          [B, L, D], or the result of the module that `make_output` returns.

        Raises:
          UserError: If `scan` is set, but the layers differ.
        """
        # Observers cannot read activations inside a scan or a recomputation.
        plain = self.is_initializing() or is_active()
        mask, positions = keywords.get("mask"), keywords.get("positions")
        if self.scan and not plain:
            return self._finish(self._scanned(x, arguments, keywords | {"train": train}), mask)

        def call(layer, x):
            return layer(x, *arguments, train=train, **keywords)

        outputs = []
        transform = call if plain else shards.remat(call, everything=self.remat)
        with with_positions(positions):
            for index, layer in self._steps():
                x = transform(layer, self.prepare(x, index, positions))
                outputs.append(x)
            return self._finish(outputs, mask)

    def _steps(self) -> Iterator[tuple[int, nn.Module]]:
        """Returns (index, layer) for each of the N layers. With `shared`, it is always the same layer."""
        return ((index, self.layers[0 if self.shared else index]) for index in range(self.depth))

    def _finish(self, outputs: list[Array], mask: AttentionMask | Array | None) -> Any:
        """Computes the output of the stack from the outputs of all layers."""
        if self.make_output is not None:
            length = outputs[-1].shape[1]
            return self.output(outputs, mask_to_array(mask, length, length))
        return observe(self, "output", self.norm(outputs[-1]))

    def _scanned(self, x, arguments, keywords):
        """Applies all layers to x [B, L, D] in a `jax.lax.scan` over their stacked parameters.

        Returns the outputs of all layers, or of the last layer only if the stack does not need the others.
        """
        layers = [layer.unbind()[0] for layer in self.layers]
        whole = [layer.variables["params"] for layer in self.layers]
        params = [shards.find_shards(tree) for tree in whole]
        if len(set(map(jax.tree.structure, params))) > 1:  # A loss has changed the parameters of some layers.
            params = whole
        keys = None
        prepare: Any = self.prepare
        if keywords["train"] and self.has_rng("dropout"):
            keys = jax.random.split(self.make_rng("dropout"), self.depth)
        if isinstance(prepare, nn.Module):  # A scan may not call a module of the model.
            module, variables = prepare.unbind()
            prepare = functools.partial(module.apply, variables)

        def call(x, step, layer=layers[0]):
            index, own, key = step
            x = prepare(x, index, keywords.get("positions"))
            options = keywords | {"rngs": None if key is None else {"dropout": key}, "mutable": [LOSS_TERMS]}
            tree = {"params": shards.gather(params[0] if self.shared else own)}
            output, state = layer.apply(tree, x, *arguments, **options)
            output = output.astype(x.dtype)  # A replaced part may return float32 for bfloat16.
            return output, (output if self.make_output else None, state.get(LOSS_TERMS, {}))

        def trace(index):
            one = functools.partial(call, layer=layers[index])
            program = jax.make_jaxpr(one)(x, (0, params[index], None if keys is None else keys[0]))
            return Program(str(program), program.consts)

        self._check_scan(trace)
        if self.remat or shards.is_gathering():
            call = jax.checkpoint(call, policy=None if self.remat else shards.keep_all_but_gathered)
        stacked = None if self.shared else jax.tree.map(lambda *x: jnp.stack(x), *params)
        x, (outputs, terms) = jax.lax.scan(call, x, (jnp.arange(self.depth), stacked, keys))
        self._add_terms(terms)
        return [x] if outputs is None else list(outputs)

    def _add_terms(self, terms: Any) -> None:
        """Adds the loss terms of the scanned layers, whose leaves are (sum [N], count [N])."""
        if not terms or not self.is_mutable_collection(LOSS_TERMS):
            return
        for index in range(len(self.layers)):
            own = slice(None) if self.shared else slice(index, index + 1)
            total = jax.tree.map(lambda x, own=own: x[own].sum(), terms)
            self.put_variable(LOSS_TERMS, f"layers_{index}", total)

    def _check_scan(self, trace: Callable[[int], Program]) -> None:
        """Raises a UserError unless one compiled layer can compute all layers of this stack.

        Args:
          trace: Function that returns the program of the layer with an index. Layers with equal programs have
            equal shapes, windows and dropout, and compute the same in all other respects.
        """
        has_state = any(layer.variables.keys() - {"params", LOSS_TERMS} for layer in self.layers)
        if has_state or any(not _are_equal(trace(0), trace(index)) for index in range(1, len(self.layers))):
            raise UserError(
                "model.scan needs equal layers without state, but the layers of this stack differ or have "
                "state. Set model.scan=False."
            )

    def init_cache(
        self, example: Array, encoder_output: Array | None = None, *, width: int, max_length: int
    ) -> list[Any]:
        """Returns a list with the cache of each layer. See `Layer.init_cache` for the arguments."""
        options = {"width": width, "max_length": max_length}
        return [layer.init_cache(example, encoder_output, **options) for _, layer in self._steps()]

    def decode_step(
        self, x: Array, caches: list[Any], position: Array, **where: Any
    ) -> tuple[Any, list[Any]]:
        """Computes the next position of each of W hypotheses.

        Args:
          x: Input of the first layer, [B, W, D].
          caches: The cache of each layer.
          position, **where: See `Layer.decode_step`.

        Returns:
          The output of the stack, [B, W, D] unless `make_output` is set, and the cache of each layer.
        """
        with with_positions(where["positions"]):
            outputs, written = self._run_cached("decode_step", x, caches, position, **where)
            return self._finish(outputs, where["mask"]), written

    def prefill(self, x: Array, caches: list[Any], **where: Any) -> list[Any]:
        """Appends x [B, P', D] to the prefix of all layers, see `Layer.prefill`. Returns the caches."""
        with with_positions(where["positions"]):
            return self._run_cached("prefill", x, caches, **where)[1]

    def _run_cached(
        self, method: str, x: Array, caches: list[Any], *arguments: Array, **where: Any
    ) -> tuple[list[Array], list[Any]]:
        """Calls a method of all layers. Returns the output and the cache of each layer."""
        outputs, written = [], []
        for (index, layer), cache in zip(self._steps(), caches, strict=True):
            x = self.prepare(x, index, where["positions"])
            x, cache = getattr(layer, method)(x, cache, *arguments, **where)
            outputs.append(x)
            written.append(cache)
        return outputs, written


def _are_equal(program: Program, other: Program) -> bool:
    """Returns whether two programs have the same operations and constants.

    Functions that a program names, such as custom gradients, are printed with addresses, which do not count.
    """
    text, other_text = (re.sub(" at 0x[0-9a-f]+", "", each.text) for each in (program, other))
    constants = list(zip(program.constants, other.constants, strict=False))
    return text == other_text and all(
        a is b or (not isinstance(a, Tracer) and not isinstance(b, Tracer) and np.array_equal(a, b))
        for a, b in constants
    )
