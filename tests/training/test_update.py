"""Tests of the updates of a config against Adam and the schedule of the paper in NumPy."""

import dataclasses
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.support.bare_task import BareTask, make_state, make_step
from tests.support.numbers_task import MODEL, Numbers, random_batch
from tests.support.paths import CONFIGS
from tfm.config import from_mapping
from tfm.errors import UserError
from tfm.tasks.translation.task import Config, Translation
from tfm.testing.models import quick_jit
from tfm.training import partitioning
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import Adam as AdamConfig
from tfm.training.partitioning import Partitioner, make_partitioner
from tfm.training.setup import Setup
from tfm.training.step import average_rate
from tfm.training.task import Context, LossOutput

UPDATES = 4


class Adam:
    """Algorithm 1 of Kingma and Ba 2015 with the constants of section 5.3 of the paper."""

    mean = square = 0.0

    def update(self, params, gradient, rate, step):
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.98 * self.square + 0.02 * gradient**2
        mean, square = self.mean / (1 - 0.9**step), self.square / (1 - 0.98**step)
        return params - rate * mean / (np.sqrt(square) + 1e-9)


def flat(tree):
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(tree)])


@pytest.mark.long
def test_default_updates_equal_those_of_the_paper():
    """The gradient is that of the smoothed loss per target token. The schedule uses d_model of the model."""
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
        rate = 16**-0.5 * min(number**-0.5, number * 4000**-1.5)  # equation 3 for d_model 16
        expected = adam.update(flat(state.params), gradient, rate, number)
        before, (state, metrics) = flat(state.params), step(state, batch)
        error = np.abs(flat(state.params) - expected)
        tolerance = 0.01 * np.abs(expected - before) + np.spacing(np.float32(np.abs(before)))
        moved = np.abs(gradient) > 1e-6  # rounding may change the sign of smaller gradients
        assert not (error > tolerance)[moved].any(), f"update {number}"
        assert moved.mean() > 0.8
        np.testing.assert_allclose(
            float(metrics["gradient_norm"][0]), np.sqrt((gradient**2).sum()), rtol=1e-4
        )
    assert int(state.step) == UPDATES


