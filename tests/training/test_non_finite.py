"""Tests of steps that are not finite: unchanged state, skipped steps and error messages."""

import contextlib
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.support import tiny
from tests.support.bare_task import make_state, make_step
from tests.support.comparison import assert_trees_equal
from tests.support.programs import initialize
from tests.support.tiny import train_run
from tests.support.tiny_regression import Regression, make_config
from tfm.checkpoints.store import CheckpointStore
from tfm.data.sources.opening import open_pairs
from tfm.data.tokenizers.protocol import EOS_ID
from tfm.decoding.config import DecodingConfig
from tfm.errors import UserError
from tfm.tasks import translation
from tfm.training import non_finite, setup
from tfm.training.config import TrainingConfig
from tfm.training.metrics import MAX_SKIPPED
from tfm.training.non_finite import first_not_finite, split_step
from tfm.training.optimizers import OPTIMIZERS, make_optimizer, make_schedule
from tfm.training.setup import Setup
from tfm.training.step import Learner, TrainState, make_train_step
from tfm.training.task import Context, LossOutput, Update
from tfm.workdir import runs
from tfm.workdir.replay import replay_step

OPTIMIZER = optax.adam(0.1)


def linear_loss(variables, batch, context):
    """Returns the mean of |w x|. It is infinite for x = 1e30. For x = 0, only its gradient is not finite."""
    total = jnp.sqrt((variables["params"]["w"] * batch["x"]) ** 2).sum()
    return LossOutput({"loss": (total, jnp.float32(batch["x"].size))})


GOOD = {"x": np.ones((4, 2), np.float32)}
BAD = [{"x": np.float32([[1, 1], [1, x], [1, 1], [1, 1]])} for x in (1e30, 0)]


def updates(batches, **options):
    """Trains a step for each batch. Returns all states, the initial state first, and all metrics."""
    step = jax.jit(make_step(linear_loss, OPTIMIZER, ema_decay=0.5, **options))
    states, metrics = [make_state({"w": jnp.float32([1.0, 2.0])}, OPTIMIZER, ema_decay=0.5)], []
    for batch in batches:
        state, found = step(states[-1], batch)
        states.append(state)
        metrics.append(jax.device_get(found))
    return states, metrics


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("bad", BAD, ids=["loss", "gradient"])
def test_non_finite_step_changes_no_state(bad, micro_batches):
    states, metrics = updates([GOOD, bad, GOOD], micro_batches=micro_batches)
    assert not states[1].halted
    for later in states[2:]:
        assert later.halted
        assert_trees_equal(later.replace(halted=states[1].halted), states[1])
    assert [float(found["skipped"][0]) for found in metrics] == [0, 1, 1]
    assert metrics[1]["loss"] == (0, 0)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_skipped_step_changes_only_counters(micro_batches):
    states, metrics = updates([GOOD, BAD[0], GOOD], micro_batches=micro_batches, on_non_finite="skip")
    for name in ("params", "average"):
        assert_trees_equal(getattr(states[2], name), getattr(states[1], name))
    adams = [state.opt_state["loss"][0] for state in states]
    assert_trees_equal(adams[2].mu, adams[1].mu)
    assert [int(state.step) for state in states] == [int(adam.count) for adam in adams] == [0, 1, 2, 3]
    assert np.isfinite(states[3].params["w"]).all()
    assert (states[3].params["w"] != states[2].params["w"]).all()
    assert [float(found["skipped"][0]) for found in metrics] == [0, 1, 0]


class Quantized(NamedTuple):
    """An optimizer state with several integer fields, as in optimizers with 8-bit moments."""

    count: jax.Array
    step: jax.Array
    moment: jax.Array
    index: jax.Array
    inner: dict


def test_skipped_step_advances_only_fields_that_are_named_as_counters():
    whole = Quantized(
        jnp.int32(3), jnp.int32(3), jnp.int8([1, 2]), jnp.int32(5), {"count": jnp.int32([4, 4])}
    )
    optimizer = optax.GradientTransformation(
        lambda params: whole, lambda gradients, state, params=None: (gradients, state)
    )
    step = jax.jit(make_step(linear_loss, optimizer, on_non_finite="skip"))
    state = make_state({"w": jnp.float32([1.0, 2.0])}, optimizer)
    counted = whole._replace(count=jnp.int32(4), step=jnp.int32(4))
    skipped, _ = step(state, BAD[0])
    assert_trees_equal(skipped, state.replace(step=jnp.int32(1), opt_state={"loss": counted}))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_skipped_step_advances_the_schedule_of_every_optimizer(name):
    """The step after a skipped step has the learning rate of its own number."""
    config = TrainingConfig(optimizer=OPTIMIZERS[name](), schedule="constant", peak_learning_rate=0.1)
    optimizer = make_optimizer(config.optimizer, make_schedule(config, None))
    state = make_state({"w": jnp.float32([1.0, 2.0]), "v": jnp.ones(3)}, optimizer)
    step = jax.jit(make_step(linear_loss, optimizer, on_non_finite="skip"))
    skipped, _ = step(state, BAD[0])
    before, after = (jax.tree_util.tree_leaves_with_path(each.opt_state) for each in (state, skipped))
    for (path, old), (_, new) in zip(before, after, strict=True):
        is_counter = jax.tree_util.keystr(path).endswith(".count")
        np.testing.assert_array_equal(new, old + 1 if is_counter else old)
    assert any(jax.tree_util.keystr(path).endswith(".count") for path, _ in before)
    assert_trees_equal(skipped.params, state.params)


