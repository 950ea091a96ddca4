"""Contracts of models, as pytest classes over tiny models.

All tests of a case share one compiled program, because compiling takes much longer than computing.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.io.tree_paths import join_path
from tfm.layers.observe import read_attention
from tfm.search.loops import resize
from tfm.testing.parameters import random_parameters

COMPILE_QUICKLY = {"xla_backend_optimization_level": 0}
VOCABULARY, LENGTH, WIDTH, PREFIX = 20, 6, 2, 3
_RNG = np.random.default_rng(0)


def quick_jit(function: Any = None, **options: Any) -> Any:
    """Compiles like `jax.jit`, but spends little time on optimization. Suits programs that run once."""
    if function is None:
        return functools.partial(quick_jit, **options)
    return jax.jit(function, compiler_options=COMPILE_QUICKLY, **options)


def assert_trees_close(actual: Any, expected: Any, **tolerance: Any) -> None:
    """Asserts that two trees have the same structure and close leaves. An empty tree fails."""
    assert jax.tree.leaves(actual), "the tree has no leaves"
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), actual, expected)


def mean_loss(outputs: Any) -> jax.Array:
    """Returns a loss whose gradient reaches everything that the logits [..., V] of each output depend on."""

    def of_logits(logits: jax.Array) -> jax.Array:
        labels = jnp.arange(logits[..., 0].size).reshape(logits.shape[:-1]) % logits.shape[-1]
        log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
        return -jnp.take_along_axis(log_probabilities, labels[..., None], -1).mean()

    return sum(map(of_logits, jax.tree.leaves(outputs)), jnp.float32(0))


def join_outputs(outputs: Any) -> jax.Array:
    """Returns the only output of a model, or several outputs as one flat array."""
    leaves = jax.tree.leaves(outputs)
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(list(map(jnp.ravel, leaves)))


class ModelContract:
    """The contract of every model.

    Attributes:
      cases: {name: model}. The first model is also tested with dropout, in bfloat16, with remat and scan.
      deviation: standard deviation of the random parameters.
      without_gradient: ends of the paths of parameters that cannot change the output, such as biases of keys.
    """

    cases: ClassVar[Mapping[str, nn.Module]] = {}
    deviation: ClassVar[float] = 0.25
    without_gradient: ClassVar[tuple[str, ...]] = ()
    VARIANTS: ClassVar[Mapping[str, dict[str, Any]]] = {
        "remat": {"remat": True},
        "scan": {"scan": True},
        "remat and scan": {"remat": True, "scan": True},
    }

    def arguments(self) -> tuple[np.ndarray, ...]:
        """Returns the arguments of the call."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrizes each test by all cases, or by the variants of the first case."""
        if "model" in metafunc.fixturenames:
            metafunc.parametrize("model", self.cases.values(), ids=self.cases.keys())
        if "variant" in metafunc.fixturenames:
            base = next(iter(self.cases.values()))
            names = {field.name for field in dataclasses.fields(base.config)}
            variants = {name: changes for name, changes in self.VARIANTS.items() if changes.keys() <= names}
            metafunc.parametrize("variant", variants.values(), ids=variants.keys())

    def first(self, **fields: Any) -> nn.Module:
        """Returns the first case with other values of some fields. Skips the test if a field is missing."""
        model = next(iter(self.cases.values()))
        missing = fields.keys() - {field.name for field in dataclasses.fields(model.config)}
        if missing:
            pytest.skip(f"the config has no {', '.join(missing)}")
        return model.clone(config=dataclasses.replace(model.config, **fields))

    def parameters(self, model: nn.Module) -> Any:
        """Returns random parameters of a model, none of them zero."""
        contract: Any = type(self)
        return _parameters(contract, model)

    def apply(self, model: nn.Module, params: Any, *, train: bool = False, seed: int = 0) -> np.ndarray:
        """Returns the outputs for the arguments of the contract; see `join_outputs`."""
        return np.asarray(_apply(model, params, self.arguments(), train, seed), np.float32)

    def gradient(self, model: nn.Module) -> Any:
        """Returns the gradient of a loss with respect to the parameters of the first case."""
        return _gradient(model, self.parameters(self.first(dropout=0.0)), self.arguments())

    def test_every_parameter_has_a_finite_gradient(self, model):
        self.check_gradient(_gradient(model, self.parameters(model), self.arguments()))

    def check_gradient(self, gradient: Any) -> None:
        """Asserts that every leaf of a gradient is finite and not zero."""
        for path, x in jax.tree_util.tree_leaves_with_path(gradient):
            name = join_path(path)
            assert np.isfinite(x).all(), name
            assert name.endswith(self.without_gradient) or x.any(), name

    def test_parameters_are_float32(self, model):
        assert {x.dtype for x in jax.tree.leaves(self.parameters(model))} == {np.dtype(np.float32)}

    def test_dropout_follows_the_seed_and_is_off_outside_training(self):
        model, params = self.first(dropout=0.5), self.parameters(self.first())
        one, again, other = (self.apply(model, params, train=True, seed=seed) for seed in (0, 0, 1))
        np.testing.assert_array_equal(one, again)
        assert np.abs(one - other).max() > 1e-3
        np.testing.assert_allclose(self.apply(model, params), self.apply(self.first(), params), atol=1e-5)

    def test_bfloat16_is_near_float32_and_keeps_float32_parameters(self):
        low, params = self.first(dtype="bfloat16"), self.parameters(self.first())
        assert {x.dtype for x in jax.tree.leaves(self.parameters(low))} == {np.dtype(np.float32)}
        expected = self.apply(self.first(), params)
        outputs = _apply(low, params, self.arguments(), False, 0)
        assert outputs.dtype == jnp.bfloat16
        np.testing.assert_allclose(outputs.astype(np.float32), expected, atol=0.05 * np.abs(expected).max())

    def test_how_layers_are_compiled_changes_no_gradient(self, variant):
        plain = self.gradient(self.first(dropout=0.0))
        other = self.gradient(self.first(dropout=0.0, **variant))
        assert_trees_close(other, plain, rtol=1e-3, atol=1e-5)