PAPER_CONFIGS = [path for path in CONFIGS if "TransformerConfig" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", PAPER_CONFIGS, ids=lambda path: path.stem)
def test_configs_of_the_paper_use_the_papers_adam(path):
    config = from_mapping(Config, runpy.run_path(str(path))["get_config"]())
    assert config.training.optimizer == AdamConfig(b1=0.9, b2=0.98, epsilon=1e-9)


def linear_loss(variables, batch, context):
    """Returns a loss whose gradient is a weighted mean of the rows."""
    total = (variables["params"]["w"] * batch["x"]).sum()
    return LossOutput({"loss": (total, batch["x"][:, 0].sum())})


ROWS = {"x": np.float32(np.random.default_rng(0).integers(1, 9, (4, 3)))}


@pytest.mark.long
def test_average_weighs_the_parameters_of_all_steps_and_not_the_initial_parameters():
    step = make_step(linear_loss, optax.sgd(1.0), ema_decay=0.9)
    state = make_state({"w": np.float32([1.0, 2.0, 3.0])}, optax.sgd(1.0), ema_decay=0.9)
    parameters = []
    for _ in range(3):
        state, _ = step(state, ROWS)
        parameters.append(np.asarray(state.params["w"]))
        weights = 0.9 ** np.arange(len(parameters))[::-1]
        expected = np.average(parameters, axis=0, weights=weights)
        np.testing.assert_allclose(state.average["params"]["w"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999, 0.999999])
def test_rate_of_the_average_keeps_its_digits(decay):
    steps = np.arange(200_000, step=7919)
    rates = average_rate(jnp.asarray(steps), decay)
    expected = (1 - decay) / (1 - np.float64(decay) ** (steps + 1))
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    assert rates[0] <= 1 == pytest.approx(float(rates[0]))


class Linear(BareTask):
    """A task with random parameters and a loss that records the shapes of its batches."""

    def __init__(self):
        self.shapes = []

    def init(self, rng):
        return {"params": {"w": jax.random.normal(rng, (3,))}}

    def loss(self, variables, batch, context):
        self.shapes.append(batch["x"].shape)
        return linear_loss(variables, batch, context)


@pytest.mark.long
def test_step_uses_the_fields_of_the_config():
    task = Linear()
    parts = Setup(task, TrainingConfig(gradient_accumulation_steps=2, ema_decay=0.5, on_non_finite="skip"))
    first = parts.initialize()
    state, _ = parts.step(first, ROWS)
    assert set(task.shapes) == {(2, 3)}
    np.testing.assert_allclose(state.average["params"]["w"], state.params["w"], rtol=1e-6)
    later, _ = parts.step(state, ROWS)
    expected = (state.params["w"] + 2 * later.params["w"]) / 3
    np.testing.assert_allclose(later.average["params"]["w"], expected, rtol=1e-6)
    skipped, _ = parts.step(state, {"x": ROWS["x"] * np.nan})
    assert (int(skipped.step), bool(skipped.halted)) == (2, False)


@pytest.mark.long
def test_seed_determines_the_parameters_and_the_keys():
    """The parameters and the steps use different keys."""
    found = [Setup(Linear(), TrainingConfig(seed=seed)) for seed in (0, 0, 1)]
    weights = [parts.initialize().params["w"].tolist() for parts in found]
    keys = [jax.random.key_data(parts.step_key).tolist() for parts in found]
    for values in (weights, keys):
        assert values[0] == values[1] != values[2]
    assert weights[0] != jax.random.normal(found[0].step_key, (3,)).tolist()


def test_average_starts_from_the_initial_parameters():
    new = {"params": {"w": np.float32([3, 4, 5])}}
    averaged = Setup(Linear(), TrainingConfig(ema_decay=0.9)).initialize_with(lambda _: new)
    np.testing.assert_array_equal(averaged.average["params"]["w"], new["params"]["w"])
    np.testing.assert_array_equal(averaged.variables["params"]["w"], new["params"]["w"])
    pointers = [tree["params"]["w"].unsafe_buffer_pointer() for tree in (averaged.average, averaged.newest)]
    assert pointers[0] != pointers[1]  # a step donates both buffers
    assert Setup(Linear(), TrainingConfig()).initialize_with(lambda _: new).average is None
    with pytest.raises(UserError, match=r"initial variables .*params/.* absent"):
        Setup(Linear(), TrainingConfig()).initialize_with(lambda _: {})


def test_devices_must_divide_into_the_mesh():
    with pytest.raises(UserError, match="1 devices do not divide into"):
        make_partitioner(TrainingConfig(mesh_fsdp=2))


@pytest.mark.parametrize(("tensor", "lower"), [(8, 4), (6, 3)])
def test_rows_of_two_hosts_are_an_error_with_a_mesh_that_works(tensor, lower, monkeypatch):
    """The error comes before the devices are used, so any objects can stand for them."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    message = f"mesh_tensor {tensor} does not divide the {tensor // 2} devices .* to {lower}"
    with pytest.raises(UserError, match=message):
        Partitioner([None] * tensor, tensor=tensor)
    mesh = jax.sharding.AbstractMesh((tensor // lower, 1, lower), ("data", "fsdp", "tensor"))
    monkeypatch.setattr(partitioning, "make_mesh", lambda devices, fsdp, tensor: mesh)
    assert Partitioner([None] * tensor, tensor=lower).row_shards == 2


@pytest.mark.parametrize("parallel", ["jit", "pmap"])
def test_mesh_without_mesh_parallelism_is_an_error(parallel):
    with pytest.raises(UserError, match=rf"training\.parallel .*mesh_tensor.* '{parallel}'"):
        TrainingConfig(parallel=parallel, mesh_tensor=2)
