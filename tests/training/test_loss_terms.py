"""Tests of loss terms that a module deep in a model adds, for any task and any way to run a stack."""

import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.support import tiny, tiny_lm
from tests.support.bare_task import make_state, make_step
from tfm import layers
from tfm.layers.loss_terms import add_loss_term
from tfm.models import Transformer
from tfm.models.decoder_lm import DecoderLM
from tfm.tasks.language_modeling import LanguageModeling
from tfm.tasks.translation.task import Translation
from tfm.training.loss_calls import apply_model, check_output
from tfm.training.task import Context, LossOutput

X = np.random.default_rng(0).normal(size=(6, 3, 8)).astype(np.float32)
IS_TOKEN = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1], [1, 1, 0]], bool)


class Costly(nn.Module):
    """A layer with a loss term, the mean square of its outputs at tokens."""

    @nn.compact
    def __call__(self, x, *, mask, positions=None, train):
        x = x + nn.Dense(x.shape[-1])(x)
        is_token = mask.any(-1)[:, 0, :, None]
        add_loss_term(self, "square", (x**2 * is_token).sum(), x.shape[-1] * is_token.sum())
        return x


def call(stack, params, context):
    """Returns the output of a loss whose only own term is 0."""
    mask = jnp.asarray(IS_TOKEN)[:, None, :, None]
    _, state = apply_model(stack, {"params": params}, X, mask=mask, context=context)
    return check_output(LossOutput({"loss": (jnp.float32(0), jnp.float32(1))}, {}, state), {})


def expected_terms(params, names):
    """Returns {name: (sum, count)}, computed in NumPy. A shared layer runs with the same name."""
    x, terms = X, {}
    for name in names:
        dense = params[name]["Dense_0"]
        x = x + x @ np.asarray(dense["kernel"]) + np.asarray(dense["bias"])
        total, count = terms.get(name, (0, 0))
        terms[name] = total + (x[IS_TOKEN] ** 2).sum(), count + 8 * IS_TOKEN.sum()
    return {f"{name}.square": pair for name, pair in terms.items()}


@pytest.mark.parametrize(("remat", "scan", "shared"), [*itertools.product([False, True], repeat=3)], ids=str)
def test_layers_of_a_stack_add_terms_however_the_stack_runs(remat, scan, shared):
    stack = layers.Stack(lambda index: Costly(), depth=3, remat=remat, scan=scan, shared=shared)
    variables = stack.init(jax.random.key(0), X, mask=jnp.ones((6, 1, 3, 3), bool), train=False)
    assert variables.keys() == {"params"}
    params = variables["params"]
    terms = jax.jit(lambda params: call(stack, params, Context(0, jax.random.key(1))).terms)(params)
    names = ["layers_0"] * 3 if shared else ["layers_0", "layers_1", "layers_2"]
    expected = expected_terms(params, names)
    assert terms.keys() == expected.keys() | {"loss"}
    for name, pair in expected.items():
        np.testing.assert_allclose(terms[name], pair, rtol=1e-5)


def test_outside_of_training_modules_add_nothing():
    stack = layers.Stack(lambda index: Costly(), depth=1)
    params = stack.init(jax.random.key(0), X, mask=jnp.ones((6, 1, 3, 3), bool), train=False)["params"]
    assert call(stack, params, Context()).terms.keys() == {"loss"}


@pytest.mark.long
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_step_descends_the_mean_of_a_term_over_all_rows(micro_batches):
    stack = layers.Stack(lambda index: Costly(), depth=2)
    params = stack.init(jax.random.key(0), X, mask=jnp.ones((6, 1, 3, 3), bool), train=False)["params"]

    def loss(variables, batch, context):
        mask = batch["is_token"][:, None, :, None]
        _, state = apply_model(stack, variables, batch["x"], mask=mask, context=context)
        return LossOutput({"loss": (jnp.float32(0), jnp.float32(1))}, {}, state)

    def mean(params):
        x, total = jnp.asarray(X), 0.0
        for name in ("layers_0", "layers_1"):
            x = x + x @ params[name]["Dense_0"]["kernel"] + params[name]["Dense_0"]["bias"]
            total += (x**2 * IS_TOKEN[..., None]).sum() / (8 * IS_TOKEN.sum())
        return total

    optimizer = optax.sgd(1.0)
    step = jax.jit(make_step(loss, optimizer, micro_batches=micro_batches))
    state, metrics = step(make_state(params, optimizer), {"x": X, "is_token": IS_TOKEN})
    value, gradient = jax.value_and_grad(mean)(params)
    np.testing.assert_allclose(metrics["loss"][0], value, rtol=1e-5)
    np.testing.assert_allclose(metrics["loss/layers_1.square"][1], 8 * IS_TOKEN.sum())
    changes = jax.tree.map(np.subtract, params, jax.device_get(state.params))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), changes, gradient)


class CostlyFeedForward(layers.FeedForward):
    """A feed-forward network with a loss term, the number of its calls."""

    def __call__(self, x, *, train):
        add_loss_term(self, "calls", jnp.ones(()), jnp.ones(()))
        return super().__call__(x, train=train)


def with_costs(cls):
    """Returns a subclass of a model whose feed-forward networks have a loss term."""

    class Model(cls):
        def make_feed_forward(self):
            config = self.config
            return CostlyFeedForward(config.d_model, config.d_ff)

    return Model


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "cls", "config", "names", "expected"),
    [
        (
            Translation,
            Transformer,
            tiny.make_config,
            ("inputs", "targets"),
            {
                "encoder.layers_0",
                "encoder.layers_1",
                "decoder.layers_0",
                "decoder.layers_1",
                "decoder.layers_2",
            },
        ),
        (
            LanguageModeling,
            DecoderLM,
            tiny_lm.make_lm_config,
            ("inputs", "targets", "weights"),
            {"decoder.layers_0", "decoder.layers_1", "decoder.layers_2"},
        ),
    ],
)
def test_tasks_take_the_terms_of_their_models(task, cls, config, names, expected, tmp_path):
    config = config(tmp_path)
    trained = task(config, range(20))
    trained.model = with_costs(cls)(config.model, vocabulary_size=20)
    tokens = np.ones((2, 4), np.int32)
    kinds = ("input_segments", "target_segments", "segments")
    positions = dict.fromkeys(
        ("input_positions", "target_positions", "positions"), np.tile(np.arange(4, dtype=np.int32), (2, 1))
    )
    batch = dict.fromkeys((*names, *kinds), tokens) | positions
    variables = trained.init(jax.random.key(0))
    output = check_output(trained.loss(variables, batch, Context(0, jax.random.key(1))), {})
    assert output.terms.keys() == {"loss"} | {f"{name}.feed_forward.calls" for name in expected}
    assert output.state == {}
