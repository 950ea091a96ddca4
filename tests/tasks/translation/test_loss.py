"""Tests of the loss of translation, against float64 in NumPy, and of the checks of any loss."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.references import numpy_transformer as numpy64
from tests.support.bare_task import BareTask, make_state, make_step
from tests.support.numbers_task import MODEL, PIECES, Numbers
from tests.support.pairs import train_batches
from tests.support.programs import initialize
from tfm.data.config import PairsConfig
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.errors import UserError
from tfm.tasks.translation.data import count_tokens
from tfm.tasks.translation.task import Config, Translation
from tfm.testing.models import quick_jit
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import check_zero_rows
from tfm.training.setup import Setup
from tfm.training.task import Context, LossOutput

RNG = np.random.default_rng(0)
PAIRS = [tuple(RNG.integers(3, PIECES, RNG.integers(1, 7)).tolist() for _ in range(2)) for _ in range(12)]
SMOOTHING = 0.25


class Pairs(list):
    fingerprint = "pairs"


@pytest.fixture(scope="module", params=["packed", "buckets"])
def task_and_batches(request, tmp_path_factory):
    """Returns a task and the batches of its first epoch."""
    data = PairsConfig(batching=request.param, max_length=16, row_length=16, batch_tokens=16 * 16)
    cache = TokenCache.open(Pairs(PAIRS), Numbers(), str(tmp_path_factory.mktemp("cache")))
    batches = train_batches(cache, data, seed=0)
    assembled = [batches.batch(step) for step in range(20) if batches.epoch_of(step) == 0]
    task = Translation(
        Config(model=MODEL, data=data, label_smoothing=SMOOTHING, loss_chunk_size=32), Numbers()
    )
    return task, assembled


def loss_of(task, params, batches):
    """Returns {name: [sum, count]} over all batches."""
    found, loss = {}, quick_jit(lambda params, batch: task.loss({"params": params}, batch, Context())[:2])
    for batch in batches:
        terms, metrics = loss(params, batch)
        for name, pair in (metrics | terms).items():
            found[name] = found.get(name, 0) + np.array(pair, np.float64)
    return found


def numpy_loss(params):
    """Computes the sums and counts of each pair separately, with label smoothing over all pieces."""
    sums, count = dict.fromkeys(("loss", "nll", "accuracy"), 0.0), 0
    for source, target in PAIRS:
        labels = [*target, EOS_ID]
        logits = numpy64.transformer(params, np.array([[*source, EOS_ID]]), np.array([[BOS_ID, *target]]))[0]
        for row, label in zip(logits, labels, strict=True):
            log_probabilities = row - row.max() - np.log(np.exp(row - row.max()).sum())
            smoothed = np.full(PIECES, SMOOTHING / (PIECES - 1))
            smoothed[label] = 1 - SMOOTHING
            sums["loss"] -= smoothed @ log_probabilities
            sums["nll"] -= log_probabilities[label]
            sums["accuracy"] += row.argmax() == label
        count += len(labels)
    return {name: (total, count) for name, total in sums.items()}


@pytest.mark.long
def test_loss_of_batches_equals_the_loss_of_separate_sentences(task_and_batches):
    task, batches = task_and_batches
    params = initialize(task)
    if task.config.data.batching == "packed":
        assert max(batch["target_segments"].max() for batch in batches) > 1
    found, expected = loss_of(task, params, batches), numpy_loss(params)
    assert found.keys() == expected.keys()
    for name, pair in expected.items():
        np.testing.assert_allclose(found[name], pair, rtol=1e-5, err_msg=name)


@pytest.mark.long
def test_validation_is_the_mean_over_all_tokens(task_and_batches):
    """The mean of the means of the batches would differ."""
    task, batches = task_and_batches
    params = initialize(task)
    rows = [{name: x[row : row + 1] for name, x in batches[0].items()} for row in (0, 1)]
    assert len({(batch["targets"] > 0).sum() for batch in rows}) == 2
    data = types.SimpleNamespace(validation_pairs=[], validation_batches=rows)
    found = task.evaluate({"params": params}, data).scores
    expected = loss_of(task, params, rows)
    for name in ("nll", "accuracy"):
        total, count = expected[name]
        assert found[f"validation/{name}"] == pytest.approx(total / count)


def test_tokens_of_both_sides_are_counted(task_and_batches):
    _, batches = task_and_batches
    tokens = sum(len(source) + len(target) + 2 for source, target in PAIRS)
    assert sum(map(count_tokens, batches)) == tokens


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_r_drop_compares_two_passes_with_different_dropout(task_and_batches, dropout):
    task, batches = task_and_batches
    batch, model = batches[0], dataclasses.replace(task.config.model, dropout=dropout)
    variables, context = task.init(jax.random.key(0)), Context(step=0, rng=jax.random.key(1))

    def compute(**fields):
        made = Translation(dataclasses.replace(task.config, model=model, **fields), Numbers())
        return quick_jit(lambda variables: made.loss(variables, batch, context))(variables)

    once, twice, double = compute(), compute(r_drop=1.0), compute(r_drop=2.0)
    assert twice.terms["loss"][1] == 2 * once.terms["loss"][1]
    assert twice.terms["divergence"][1] == once.terms["loss"][1]
    divergence = float(twice.terms["divergence"][0])
    assert double.terms["divergence"][0] == pytest.approx(2 * divergence, abs=1e-6)
    if dropout:
        assert divergence > 0.1
    else:
        assert abs(divergence) < 1e-6
        assert twice.terms["loss"][0] == pytest.approx(2 * float(once.terms["loss"][0]), rel=1e-5)


def test_r_drop_changes_nothing_in_validation(task_and_batches):
    task, batches = task_and_batches
    other = Translation(dataclasses.replace(task.config, r_drop=5.0), Numbers())
    params = initialize(task)
    found, expected = loss_of(other, params, batches[:1]), loss_of(task, params, batches[:1])
    assert found.keys() == expected.keys()
    for name, pair in expected.items():
        np.testing.assert_array_equal(found[name], pair)


def mean_over_rows(variables, batch, context):
    """Counts all rows, including rows of zeros."""
    return LossOutput({"loss": ((variables["params"]["w"] * batch["x"]).sum(), len(batch["x"]))})


def constant_metric(variables, batch, context):
    loss = (variables["params"]["w"] * batch["x"]).sum(), (batch["x"] != 0).sum()
    return LossOutput({"loss": loss}, {"margin": (jnp.exp(batch["x"]).sum(), 0)})


def normalised(variables, batch, context):
    """Divides 0 by 0 for a row of zeros."""
    x = batch["x"] / batch["x"].sum()
    return LossOutput({"loss": ((variables["params"]["w"] * x).sum(), (batch["x"] != 0).sum())})


def counted_in_training(variables, batch, context):
    """Counts rows of zeros only in training."""
    count = len(batch["x"]) if context.train else (batch["x"] != 0).sum()
    return LossOutput({"loss": ((variables["params"]["w"] * batch["x"]).sum(), count)})


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (mean_over_rows, "loss"),
        (constant_metric, "margin"),
        (normalised, "loss"),
        (counted_in_training, "loss"),
    ],
)
def test_loss_that_counts_rows_of_zeros_is_an_error(loss, name):
    batch = {"x": np.ones((5, 2), np.float32)}
    context = Context(0, jax.random.key(0))
    with pytest.raises(UserError, match=f"Expected sum 0 and count 0 of such a row, got .* of '{name}'"):
        check_zero_rows({"loss": loss}, {"params": {"w": jnp.ones(2)}}, batch, context)


@pytest.mark.parametrize(
    "found",
    [
        1.0,
        ((1.0, 2.0), {}),
        LossOutput({}),
        LossOutput({"loss": 1.0}),
        LossOutput({"loss": (1, 2.0)}),
        LossOutput({"loss": (np.ones(3), 2.0)}),
        LossOutput({"loss": (1.0, 2.0)}, {"accuracy": 1.0}),
        LossOutput({"loss": (1.0, 2.0)}, {"accuracy": (1.0, np.ones(3))}),
        LossOutput({"loss": (1.0, 2.0)}, {"gradient_norm": (1.0, 1.0)}),
        LossOutput({"loss": (1.0, 2.0)}, {}, {"statistics": {"mean": np.ones(3)}}),
    ],
)
def test_malformed_loss_is_an_error(found):
    step = make_step(lambda *_: found, optax.sgd(0.5))
    state = make_state({"w": jnp.ones(2)}, optax.sgd(0.5))
    with pytest.raises(UserError, match=r"task's loss"):
        step(state, {"x": np.ones((5, 2), np.float32)})


class Rows(BareTask):
    """A task whose loss counts all rows."""

    loss = staticmethod(mean_over_rows)

    def init(self, rng):
        return {"params": {"w": jnp.ones(2)}}


@pytest.mark.long
def test_setup_checks_the_loss_if_batches_are_padded():
    batch = {"x": np.ones((5, 2), np.float32)}
    for gradient_accumulation_steps in (1, 2):
        config = TrainingConfig(gradient_accumulation_steps=gradient_accumulation_steps, parallel="jit")
        parts = Setup(Rows(), config)
        if gradient_accumulation_steps == 1:  # no rows are added, so the loss is correct
            parts.check_padding(batch)
            continue
        with pytest.raises(UserError, match="give padding weight 0 in the task's loss"):
            parts.check_padding(batch)