class Outputs(NamedTuple):
    """The logits that one compiled program computes for a model, and a gradient.

    Attributes:
      gradient: gradient of a loss over all other outputs except `cached`.
      cached: [T, B, W, V] from decoding with a cache whose hypotheses are reordered after every step.
      forward: [T, B, W, V] from forward passes over the tokens that each hypothesis had read at each step.
      plain: [B, L, V] from a forward pass over the last history of the first hypothesis of each row.
      later: [B, L, V] from the same tokens with other tokens from position 3 on.
      apart: [2, L, V] from two sentences, each in its row.
      packed: [1, L, V] from the two sentences in one row.
      sources: [M, B, L, V], like `plain`, with another source token at each of M positions. None without a
        source.
      attention: weights [layers, B, H, L, M] of the attention to the source in the forward pass of `plain`.
        None without such attention.
    """

    gradient: Any
    cached: Any
    forward: Any
    plain: Any
    later: Any
    apart: Any
    packed: Any
    sources: Any = None
    attention: Any = None


TOKENS = _RNG.integers(3, VOCABULARY, (LENGTH, 2, WIDTH))  # for each step, row and hypothesis
PARENTS = _RNG.integers(0, WIDTH, TOKENS.shape)
FIRST, SECOND = np.array([5, 6]), np.array([7, 8, 9, 10])  # the two sentences of a packed row
PACKED = np.concatenate([FIRST, SECOND])[None]
SEGMENTS, POSITIONS = np.array([[1, 1, 2, 2, 2, 2]]), np.array([[0, 1, 0, 1, 2, 3]])
APART = np.stack([np.pad(each, (0, LENGTH - len(each))) for each in (FIRST, SECOND)])


def histories() -> np.ndarray:
    """Returns [T, B, W, L]: the tokens that each hypothesis has read at step T, padded with 0."""
    history, prefixes = np.zeros((2, WIDTH, 0), int), []
    for tokens, parents in zip(TOKENS, PARENTS, strict=True):
        history = np.concatenate([history, tokens[..., None]], -1)
        prefixes.append(np.pad(history, ((0, 0), (0, 0), (0, LENGTH - history.shape[-1]))))
        history = np.take_along_axis(history, parents[..., None], 1)
    return np.stack(prefixes)


HISTORIES = histories()
LATER = HISTORIES[-1, :, 0].copy()
LATER[:, 3:] = 3 + LATER[:, 3:] % (VOCABULARY - 4)


