"""Tests of the points of the layers, at which activations are read and edited."""

import contextlib
import functools
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.support.bare_task import make_state, make_step
from tests.support.search_programs import CONFIG, INPUTS, MODEL, SEARCHES, make_search, parameters
from tfm import interpret, layers
from tfm.layers import observe
from tfm.layers.observe import Recorder, activate, is_active, read_attention
from tfm.losses import fused_linear_cross_entropy
from tfm.models import TransformerConfig
from tfm.training.task import LossOutput


def lower_search(name):
    return make_search(name).lower(parameters(), INPUTS).as_text()


OPTIMIZER = optax.adam(1e-3)


def make_model(**fields):
    return MODEL.clone(config=TransformerConfig(**(vars(CONFIG) | {"dropout": 0.1} | fields)))


@functools.cache
def state_of(model):
    """Returns the shapes of the training state of a model."""

    def create_state(key):
        token = jnp.ones((1, 1), jnp.int32)
        return make_state(model.init(key, token, token, train=False)["params"], OPTIMIZER)

    return jax.eval_shape(create_state, jax.random.key(0))


def lower_step(**fields):
    """Returns the text of a new training step before compilation."""
    model = make_model(**fields)

    def loss(variables, batch, context):
        rngs = {"dropout": context.rng}
        features, table = model.apply(variables, batch, batch, train=True, rngs=rngs, method="features")
        metrics = fused_linear_cross_entropy(features, table, batch, jnp.ones(batch.shape), 0.1, 8)
        return LossOutput({"loss": metrics.pop("loss")}, metrics)

    step = make_step(loss, OPTIMIZER, seed=1)
    return jax.jit(step).lower(state_of(model), INPUTS).as_text()


PROGRAMS = {
    # The search with a coverage penalty is left out, because the penalty reads a point.
    **{name: lambda name=name: lower_search(name) for name in SEARCHES if name != "coverage"},
    "step": lower_step,
    "step, pre-norm and dropout": lambda: lower_step(norm_order="pre", attention_dropout=0.1),
    "step, scanned and recomputed": lambda: lower_step(scan=True, remat=True),
    "step, fused attention": lambda: lower_step(attention="xla", dtype="bfloat16"),
}


