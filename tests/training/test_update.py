"""Whole updates of a run, from its config's own numbers, against Adam and its schedule in NumPy."""

import dataclasses
import runpy

import jax
import numpy as np
import optax
import pytest

from tests.support.bare_task import BareTask, make_state, make_step
from tests.support.numbers_task import MODEL, Numbers, random_batch
from tests.support.paths import CONFIGS
from tfm.config import from_mapping
from tfm.tasks.translation.task import Config, Translation
from tfm.testing.models import quick_jit
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import Adam as AdamConfig
from tfm.training.optimizers import make_optimizer, make_schedule
from tfm.training.partitioning import PmapPartitioner
from tfm.training.setup import Setup
from tfm.training.task import Context, LossOutput

UPDATES = 4


def papers_rate(step, d_model, warmup_steps=4000, scale=1.0):
    """Equation 3; steps count from 1."""
    return scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def falling_rate(step, d_model, warmup_steps, scale, steps, peak):
    """Rises in a line to `peak`, or that of equation 3 for None, then falls in a line to 0 at steps + 1."""
    peak = scale * ((d_model * warmup_steps) ** -0.5 if peak is None else peak)
    return peak * min(step / warmup_steps, (steps + 1 - step) / (steps + 1 - warmup_steps))


class Adam:
    """Kingma and Ba 2015, algorithm 1, with the constants of section 5.3 of the paper."""

    def __init__(self, b1=0.9, b2=0.98, epsilon=1e-9):
        self.b1, self.b2, self.epsilon = b1, b2, epsilon
        self.mean = self.square = 0.0

    def update(self, params, gradient, rate, step):
        self.mean = self.b1 * self.mean + (1 - self.b1) * gradient
        self.square = self.b2 * self.square + (1 - self.b2) * gradient**2
        mean, square = self.mean / (1 - self.b1**step), self.square / (1 - self.b2**step)
        return params - rate * mean / (np.sqrt(square) + self.epsilon)


def flat(tree):
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(tree)])


@pytest.mark.long
def test_default_updates_are_the_papers():
    """Of the smoothed loss per target token; the schedule takes the model's own d_model."""
    model = dataclasses.replace(MODEL, decoder_layers=1, dropout=0.0)
    task, rng = Translation(Config(model=model), Numbers()), np.random.default_rng(1)
    parts = Setup(task, TrainingConfig())

    def mean_loss(params, batch):
        total, count = task.loss({"params": params}, batch, Context()).terms["loss"]
        return total / count

    gradient_of, step = (quick_jit(function) for function in (jax.grad(mean_loss), parts.step))
    state, adam = parts.initialize(), Adam()
    for number in range(1, UPDATES + 1):
        batch = random_batch(rng, rows=3)
        gradient = flat(gradient_of(state.params, batch))
        expected = adam.update(flat(state.params), gradient, papers_rate(number, d_model=16), number)
        before, (state, metrics) = flat(state.params), step(state, batch)
        error = np.abs(flat(state.params) - expected)
        tolerance = 0.01 * np.abs(expected - before) + np.spacing(np.float32(np.abs(before)))
        moved = np.abs(gradient) > 1e-6  # else the sign of the gradient is that of its rounding
        assert not (error > tolerance)[moved].any(), f"update {number}"
        assert moved.mean() > 0.8
        np.testing.assert_allclose(
            float(metrics["gradient_norm"][0]), np.sqrt((gradient**2).sum()), rtol=1e-4
        )
    assert int(state.step) == UPDATES


SETTINGS = {
    "default": {},
    "other betas": {"optimizer": AdamConfig(b1=0.8, b2=0.95, epsilon=0.1)},
    "other rate": {"learning_rate_scale": 2.0, "warmup_steps": 3},
}


def rate_of(config, d_model, step):
    arguments = (step, d_model, config.warmup_steps, config.learning_rate_scale)
    if config.schedule == "inverse_sqrt":
        return papers_rate(*arguments)
    return falling_rate(*arguments, config.steps, config.peak_learning_rate)


def assert_updates_are_adam(config, d_model):
    """Of the optimizer that the config makes, on random gradients; the first step is in the warm-up."""
    optimizer = make_optimizer(config.optimizer, make_schedule(config, d_model))
    rng = np.random.default_rng(0)
    params = rng.normal(size=50)
    numbers = config.optimizer
    adam = Adam(numbers.b1, numbers.b2, numbers.epsilon)
    state = optimizer.init(np.float32(params))
    for step in range(1, 3 * UPDATES):
        gradient = rng.normal(size=50) * step
        change, state = optimizer.update(np.float32(gradient), state, np.float32(params))
        rate = rate_of(config, d_model, step)
        expected = adam.update(params, gradient, rate, step)
        np.testing.assert_allclose(change, expected - params, rtol=1e-4, atol=1e-5 * rate)
        params = expected