def forward_and_gradient(model: nn.Module, params: Any, *arguments: np.ndarray) -> Any:
    """Returns (gradient of a loss, (logits, attention to the source)) from one forward and backward pass."""
    point = getattr(model, "attention_points", {}).get("cross")

    def loss(params):
        apply: Any = functools.partial(model.apply, {"params": params}, *arguments, train=False)
        logits, attention = read_attention(point, apply) if point else (apply(), None)
        return mean_loss(logits), (logits, attention)

    return jax.grad(loss, has_aux=True)(params)


def decode(model: nn.Module, params: Any, cache: Any) -> jax.Array:
    """Returns the logits [T, B, W, V] of steps over `TOKENS`. After a step, hypotheses continue `PARENTS`."""

    def step(cache, now):
        position, tokens, parents = now
        logits, cache = model.apply({"params": params}, tokens, cache, position, method="decode_step")
        return cache.reorder(parents), logits

    return jax.lax.scan(step, cache, (jnp.arange(LENGTH), TOKENS, PARENTS))[1]


class SequenceContract(ModelContract):
    """The contract of a causal model of tokens, in one forward pass and step by step with a cache.

    Attributes:
      packs: whether a sentence has the same logits in a packed row. Batch norm, for example, cannot pack.
    """

    packs: ClassVar[bool] = True

    def program(self, model: nn.Module, params: Any) -> Outputs:
        """Computes all outputs of a model."""
        raise NotImplementedError

    def outputs(self, model: nn.Module) -> Outputs:
        """Returns the outputs. They are computed once for all tests."""
        contract: Any = type(self)
        return _outputs(contract, model)

    def test_every_parameter_has_a_finite_gradient(self, model):
        self.check_gradient(self.outputs(model).gradient)

    def test_every_case_is_another_model(self, model):
        first = next(iter(self.cases.values()))
        if _computes_the_same(model, first):
            pytest.skip("the case differs from the first case at most in how its layers are compiled")
        assert np.abs(self.outputs(model).plain - self.outputs(first).plain).max() > 1e-3

    def test_cached_decoding_equals_the_forward_pass(self, model):
        outputs = self.outputs(model)
        np.testing.assert_allclose(outputs.cached, outputs.forward, atol=5e-5)

    def test_logits_do_not_depend_on_later_tokens(self, model):
        outputs = self.outputs(model)
        np.testing.assert_allclose(outputs.later[:, :3], outputs.plain[:, :3], atol=1e-6)
        assert np.abs(outputs.later - outputs.plain)[:, 3:].max(-1).min() > 1e-4

    def test_packed_sentences_equal_separate_ones(self, model):
        if not self.packs:
            pytest.skip("the model depends on the other sentences of its batch")
        outputs, first = self.outputs(model), len(FIRST)
        np.testing.assert_allclose(outputs.packed[0, :first], outputs.apart[0, :first], atol=2e-5)
        np.testing.assert_allclose(outputs.packed[0, first:], outputs.apart[1, : len(SECOND)], atol=2e-5)


class LanguageModelContract(SequenceContract):
    """The contract of a `tfm.decoding.protocol.LanguageModel`."""

    PREFIXES: ClassVar[np.ndarray] = np.array([[5, 6, 7], [9, 0, 0]])

    def arguments(self) -> tuple[np.ndarray, ...]:
        return (HISTORIES[-1].reshape(-1, LENGTH),)

    def program(self, model: nn.Module, params: Any) -> Outputs:
        variables, lengths = {"params": params}, (self.PREFIXES > 0).sum(-1)
        rows = np.zeros((*HISTORIES.shape[:-1], PREFIX + LENGTH), int)
        for row, (prefix, length) in enumerate(zip(self.PREFIXES, lengths, strict=True)):
            rows[:, row, :, :length] = prefix[:length]
            rows[:, row, :, length : length + LENGTH] = HISTORIES[:, row]
        others = np.pad(np.concatenate([HISTORIES[-1, :, 0], LATER, APART]), ((0, 0), (0, PREFIX)))
        tokens = np.concatenate([rows.reshape(-1, rows.shape[-1]), others])
        gradient, (logits, _) = forward_and_gradient(model, params, tokens)
        forward = logits[: -len(others)].reshape(*rows.shape, -1)
        steps, batch = np.ogrid[:LENGTH, :2]
        forward = forward[steps, batch, :, lengths + steps]  # the logits at the last token of each history
        plain, later, apart = jnp.split(logits[-len(others) :, :LENGTH], 3)
        packed = model.apply(variables, PACKED, segments=SEGMENTS, positions=POSITIONS, train=False)
        begin = functools.partial(model.apply, width=WIDTH, max_length=LENGTH, method="init_cache")
        cache = begin(variables, self.PREFIXES[:, :2])
        cache = model.apply(variables, self.PREFIXES[:, 2:], cache, method="prefill")
        return Outputs(gradient, decode(model, params, cache), forward, plain, later, apart, packed)

    def test_a_prefix_read_at_once_or_in_pieces_gives_one_cache(self):
        model = self.first()

        @quick_jit
        def run(params):
            apply: Any = functools.partial(model.apply, {"params": params})
            begin = functools.partial(apply, width=WIDTH, max_length=LENGTH, method="init_cache")
            whole, pieces = begin(self.PREFIXES), begin(self.PREFIXES[:, :1])
            pieces = apply(self.PREFIXES[:, 1:], pieces, method="prefill")
            return [apply(TOKENS[0], cache, 0, method="decode_step")[0] for cache in (whole, pieces)]

        whole, pieces = run(self.parameters(model))
        np.testing.assert_allclose(pieces, whole, atol=1e-5)