@contextlib.contextmanager
def without_points():
    """Removes the points from all layers."""
    replacements = {
        "observe": lambda module, name, value, *_, **__: value,
        "is_wanted": lambda module, *names: False,
        "is_active": lambda: False,
        "with_positions": lambda positions: contextlib.nullcontext(),
        "activate": lambda observer: contextlib.nullcontext(),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, replacement in replacements.items():
            function = getattr(observe, name)
            for module in [module for key, module in sys.modules.items() if key.startswith("tfm.")]:
                if getattr(module, name, None) is function:
                    patch.setattr(module, name, replacement)
        yield


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_is_unchanged_if_nothing_is_read_or_edited(name):
    """The program equals that of layers without points byte for byte, even after a program with edits."""
    lower = PROGRAMS[name]
    with without_points():
        expected = lower()
    with activate(Recorder(edit={"*.sublayer_output": lambda value, point: 2 * value})):
        edited = lower()
    assert lower() == expected
    assert edited != expected


class AttendsTwice(nn.Module):
    """A module that applies the same attention twice."""

    def setup(self):
        self.attention = layers.MultiHeadAttention(features=4, heads=2)

    def __call__(self, x):
        x = self.attention(x, x, mask=None, train=False)
        return self.attention(x, x, mask=None, train=False)


@pytest.fixture(scope="module")
def attends_twice():
    """Returns (input, variables) of `AttendsTwice`."""
    x = np.random.default_rng(0).normal(size=(1, 3, 4)).astype(np.float32)
    return x, AttendsTwice().init(jax.random.key(0), x)


@pytest.mark.long
def test_second_use_of_a_module_has_its_own_name(attends_twice):
    x, variables = attends_twice
    recorder = Recorder("*")
    with activate(recorder):
        AttendsTwice().apply(variables, x)
    first = {name for name in recorder.reads if "#" not in name}
    assert first
    assert recorder.reads.keys() == recorder.axes.keys() == first | {f"{name}#2" for name in first}


@pytest.mark.long
def test_edit_of_the_second_use_leaves_the_first_use_unchanged(attends_twice):
    x, variables = attends_twice
    recorder = Recorder("*", {"attention.head_outputs#2": lambda value, point: 0 * value})
    with activate(recorder):
        AttendsTwice().apply(variables, x)
    assert recorder.reads["attention.head_outputs"].any()
    assert not recorder.reads["attention.head_outputs#2"].any()


@pytest.mark.long
def test_attention_weights_of_the_second_use_equal_those_of_a_single_use(attends_twice):
    x, variables = attends_twice
    _, (_, weights) = read_attention(
        "attention.weights", functools.partial(AttendsTwice().apply, variables, x)
    )
    attention = layers.MultiHeadAttention(features=4, heads=2)
    of_first = {"params": variables["params"]["attention"]}
    once = attention.apply(of_first, x, x, mask=None, train=False)
    again = functools.partial(attention.apply, of_first, once, once, mask=None, train=False)
    np.testing.assert_allclose(weights, read_attention("weights", again)[1][0], atol=1e-6)


@pytest.mark.long
def test_reading_attention_weights_does_not_change_their_dropout():
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    attention = layers.MultiHeadAttention(features=4, heads=2, dropout_rate=0.5)
    variables = attention.init(jax.random.key(0), x, x, mask=None, train=False)
    rngs = {"dropout": jax.random.key(1)}
    expected = attention.apply(variables, x, x, mask=None, train=True, rngs=rngs)
    recorder = Recorder("weights")
    with activate(recorder):
        found = attention.apply(variables, x, x, mask=None, train=True, rngs=rngs)
    assert recorder.reads.keys() == {"weights"}
    np.testing.assert_allclose(found, expected, atol=1e-6)


class ObservesTwice(nn.Module):
    """A module whose second activation has positions of its own."""

    def __call__(self, x):
        x = observe.observe(self, "first", x)
        return observe.observe(self, "second", x, positions=jnp.array([3, 5]))


def test_positions_of_an_activation_replace_those_of_the_context():
    positions = {}

    def edit(value, point):
        positions[point.name] = point.positions["L"].tolist()
        return value

    with activate(Recorder(edit={"*": edit})), observe.with_positions(jnp.array([1, 2])):
        ObservesTwice().apply({}, jnp.ones((1, 2, 4)))
    assert positions == {"first": [[1, 2]], "second": [[3, 5]]}


class Counts(nn.Module):
    """A module that adds one. Its input is a point."""

    def __call__(self, x):
        return observe.observe(self, "input", x) + 1


class CountsToThree(nn.Module):
    """A module that uses another module three times."""

    @nn.compact
    def __call__(self, x):
        counts = Counts(name="counts")
        return counts(counts(counts(x)))


ALL_USES = {"counts.input", "counts.input#2", "counts.input#3"}
USES = {
    "counts.input": ALL_USES,
    "counts.*": ALL_USES,
    "*.input#*": ALL_USES,
    "*.input#1": {"counts.input"},
    "counts.input#3": {"counts.input#3"},
}


@pytest.mark.parametrize("pattern", USES)
def test_glob_without_a_number_reads_and_edits_all_uses_of_a_module(pattern):
    edited = []

    def edit(value, point):
        edited.append(point.name)
        return value

    recorder = Recorder(pattern, {pattern: edit})
    with activate(recorder):
        CountsToThree().apply({}, jnp.zeros((1, 2, 4)))
    recorder.check()
    assert recorder.reads.keys() == set(edited) == USES[pattern]


def test_patch_of_the_first_use_of_a_module_keeps_the_later_uses():
    recorder = Recorder("counts.input", interpret.patch({"counts.input": jnp.full((1, 2, 4), 5.0)}))
    with activate(recorder):
        CountsToThree().apply({}, jnp.zeros((1, 2, 4)))
    assert [float(value[0, 0, 0]) for value in recorder.reads.values()] == [5, 6, 7]


def test_recorders_are_inactive_after_their_block():
    def fail():
        with activate(Recorder("*")):
            with activate(None):
                assert not is_active()
            assert is_active()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not is_active()