class Poisoned(Regression):
    """A regression whose training loss is infinite in some steps, which are counted from 1."""

    bad_steps = ()

    def loss(self, variables, batch, context):
        output = super().loss(variables, batch, context)
        total, count = output.terms["loss"]
        is_bad = jnp.isin(batch["serial"][0], jnp.array(self.bad_steps)) if context.train else False
        return output._replace(terms={"loss": (jnp.where(is_bad, jnp.inf, total), count)})


@pytest.fixture
def poison(monkeypatch):
    """Returns a function that makes the losses of some steps infinite and returns the task."""
    monkeypatch.setattr("tests.support.tiny_regression.Regression", Poisoned)

    def make(*steps):
        monkeypatch.setattr(Poisoned, "bad_steps", steps)
        return Poisoned(make_config())

    return make


@pytest.mark.long
def test_run_stops_and_its_step_can_be_replayed(tmp_path, poison):
    task = poison(5)
    with pytest.raises(UserError, match="loss or gradient of step 5 is not finite") as raised:
        train_run(make_config(log_every=3), tmp_path / "run")
    sentence = str(raised.value)
    assert "the first tensor that is not: loss, inf." in sentence
    facts = task.open_data().describe_batch(4)
    assert facts["batch"] == 4
    assert f"'batch': 4, 'points': [{facts['points'][0]}, " in sentence
    assert f"tfm replay --workdir={tmp_path / 'run'} --step=5 " in sentence
    # Replaying the step reproduces the infinite loss from the checkpoint before it.
    replay = replay_step(task, task.config.training, str(tmp_path / "run"), 5)
    assert replay.facts == facts
    output = task.loss(replay.before.variables, replay.batch, Context(4, jax.random.key(0)))
    assert np.isinf(output.terms["loss"][0])


@pytest.mark.long
def test_error_examines_the_updates_that_are_due(tmp_path, poison, monkeypatch):
    """The update runs in steps 1 and 4."""
    monkeypatch.setattr(Poisoned, "updates", lambda self: (Update("loss", self.loss, every=3),))
    poison(4)
    with pytest.raises(UserError, match=r"step 4 is not finite.* the first tensor that is not: loss, inf\."):
        train_run(make_config(), tmp_path / "run")


