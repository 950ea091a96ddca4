"""Every task and model of the project keeps the contracts of tfm/training/task.py."""

import dataclasses
import itertools
import json
import os
import pkgutil
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import conformance, kills
from tests.support.conformance import CASES, MODELS, STEPS, TASKS
from tests.support.programs import FAST
from tfm import models, tasks
from tfm.config import from_mapping, load, save
from tfm.fields import leaves
from tfm.runtime.preemption import SignalHandler
from tfm.training.hooks import Hook
from tfm.training.loop import train
from tfm.training.setup import list_shapes, make_setup, open_checkpoints
from tfm.training.step import check_zero_rows
from tfm.training.task import Best, Data, PlanningTask, Report, Samples, SamplingTask, Task
from tfm.workdir import runs

ADVICE = "add an entry to {} in tests/support/conformance.py"


def modules(package):
    return {module.name for module in pkgutil.iter_modules(package.__path__)}


def test_every_task_has_an_entry():
    assert modules(tasks) == set(TASKS), ADVICE.format("TASKS")


def test_every_model_has_an_entry():
    assert modules(models) == set(MODELS), ADVICE.format("MODELS")
    assert {model for _, model in CASES} == set(MODELS), "each model is named by a task in TASKS"


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def names(request):
    """The names of a task and of a model, whose programs go with them: together they take more than 1 GB."""
    yield request.param
    jax.clear_caches()


@pytest.fixture(scope="module")
def case(names, tmp_path_factory):
    return conformance.make_case(*names, tmp_path_factory.mktemp("case") / "folder")


@pytest.fixture(scope="module")
def data(case):
    return case.task.open_data()


@pytest.fixture(scope="module")
def batch(data):
    return next(iter(data.train_batches(0)))


@pytest.fixture(scope="module")
def params(case):
    return case.random_params()


@pytest.fixture(scope="module")
def loss(case):
    """The loss without dropout, compiled."""
    return jax.jit(lambda params, batch: case.task.loss(params, batch, None), compiler_options=FAST)


@pytest.fixture(scope="module")
def trained(case):
    """The run of the case, trained without a break and opened."""
    save(case.config, runs.config_path(str(case.workdir)))
    train(case.task, case.config.training, str(case.workdir))
    return runs.load(str(case.workdir))


def assert_rows_alike(batch):
    assert batch
    assert all(isinstance(name, str) and isinstance(x, np.ndarray) for name, x in batch.items())
    assert len({len(x) for x in batch.values()}) == 1


def assert_pairs(pair, metrics):
    for total, count in [pair, *metrics.values()]:
        assert jnp.shape(total) == jnp.shape(count) == ()
        assert jnp.issubdtype(jnp.asarray(total).dtype, jnp.floating)


def test_task_and_data_have_the_members(case, data):
    assert isinstance(case.task, Task)
    assert isinstance(data, Data)
    assert dataclasses.is_dataclass(tasks.find(case.config.task).Config)
    assert isinstance(case.config, tasks.find(case.config.task).Config)
    assert case.task.config == case.config


def test_attributes_have_their_types(case):
    assert isinstance(case.task.best, Best)
    assert case.task.best.order in ("max", "min")
    assert isinstance(case.task.unit, str)
    assert case.task.unit
    assert os.path.basename(case.config.output_suffix) == case.config.output_suffix


def test_data_have_their_types(case, data, batch):
    assert_rows_alike(batch)
    assert all(isinstance(key, str) and isinstance(x, str) for key, x in data.identity().items())
    assert data.identity().keys() >= {"train", "validation"}
    assert isinstance(json.dumps(data.describe_batch(3)), str)
    assert type(data.count(batch)) is int
    assert data.count(batch) > 0
    described = data.describe(1000)
    assert all(isinstance(name, str) and isinstance(text, str) for name, text in described)
    assert described


def test_the_example_is_as_large_as_any_batch(data):
    example = data.example()
    assert_rows_alike(example)
    for batch in itertools.islice(data.train_batches(0), 4):
        assert {name: x.dtype for name, x in batch.items()} == {name: x.dtype for name, x in example.items()}
        assert all(x.size <= example[name].size for name, x in batch.items())


@pytest.mark.long
def test_parameters_are_drawn_from_the_key(case):
    init = jax.jit(case.task.init, compiler_options=FAST)
    one, again, other = (jax.tree.leaves(jax.device_get(init(jax.random.key(seed)))) for seed in (0, 0, 1))
    assert {x.dtype for x in one} == {jnp.dtype("float32")}
    assert all((a == b).all() for a, b in zip(one, again, strict=True))
    assert any((a != b).any() for a, b in zip(one, other, strict=True))


@pytest.mark.long
def test_the_loss_is_sums_and_counts(loss, params, batch):
    pair, metrics = loss(params, batch)
    assert all(isinstance(name, str) for name in metrics)
    assert_pairs(pair, metrics)
    assert pair[1] > 0


@pytest.mark.long
def test_a_row_of_zeros_counts_for_nothing(case, data, loss, params, batch):
    check_zero_rows(case.task.loss, params, data.example())
    wider = {name: np.pad(x, [(0, 2)] + [(0, 0)] * (x.ndim - 1)) for name, x in batch.items()}
    expected, found = loss(params, batch), loss(params, wider)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    assert data.count(wider) == data.count(batch)


@pytest.mark.long
def test_dropout_follows_the_key(case, params, batch):
    loss = jax.jit(lambda seed: case.task.loss(params, batch, jax.random.key(seed))[0], compiler_options=FAST)
    assert loss(0)[0] == loss(0)[0]
    assert loss(0)[0] != loss(1)[0], "the tiny config has dropout"


