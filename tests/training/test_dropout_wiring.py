"""Tests where a model applies dropout (section 5.4 of the paper), and which random keys it uses."""

import collections
import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.references import numpy_transformer as numpy64
from tests.support.bare_task import make_state, make_step
from tfm import attention, layers
from tfm.layers import residual
from tfm.models import Transformer, TransformerConfig
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters
from tfm.training.task import LossOutput

TINY = TransformerConfig(encoder_layers=2, decoder_layers=2, d_model=16, d_ff=24, heads=2, dropout=0.1)
RNG = np.random.default_rng(0)
INPUTS, TARGETS = RNG.integers(3, 30, (4, 5)), RNG.integers(3, 30, (4, 6))
BATCH = {"inputs": INPUTS, "targets": TARGETS}
STACKS = {
    "encoder": ("self_attention", "feed_forward"),
    "decoder": ("self_attention", "cross_attention", "feed_forward"),
}
PAPERS = ["dropout", "dropout"] + [
    f"{stack}/layers_{layer}/{sublayer}_residual/Dropout_0"
    for stack, names in STACKS.items()
    for layer in range(2)
    for sublayer in names
]


def build(**fields):
    model = Transformer(dataclasses.replace(TINY, **fields), vocabulary_size=30)
    return model, random_parameters(model, INPUTS, TARGETS)


def drop(model, params, train=True):
    rngs = {"dropout": jax.random.key(0)}
    return model.apply({"params": params}, INPUTS, TARGETS, train=train, rngs=rngs)


@pytest.fixture
def replace_dropout(monkeypatch):
    """Returns a function that replaces dropout by a function (rng, x, rate) in the whole package."""

    def replace(function):
        for module in (residual, attention):
            monkeypatch.setattr(module, "dropout", lambda *args: function(*args) if args[2] else args[1])

    return replace


@pytest.mark.long
@pytest.mark.parametrize("order", ["post", "pre", "norm_then_add"])
def test_dropout_is_applied_where_the_paper_says(order, replace_dropout):
    """Dropout is replaced by tanh. NumPy applies tanh only to embedding sums and sublayer outputs."""
    replace_dropout(lambda rng, x, rate: jnp.tanh(x))
    model, params = build(norm_order=order)
    found = quick_jit(functools.partial(drop, model))(params)
    expected = numpy64.transformer(params, INPUTS, TARGETS, order, np.tanh)
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.long
def test_dropout_rates_reach_their_layers(replace_dropout):
    rates = collections.Counter()
    replace_dropout(lambda rng, x, rate: rates.update({(rate, x.ndim): 1}) or x)
    model, params = build(attention_dropout=0.2, feed_forward_dropout=0.3)
    jax.eval_shape(functools.partial(drop, model), params)
    assert rates == {(0.1, 3): 2 + 4 + 6, (0.2, 4): 2 + 4, (0.3, 3): 2 + 2}
    rates.clear()
    jax.eval_shape(functools.partial(drop, model, train=False), params)
    assert not rates


class Recorder:
    """Records the dropout keys that a compiled program computes, by the path of their module."""

    def __init__(self):
        self.keys, self._path = collections.defaultdict(list), None

    def intercept(self, next_function, arguments, keywords, context):
        if isinstance(context.module, (layers.Dropout, layers.MultiHeadAttention)):
            self._path = "/".join(context.module.path)
        return next_function(*arguments, **keywords)

    def dropout(self, rng, x, rate):
        path = self._path
        jax.debug.callback(lambda key: self.keys[path].append(tuple(key.tolist())), jax.random.key_data(rng))
        return x

    def take(self):
        """Returns {path: keys} since the last call."""
        jax.effects_barrier()
        found, self.keys = dict(self.keys), collections.defaultdict(list)
        return found


@pytest.fixture
def recorder(replace_dropout):
    found = Recorder()
    replace_dropout(found.dropout)
    with nn.intercept_methods(found.intercept):
        yield found


def train_step_of(model):
    """Returns a training step that calls `model` but trains another parameter, which compiles faster."""

    def loss(variables, batch, context):
        logits = model.apply({"params": parameters()}, **batch, train=True, rngs={"dropout": context.rng})
        return LossOutput({"loss": (variables["params"]["other"], jnp.float32(logits.size))})

    return make_step(loss, optax.sgd(0.0), seed=1)


def state_of(step):
    return make_state({"other": np.float32(1)}, optax.sgd(0.0)).replace(step=np.int32(step))


def assert_distinct(keys, number):
    assert len(keys) == len(set(keys)) == number


MODEL = Transformer(TINY, vocabulary_size=30)


@functools.cache
def parameters():
    return build()[1]


@pytest.mark.long
def test_each_dropout_layer_and_step_has_its_own_key(recorder):
    step = quick_jit(train_step_of(MODEL))
    seen = []
    for number in range(3):
        step(state_of(number), BATCH)
        found = recorder.take()
        assert sorted(path for path, keys in found.items() for _ in keys) == sorted(PAPERS)
        seen += [key for keys in found.values() for key in keys]
    assert_distinct(seen, 3 * len(PAPERS))
    step(state_of(0), BATCH)  # a repeated step has the same keys
    again = [key for keys in recorder.take().values() for key in keys]
    assert set(again) == set(seen[: len(PAPERS)])


@pytest.mark.long
@pytest.mark.parametrize("remat", [False, True])
def test_scanned_layers_have_their_own_keys(remat, recorder):
    model = Transformer(dataclasses.replace(TINY, scan=True, remat=remat), vocabulary_size=30)
    quick_jit(train_step_of(model))(state_of(0), BATCH)
    keys = [key for keys in recorder.take().values() for key in keys]
    assert_distinct(keys, len(PAPERS))


@pytest.mark.long
@pytest.mark.parametrize("scan", [False, True])
def test_recomputed_layers_drop_the_same_elements(scan):
    """The backward pass of remat computes the layers again. Other elements would change the gradients."""
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "dropout": 0.5, "scan": scan}

    def compute_gradients(remat):
        model, params = build(**sizes, remat=remat)

        def loss(params):
            rngs = {"dropout": jax.random.key(3)}
            return (model.apply({"params": params}, INPUTS, TARGETS, train=True, rngs=rngs) ** 2).mean()

        return quick_jit(jax.grad(loss))(params)

    plain, recomputed = map(compute_gradients, (False, True))
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(plain))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), recomputed, plain)