@pytest.mark.parametrize("name", SETTINGS)
def test_fields_of_adam_and_schedule_count(name):
    assert_updates_are_adam(TrainingConfig(**SETTINGS[name]), d_model=512)


OF_THE_PAPER = [path for path in CONFIGS if "TransformerConfig" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", OF_THE_PAPER, ids=lambda path: path.stem)
def test_updates_of_each_config_are_adams(path):
    config = from_mapping(Config, runpy.run_path(str(path))["get_config"]())
    assert config.training.optimizer == AdamConfig(b1=0.9, b2=0.98, epsilon=1e-9)
    assert_updates_are_adam(config.training, config.model.d_model)


def linear_loss(variables, batch, context):
    """Its gradient is the mean of the rows, weighted."""
    total = (variables["params"]["w"] * batch["x"]).sum()
    return LossOutput({"loss": (total, batch["x"][:, 0].sum())})


def linear_state(ema_decay=0.0):
    return make_state({"w": np.float32([1.0, 2.0, 3.0])}, optax.sgd(1.0), ema_decay)


ROWS = {"x": np.float32(np.random.default_rng(0).integers(1, 9, (4, 3)))}


@pytest.mark.long
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_split_batches_give_the_whole_update(micro_batches):
    """Two devices, under vmap with a named axis as under pmap."""
    step = make_step(linear_loss, optax.sgd(1.0), micro_batches=micro_batches)
    over_rows = PmapPartitioner(jax.devices()[:1]).over_rows
    gradient = ROWS["x"].sum(0) / ROWS["x"][:, 0].sum()
    split = {"x": ROWS["x"].reshape(2, 2, 3)}
    spread, metrics = jax.vmap(
        lambda batch: step(linear_state(), batch, over_rows=over_rows), axis_name="batch"
    )(split)
    for w in (step(linear_state(), ROWS)[0].params["w"], *spread.params["w"]):
        np.testing.assert_allclose(w, [1, 2, 3] - gradient, rtol=1e-5)
    np.testing.assert_allclose(metrics["gradient_norm"][0], np.linalg.norm(gradient), rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"][1], ROWS["x"][:, 0].sum())


def test_the_average_follows_the_parameters():
    step = make_step(linear_loss, optax.sgd(1.0), ema_decay=0.9)
    state = linear_state(ema_decay=0.9)
    expected = np.array([1.0, 2.0, 3.0])
    for _ in range(3):
        state, _ = step(state, ROWS)
        expected = 0.9 * expected + 0.1 * np.asarray(state.params["w"])
        np.testing.assert_allclose(state.average["w"], expected, rtol=1e-5)


class Linear(BareTask):
    """A task with random parameters and a loss that notes the shapes it is traced with."""

    def __init__(self):
        self.shapes = []

    def init(self, rng):
        return {"params": {"w": jax.random.normal(rng, (3,))}}

    def loss(self, variables, batch, context):
        self.shapes.append(batch["x"].shape)
        return linear_loss(variables, batch, context)


def test_fields_reach_the_step():
    task = Linear()
    parts = Setup(task, TrainingConfig(gradient_accumulation_steps=2, ema_decay=0.5, on_non_finite="skip"))
    first = parts.initialize()
    state, _ = parts.step(first, ROWS)
    assert set(task.shapes) == {(2, 3)}
    expected = (first.params["w"] + state.params["w"]) / 2
    np.testing.assert_allclose(state.average["w"], expected, rtol=1e-6)
    skipped, _ = parts.step(state, {"x": ROWS["x"] * np.nan})
    assert (int(skipped.step), bool(skipped.halted)) == (2, False)


@pytest.mark.long
def test_the_seed_counts():
    """For the parameters and for the keys of the steps, which do not share one."""
    found = [Setup(Linear(), TrainingConfig(seed=seed)) for seed in (0, 0, 1)]
    weights = [parts.initialize().params["w"].tolist() for parts in found]
    keys = [jax.random.key_data(parts.step_key).tolist() for parts in found]
    for values in (weights, keys):
        assert values[0] == values[1] != values[2]
    assert weights[0] != jax.random.normal(found[0].step_key, (3,)).tolist()


def test_an_average_begins_with_the_given_parameters():
    new = {"params": {"w": np.float32([3, 4, 5])}}
    averaged = Setup(Linear(), TrainingConfig(ema_decay=0.9)).initialize_with(lambda _: new)
    np.testing.assert_array_equal(averaged.average["w"], new["params"]["w"])
    np.testing.assert_array_equal(averaged.variables["params"]["w"], new["params"]["w"])
    pointers = [tree["w"].unsafe_buffer_pointer() for tree in (averaged.average, averaged.params)]
    assert pointers[0] != pointers[1]  # a step donates both
    assert Setup(Linear(), TrainingConfig()).initialize_with(lambda _: new).average is None