class SequenceToSequenceContract(SequenceContract):
    """The contract of a `tfm.decoding.protocol.SequenceToSequence`.

    Attributes:
      normalized: whether the attention weights of a query sum to 1.
    """

    normalized: ClassVar[bool] = True
    SOURCES: ClassVar[np.ndarray] = np.array([[5, 9, 4, 12, 7, 2], [8, 14, 2, 0, 0, 0]])

    def arguments(self) -> tuple[np.ndarray, ...]:
        return np.repeat(self.SOURCES, WIDTH, axis=0), HISTORIES[-1].reshape(-1, LENGTH)

    def program(self, model: nn.Module, params: Any) -> Outputs:
        variables = {"params": params}
        others = np.tile(self.SOURCES, (self.SOURCES.shape[1], 1, 1))  # each copy gets one other token
        for position, rows in enumerate(others):
            rows[:, position] = np.where(rows[:, position] > 0, 3 + rows[:, position] % 9, 0)
        read = HISTORIES[-1, :, 0]
        blocks = [  # (sources, targets)
            (np.tile(self.arguments()[0], (LENGTH, 1)), HISTORIES.reshape(-1, LENGTH)),
            (self.SOURCES, read),
            (self.SOURCES, LATER),
            (APART, APART),
            (others.reshape(-1, LENGTH), np.tile(read, (len(others), 1))),
        ]
        sources, targets = (np.concatenate(side) for side in zip(*blocks, strict=True))
        gradient, (logits, attention) = forward_and_gradient(model, params, sources, targets)
        ends = np.cumsum([len(block) for block, _ in blocks])
        forward, plain, later, apart, changed = jnp.split(logits, ends[:-1])
        forward = forward.reshape(*HISTORIES.shape, -1)[np.arange(LENGTH), :, :, np.arange(LENGTH)]
        attention = None if attention is None else attention[:, ends[0] : ends[1]]
        names = ("input", "target")
        packing: dict[str, Any] = dict.fromkeys((f"{side}_segments" for side in names), SEGMENTS)
        packing |= dict.fromkeys((f"{side}_positions" for side in names), POSITIONS)
        packed = model.apply(variables, PACKED, PACKED, train=False, **packing) if self.packs else apart
        begin = functools.partial(model.apply, variables, self.SOURCES, width=WIDTH, method="init_cache")
        # A search extends a cache with space for fewer steps.
        cache = resize(begin(max_length=1), jax.eval_shape(lambda: begin(max_length=LENGTH + 1)))
        cached = decode(model, params, cache)
        changed = changed.reshape(-1, *plain.shape)
        return Outputs(gradient, cached, forward, plain, later, apart, packed, changed, attention)

    def test_every_source_token_reaches_every_target_position(self, model):
        outputs = self.outputs(model)
        difference = np.abs(outputs.sources - outputs.plain).max(-1)  # [M, B, L]
        assert difference[:, 0].min() > 1e-7, "some source token is ignored"
        assert difference[:, 0].max(0).min() > 1e-5, "some position ignores the source"
        # The batches differ, so some processors round a value in another way.
        assert difference[3:, 1].max() < 1e-6, "padding of the source is read"

    def test_attention_to_the_source_is_a_distribution_over_its_tokens(self, model):
        attention = self.outputs(model).attention
        if attention is None:
            assert model is not next(iter(self.cases.values())), "the first case must have attention"
            pytest.skip("the model has no attention to the source")
        assert (attention.shape[1], *attention.shape[3:]) == (2, LENGTH, self.SOURCES.shape[1])
        assert not attention[:, 1, ..., 3:].any(), "padding is attended to"
        assert attention[:, 1, ..., :3].any()
        if self.normalized:
            np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-5)