def equal(batch, other):
    return batch.keys() == other.keys() and all(np.array_equal(batch[name], other[name]) for name in batch)


def test_batches_follow_from_seed_and_step(case):
    first, resumed = case.task.open_data(), case.task.open_data()
    batches = list(itertools.islice(first.train_batches(0), 6))
    later = list(itertools.islice(resumed.train_batches(3), 3))
    assert all(map(equal, batches[3:], later))
    training = dataclasses.replace(case.config.training, seed=7)
    other = tasks.find(case.config.task).create(
        dataclasses.replace(case.config, training=training), str(case.workdir), new=False
    )
    assert not all(map(equal, batches, other.open_data().train_batches(0)))
    assert first.identity() == resumed.identity()


def test_a_planned_example_is_that_of_the_data(case, data):
    """So that what is compiled while the data are opened is what the run needs."""
    planned = case.task.plan_example() if isinstance(case.task, PlanningTask) else None
    if planned is not None:
        assert list_shapes(planned) == list_shapes(data.example())
        assert not any(array.any() for array in planned.values())


@pytest.mark.long
def test_an_evaluation_has_the_best_metric(case, data, trained):
    scores = case.task.evaluate(trained.params, data)
    assert case.task.best.metric in scores
    assert all(name.startswith("validation/") and type(value) is float for name, value in scores.items())


@pytest.mark.long
def test_samples_are_texts_and_pictures(case, data, params, tmp_path):
    if not isinstance(case.task, SamplingTask):
        pytest.skip("the task shows no samples")
    config = dataclasses.replace(case.config, validation_samples=2)
    task = tasks.find(case.config.task).create(config, str(case.workdir), new=False)
    scores, samples = task.evaluate_with_samples(params, data)
    assert scores == task.evaluate(params, data)
    assert isinstance(samples, Samples)
    assert len(samples.rows) == 2
    assert len({tuple(row) for row in samples.rows}) == 1, "all rows have the same names"
    assert all(isinstance(text, str) for row in samples.rows for text in row.values())
    for name, draw in samples.pictures.items():
        assert os.path.basename(name) == name
        draw(path := str(tmp_path / f"{name}.png"))
        with open(path, "rb") as file:
            assert file.read(8) == b"\x89PNG\r\n\x1a\n"


@pytest.mark.long
def test_a_report_has_an_output_for_each_example(case, trained, names):
    reports = list(case.task.report(trained.params, "test"))
    for report in reports:
        assert isinstance(report, Report)
        assert len(report.outputs) == len(report.examples) == TASKS[names[0]].test_examples
        assert all(isinstance(text, str) and "\n" not in text for text in report.outputs)
        assert all(isinstance(text, str) for example in report.examples for text in example.values())
        assert isinstance(json.dumps([report.settings, report.rate, report.identity]), str)
        for score in report.scores:
            assert (type(score.name), type(score.value), type(score.signature)) == (str, float, str)
    assert reports[0].scores
    for before, after in itertools.pairwise(reports):
        assert after.scores[: len(before.scores)] == before.scores


@pytest.mark.long
def test_assets_are_files_that_recreate_the_task(case, params, tmp_path):
    assets = case.task.assets()
    for name, fingerprint in assets.items():
        assert isinstance(fingerprint, str)
        assert len(fingerprint) >= 32
        shutil.copyfile(case.workdir / name, tmp_path / name)
    again = tasks.find(case.config.task).create(case.config, str(tmp_path), new=False)
    assert again.assets() == assets
    shapes = jax.eval_shape(again.init, jax.random.key(0))
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)


def test_a_config_round_trips_through_json(case, tmp_path):
    path = str(tmp_path / "config.json")
    save(case.config, path)
    assert from_mapping(type(case.config), load(path)) == case.config
    assert runs.parse_config(load(path)) == case.config


def test_a_portable_config_names_no_path(case):
    portable = case.config.without_paths()
    values = [leaf.value for leaf in leaves(portable)]
    values = [each for value in values for each in (value if isinstance(value, tuple) else [value])]
    assert not [value for value in values if isinstance(value, str) and os.path.isabs(value)]
    assert portable.without_paths() == portable
    assert portable.model == case.config.model
    assert type(portable) is type(case.config)


class StopAt(Hook):
    """Asks a run to end once it has made a step, as SIGTERM does."""

    def __init__(self, signals, step):
        self._stop, self._step = signals, step

    def on_step(self, step, metrics):
        if step == self._step:
            self._stop.signal = signal.SIGTERM


def saved_state(case, workdir):
    """Parameters, optimizer state and step of the last checkpoint."""
    setup = make_setup(case.task, case.config.training)
    return open_checkpoints(case.task, case.config.training, str(workdir)).restore(setup.state, STEPS)


@pytest.mark.long
def test_a_resumed_run_equals_the_unbroken_one(case, trained, tmp_path):
    for name in case.task.assets():
        shutil.copyfile(case.workdir / name, tmp_path / name)
    signals = SignalHandler()
    with pytest.raises(SystemExit) as raised:
        train(case.task, case.config.training, str(tmp_path), signals=signals, hooks=[StopAt(signals, 1)])
    assert raised.value.code == 128 + signal.SIGTERM
    resumed = tasks.find(case.config.task).create(case.config, str(tmp_path))
    train(resumed, case.config.training, str(tmp_path))
    assert kills.stream(tmp_path) == kills.stream(case.workdir)
    one, other = (saved_state(case, workdir) for workdir in (case.workdir, tmp_path))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert int(one.step) == STEPS