@pytest.mark.long
def test_run_stops_if_the_tensor_cannot_be_found(tmp_path, poison, monkeypatch):
    poison(5)

    def fails(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: no memory\nand more")

    monkeypatch.setattr(non_finite, "first_not_finite", fails)
    with pytest.raises(UserError, match="loss or gradient of step 5 is not finite") as raised:
        train_run(make_config(log_every=3), tmp_path / "run")
    assert "the first tensor that is not: not found (RESOURCE_EXHAUSTED: no memory)." in str(raised.value)


def test_description_of_a_batch_lists_its_pairs(corpus, tmp_path):
    config = tiny.make_config(corpus)
    task = translation.create(config, str(tmp_path))
    data, pairs = task.open_data(), open_pairs(config.data, "train")
    sums = [sum(ids) + EOS_ID for ids in task.tokenizer.encode([source for source, _ in pairs])]
    for step, rows in zip(range(30), data.train_batches(0), strict=False):  # several epochs
        assert sum(sums[pair] for pair in data.describe_batch(step)["pairs"]) == rows["inputs"].sum()
    assert data.describe_batch(29)["epoch"] > 0


@pytest.mark.long
def test_non_finite_step_has_no_checkpoint(tmp_path, poison):
    poison(4)
    sentences = []
    for _ in range(2):
        with pytest.raises(UserError, match="step 4 is not finite") as raised:
            train_run(make_config(), tmp_path / "run")
        sentences.append(str(raised.value))
    assert sentences[0] == sentences[1]
    with contextlib.closing(CheckpointStore(tmp_path / "run" / "checkpoints")) as store:
        assert store.steps() == [2, 3]


@pytest.mark.long
def test_run_continues_after_skipped_steps_and_counts_them(tmp_path, poison, caplog):
    poison(3, 4)
    rows = train_run(make_config(on_non_finite="skip", log_every=2), tmp_path / "run")
    training = [row for row in rows if "train/skipped" in row]
    assert [row["train/skipped"] for row in training] == [0, 1, 0]
    assert "train/loss" not in training[1]  # neither step was finite
    assert np.isfinite([row["train/loss"] for row in training[::2]]).all()
    states = [runs.load(str(tmp_path / "run"), checkpoint=str(step)).params for step in (2, 4)]
    assert_trees_equal(*states)
    assert re.findall(r"Step (\d) made no update", caplog.text) == ["3", "4"]


@pytest.mark.long
def test_error_after_a_huge_learning_rate_names_a_module(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(setup, "make_schedule", lambda config, d_model: lambda count: 1e29)
    with pytest.raises(UserError, match="is not finite") as raised:
        train_run(tiny.make_config(corpus), tmp_path)
    assert re.search(r"first tensor that is not: output of (en|de)coder\S+ \(\S+\)\.", str(raised.value))


@pytest.mark.long
def test_error_names_the_first_non_finite_parameter_or_module(corpus, tmp_path):
    """Finite parameters may be so large that a product overflows."""
    task = translation.create(tiny.make_config(corpus), str(tmp_path))
    params = initialize(task)
    poisoned = params | {"decoder": {"kernel": jnp.full(3, jnp.nan)}}
    assert find(task.loss, poisoned, []) == "parameter decoder/kernel"
    for name in ("hidden", "output"):
        params["encoder"]["layers_0"]["feed_forward"][name]["kernel"] *= 1e25
    batch = next(task.open_data().train_batches(0))
    for parts in (1, 2):
        config = TrainingConfig(gradient_accumulation_steps=parts)
        parted = Setup(task, config)
        micro_batches = split_step(parted, parted.learners[0], 1, batch)
        assert len(micro_batches) == parts
        found = find(task.loss, params, micro_batches)
        assert found == "output of encoder/layers_0/feed_forward/output (__call__)"


def find(loss, params, micro_batches):
    """Returns the first tensor that is not finite in an update that trains all parameters."""
    return first_not_finite(Learner(loss, OPTIMIZER), {"params": params}, micro_batches)


def test_error_names_a_gradient_if_the_loss_is_finite():
    def loss(variables, batch, context):
        params = variables["params"]
        return LossOutput({"loss": (jnp.sqrt(params["w"]).sum() + params["v"], 1.0)})

    params = {"v": jnp.float32(0), "w": jnp.float32([0, 1])}
    micro_batches = [({}, Context())]
    assert find(loss, params, micro_batches) == "gradient of w"
    assert find(loss, {"v": params["v"], "w": params["w"] + 1}, micro_batches) is None


@pytest.mark.long
def test_too_many_skipped_steps_in_a_row_end_the_run(tmp_path, poison):
    poison(2, *range(4, 4 + MAX_SKIPPED))
    last = 3 + MAX_SKIPPED
    with pytest.raises(UserError, match=rf"step {last} is not finite"):
        train_run(make_config(on_non_finite="skip", steps=40), tmp_path / "run")


@pytest.mark.long
def test_translation_with_nan_parameters_is_an_error(corpus, tmp_path):
    """Otherwise an empty output would look like a translation."""
    task = translation.create(tiny.make_config(corpus), str(tmp_path))
    params = initialize(task)
    params["decoder"]["layers_0"]["feed_forward"]["output"]["kernel"] *= jnp.nan
    with pytest.raises(UserError, match="got NaN for 2 of 2 inputs"):
        task.translate(params, ["red dog", "big cat"], DecodingConfig(beam_size=1))


def test_skipped_step_advances_only_the_updates_that_are_due():
    """The second update runs only in every third step."""
    learners = [
        Learner(linear_loss, OPTIMIZER, "first", lambda path: path == "w"),
        Learner(linear_loss, OPTIMIZER, "second", lambda path: path == "v", every=3),
    ]
    step = jax.jit(make_train_step(learners, jax.random.key(0), on_non_finite="skip"))
    state = TrainState.create({"params": {"w": jnp.float32([1.0, 2.0]), "v": jnp.ones(3)}}, learners, 0.0)
    counts = []
    for _ in range(4):
        state, _ = step(state, BAD[0])
        counts.append([int(state.opt_state[name][0].count) for name in ("first", "second")])
    assert counts == [[1, 1], [2, 1], [3, 1], [4, 2]]