class EncoderContract(ModelContract):
    """The contract of a model that reads all tokens of a row at once. Outputs are [B, ...] or [B, L, ...]."""

    TOKENS: ClassVar[np.ndarray] = np.array([[5, 9, 4, 12, 7, 2], [8, 14, 2, 0, 0, 0]])

    def arguments(self) -> tuple[np.ndarray, ...]:
        return (self.TOKENS,)

    def test_every_token_reaches_every_output_and_padding_reaches_none(self, model):
        params, (rows, length) = self.parameters(model), self.TOKENS.shape
        others = np.tile(self.TOKENS, (length, 1, 1))  # each copy gets one other token, also in the padding
        for position, copy in enumerate(others):
            copy[:, position] = np.where(copy[:, position] > 0, 3 + copy[:, position] % 9, 0)
        apply = quick_jit(lambda params, tokens: model.apply({"params": params}, tokens, train=False))
        outputs = jax.tree.leaves(apply(params, np.concatenate([self.TOKENS, *others])))
        alone = jax.tree.leaves(apply(params, self.TOKENS[1:, :3]))
        for output, short in zip(outputs, alone, strict=True):
            plain, changed = output[:rows], output[rows:].reshape(length, *output[:rows].shape)
            assert np.abs(changed - plain)[:, 0].max(-1).min() > 1e-7, "some token is ignored"
            expected = plain[1, :3] if plain.ndim == 3 else plain[1]
            np.testing.assert_allclose(short[0], expected, atol=2e-5, err_msg="padding is read")


class ClassifierContract(ModelContract):
    """The contract of a model of images."""

    IMAGES: ClassVar[np.ndarray] = _RNG.normal(size=(3, 6, 6, 2)).astype(np.float32)

    def arguments(self) -> tuple[np.ndarray, ...]:
        return (self.IMAGES,)

    def test_examples_do_not_depend_on_each_other(self, model):
        params = self.parameters(model)
        alone = _apply(model, params, (self.IMAGES[:1],), False, 0)
        np.testing.assert_allclose(alone, self.apply(model, params)[:1], atol=1e-5)


def _computes_the_same(model: nn.Module, other: nn.Module) -> bool:
    """Returns whether two models differ at most in `remat` and `scan`."""
    if type(model) is not type(other):
        return False
    names = {"remat", "scan"} & {field.name for field in dataclasses.fields(model.config)}
    plain = {name: getattr(other.config, name) for name in names}
    return dataclasses.replace(model.config, **plain) == other.config


# Results for each model. A key is the class, because pytest makes a new instance for each test.


@functools.cache
def _parameters(contract: Any, model: nn.Module) -> Any:
    return random_parameters(model, *contract().arguments(), deviation=contract.deviation)


@functools.cache
def _outputs(contract: Any, model: nn.Module) -> Outputs:
    run = quick_jit(lambda params: contract().program(model, params))
    return jax.tree.map(np.asarray, run(contract().parameters(model)))


@quick_jit(static_argnums=(0, 3))
def _apply(model, params, arguments, train, seed):
    rngs = {"dropout": jax.random.key(seed)}
    variables = {**_initial_state(model, arguments), "params": params}
    # Also without a state, the outputs are a pair if there are mutable collections.
    outputs, _ = model.apply(variables, *arguments, train=train, rngs=rngs, mutable=["batch_stats"])
    return join_outputs(outputs)


@quick_jit(static_argnums=0)
def _gradient(model, params, arguments):
    state = _initial_state(model, arguments)
    return jax.grad(lambda p: mean_loss(model.apply({**state, "params": p}, *arguments, train=False)))(params)


def _initial_state(model, arguments):
    """Returns {collection: tree} of the variables of a model that are not parameters."""
    variables = model.init(jax.random.key(0), *arguments, train=False)
    return {name: tree for name, tree in variables.items() if name != "params"}
