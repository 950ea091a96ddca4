"""The contract of tasks, as a pytest class over tiny runs."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tfm import dropout, tasks
from tfm.config import from_mapping, load, save, walk_fields
from tfm.data.tokenizers.protocol import source_tokenizer
from tfm.devices import rows
from tfm.interpret.observation import MAX_TOKENS, Observation, Observes
from tfm.interpret.words import SPECIAL_LABELS, label_tokens
from tfm.io.signals import SignalHandler
from tfm.testing.models import assert_trees_close, quick_jit
from tfm.training.assets import read_training_texts
from tfm.training.config import TrainingConfig
from tfm.training.hooks import Hook
from tfm.training.loss_calls import check_zero_rows
from tfm.training.run_log import read_metrics
from tfm.training.setup import Setup, open_checkpoints
from tfm.training.task import (
    Best,
    Context,
    Data,
    Evaluation,
    Report,
    Samples,
    Task,
    check_contract,
)
from tfm.workdir import runs
from tfm.workdir.train import train

STEPS = 5
LEARNED_ROWS, LEARNING_STEPS = 3, 300  # rows of a batch, and steps in which a tiny model learns them by heart
SEARCHED_BATCHES, OBSERVED_TOKENS = 40, 8  # batches in which the first tokens of a training text are found
# Four checkpoints. The last one is not a multiple of checkpoint_every.
TRAINING = TrainingConfig(
    steps=STEPS,
    warmup_steps=2,
    peak_learning_rate=1e-3,
    log_every=1,
    eval_every=3,
    checkpoint_every=2,
    keep=9,
)


class TinyRun(NamedTuple):
    """A task in a work directory.

    Attributes:
      config: the config of the run. Its training section is `TRAINING`.
      task: the task, created as a new run.
      workdir: the folder of the run.
    """

    config: Any
    task: Any
    workdir: pathlib.Path

    def random_variables(self) -> Any:
        """Returns random variables, none of them zero."""
        rng = np.random.default_rng(0)
        initial = quick_jit(self.task.init)(jax.random.key(0))
        return jax.tree.map(lambda x: x + 0.1 * rng.standard_normal(x.shape, np.float32), initial)

    def create(self, workdir: pathlib.Path, config: Any = None, new: bool = False) -> Any:
        """Creates the task in a different work directory or with a different config."""
        config = self.config if config is None else config
        return tasks.find(self.config.task).create(config, str(workdir), new=new)


def make_tiny_run(make_config: Callable[[pathlib.Path], Any], folder: pathlib.Path) -> TinyRun:
    """Creates the task of a config, with the short training of `TRAINING`, in the folder "run" of `folder`.

    Args:
      make_config: (folder) -> the config of a task. Writes the data into the folder first, and the frozen
        models of the task into its subfolder "run".
      folder: a folder that does not exist. It is created.
    """
    folder.mkdir(parents=True)
    config = dataclasses.replace(make_config(folder), training=TRAINING)
    workdir = folder / "run"
    workdir.mkdir(exist_ok=True)
    return TinyRun(config, tasks.find(config.task).create(config, str(workdir)), workdir)


class TaskContract:
    """The contract of every task (`tfm.training.task`).

    Attributes:
      cases: {name: make_config}, as `make_tiny_run` takes it. The config must have dropout.
      test_examples: number of examples in the split "test" of all cases.
      learning_rate: rate with which the models learn the first rows of a batch by heart.
      text_track: the track of an observation that has the tokens of a text of the training data, or "".
    """

    cases: ClassVar[Mapping[str, Callable[[pathlib.Path], Any]]] = {}
    test_examples: ClassVar[int] = 0
    learning_rate: ClassVar[float] = 5e-3
    text_track: ClassVar[str] = ""

    @staticmethod
    def read_example(data: Any) -> str:
        """Returns the example to observe that is the first text of the training split."""
        return next(iter(read_training_texts(data)))

    @staticmethod
    def read_tokens(batch: Any) -> Any:
        """Returns the array of a batch whose rows have the tokens of texts, before any of them are hidden."""
        return batch["tokens"]

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrizes each test by all cases."""
        if "run" in metafunc.fixturenames:
            metafunc.parametrize("run", self.cases, indirect=True, scope="class")

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, request: Any, tmp_path_factory: Any) -> Iterator[TinyRun]:
        """A run that was never trained. Its compiled programs are dropped afterwards to save memory."""
        yield make_tiny_run(cls.cases[request.param], tmp_path_factory.mktemp("task") / "folder")
        jax.clear_caches()

    @pytest.fixture(scope="class")
    @classmethod
    def data(cls, run: TinyRun) -> Any:
        return run.task.open_data()

    @pytest.fixture(scope="class")
    @classmethod
    def batch(cls, data: Any) -> Any:
        return next(iter(data.train_batches(0)))

    @pytest.fixture(scope="class")
    @classmethod
    def variables(cls, run: TinyRun) -> Any:
        return run.random_variables()

    @pytest.fixture(scope="class")
    @classmethod
    def loss(cls, run: TinyRun) -> Any:
        """The compiled loss without dropout."""
        context = Context(constants=run.task.constants())
        return quick_jit(lambda variables, batch: run.task.loss(variables, batch, context)[:2])

    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls, run: TinyRun) -> runs.Run:
        """The run after an unbroken training."""
        save(run.config, runs.config_path(str(run.workdir)))
        train(run.task, run.config.training, str(run.workdir))
        return runs.load(str(run.workdir))

    def test_task_and_data_have_all_members_of_their_protocols(self, run, data):
        check_contract(run.task, Task)
        check_contract(data, Data)
        assert isinstance(run.config, tasks.find(run.config.task).Config)
        assert run.task.config == run.config
        assert isinstance(run.task.best, Best)
        assert run.task.best.order in ("max", "min")
        assert isinstance(run.task.unit, str)
        assert run.task.unit
        assert os.path.basename(run.config.output_suffix) == run.config.output_suffix

    def test_data_describe_themselves(self, data, batch):
        _assert_equal_rows(batch)
        identity = data.identity()
        assert identity.keys() >= {"train", "validation"}
        assert all(isinstance(each, str) for pair in identity.items() for each in pair)
        assert isinstance(json.dumps(data.describe_batch(3)), str)
        assert type(data.count(batch)) is int
        assert data.count(batch) > 0
        lines = data.describe(1000)
        assert lines or type(data).describe is Data.describe, "its own description of the data is empty"
        assert all(isinstance(each, str) for line in lines for each in line)

    def test_fingerprints_of_splits_are_those_that_a_start_records(self, run, data):
        """Commands compare both, to warn of a split that has changed."""
        fingerprint = getattr(tasks.find(run.config.task), "fingerprint", None)
        if fingerprint is None:
            pytest.skip("the task has no fingerprints of splits")
        for split in ("train", "validation"):
            assert fingerprint(run.config, split) == data.identity()[split]

    def test_no_batch_is_larger_than_the_example(self, data):
        example = data.example()
        _assert_equal_rows(example)
        for batch in itertools.islice(data.train_batches(0), 4):
            assert {name: x.dtype for name, x in batch.items()} == {n: x.dtype for n, x in example.items()}
            assert all(x.size <= example[name].size for name, x in batch.items())

    def test_initial_parameters_are_float32_and_follow_the_key(self, run):
        init = quick_jit(lambda key: run.task.init(key)["params"])
        one, again, other = (jax.tree.leaves(jax.device_get(init(jax.random.key(n)))) for n in (0, 0, 1))
        assert {x.dtype for x in one} == {np.dtype(np.float32)}
        assert all((a == b).all() for a, b in zip(one, again, strict=True))
        assert any((a != b).any() for a, b in zip(one, other, strict=True))

    def test_the_terms_and_metrics_of_the_loss_are_sums_and_counts(self, loss, variables, batch):
        terms, metrics = loss(variables, batch)
        for total, count in (*terms.values(), *metrics.values()):
            assert jnp.shape(total) == jnp.shape(count) == ()
            assert jnp.issubdtype(jnp.asarray(total).dtype, jnp.floating)
        assert all(isinstance(name, str) for name in (*terms, *metrics))
        assert any(count > 0 for _, count in terms.values())

    def test_a_row_of_zeros_changes_no_sum_and_no_count(self, run, data, loss, variables, batch):
        losses = {update.name: update.loss for update in run.task.updates()}
        context = Context(0, jax.random.key(0), run.task.constants())
        check_zero_rows(losses, variables, data.example(), context)
        padded = {name: np.pad(x, [(0, 2)] + [(0, 0)] * (x.ndim - 1)) for name, x in batch.items()}
        assert_trees_close(loss(variables, padded), loss(variables, batch), rtol=1e-5)
        assert data.count(padded) == data.count(batch)

    def test_dropout_follows_the_key_and_is_off_without_a_key(self, run, loss, variables, batch):
        @quick_jit
        def dropped(seed):
            context = Context(0, jax.random.key(seed), run.task.constants())
            return run.task.loss(variables, batch, context).terms

        (same, again, other), plain = map(dropped, (0, 0, 1)), loss(variables, batch)[0]
        assert same == again
        assert same != other, "the config must have dropout"
        assert same != plain

    def test_training_on_a_few_rows_learns_their_targets(self, run, batch):
        if len(run.task.updates()) > 1:
            pytest.skip("the updates of the task oppose each other")
        optimizer = optax.adam(optax.linear_schedule(0, self.learning_rate, LEARNING_STEPS // 4))

        few_rows = {name: x[:LEARNED_ROWS] for name, x in batch.items()}
        context = Context(constants=run.task.constants())

        def loss(params, state):
            terms, metrics, _ = run.task.loss({**state, "params": params}, few_rows, context)
            return sum(total / count for total, count in terms.values()), metrics

        @quick_jit
        def learn(key):
            state = dict(run.task.init(key))
            params = state.pop("params")

            def step(carry, _):
                params, moments = carry
                gradient, metrics = jax.grad(loss, has_aux=True)(params, state)
                changes, moments = optimizer.update(gradient, moments)
                return (optax.apply_updates(params, changes), moments), metrics

            return jax.lax.scan(step, (params, optimizer.init(params)), None, length=LEARNING_STEPS)[1]

        for name, (total, count) in learn(jax.random.key(0)).items():
            if name.endswith("accuracy"):
                assert total[-1] > 0.8 * count[-1], f"{name}: {total[-1]} of {count[-1]} are learned"

    def test_devices_draw_different_noise_for_equal_rows(self, run, variables, batch):
        @quick_jit
        def compute(device):
            context = Context(0, jax.random.key(0), run.task.constants())
            with contextlib.ExitStack() as stack:
                for module in (rows, dropout):
                    stack.enter_context(mock.patch.object(module, "shard_index", return_value=device))
                return run.task.loss(variables, batch, context).terms

        assert compute(jnp.int32(0)) != compute(jnp.int32(1)), "the noise is the same for all devices"

    def test_batches_are_a_function_of_seed_and_step(self, run):
        data, resumed = run.task.open_data(), run.task.open_data()
        batches = list(itertools.islice(data.train_batches(0), 6))
        assert all(map(_are_equal, batches[3:], itertools.islice(resumed.train_batches(3), 3)))
        config = dataclasses.replace(run.config, training=dataclasses.replace(TRAINING, seed=7))
        other = run.create(run.workdir, config).open_data()
        assert not all(map(_are_equal, batches, other.train_batches(0)))
        assert data.identity() == resumed.identity()

    def test_the_shares_of_two_hosts_add_up_to_the_whole_batch(self, run, monkeypatch):
        data = run.task.open_data()
        whole = next(iter(data.train_batches(0)))
        shares = []
        for host in range(2):
            monkeypatch.setattr(jax, "process_count", lambda: 2)
            monkeypatch.setattr(jax, "process_index", lambda host=host: host)
            shares.append(next(iter(run.task.open_data().train_batches(0))))
        assert sum(map(data.count, shares)) == data.count(whole)
        assert not _are_equal(*shares)
        for name, array in whole.items():
            rows = [row.tobytes() for share in shares for row in share[name] if row.any()]
            assert sorted(rows) == sorted(row.tobytes() for row in array if row.any()), name

    def test_an_evaluation_contains_the_metric_that_selects_the_best_checkpoint(self, run, data, trained):
        evaluation = run.task.evaluate(trained.variables, data)
        assert isinstance(evaluation, Evaluation)
        scores = evaluation.scores
        assert run.task.best.metric in scores
        assert run.task.validation_loss in ("", *scores)
        declared = set(run.task.validation_scores)
        assert not declared or declared == set(scores)
        assert all(name.startswith("validation/") and type(x) is float for name, x in scores.items())

    def test_samples_are_texts_and_pictures(self, run, data, variables, tmp_path):
        if not hasattr(run.config, "validation_samples"):
            pytest.skip("the task shows no samples")
        task = run.create(run.workdir, dataclasses.replace(run.config, validation_samples=2))
        scores, samples = task.evaluate(variables, data)
        assert scores == run.task.evaluate(variables, data).scores
        assert isinstance(samples, Samples)
        assert len(samples.rows) == 2
        assert len({tuple(row) for row in samples.rows}) == 1, "the rows have different names"
        assert all(isinstance(text, str) for row in samples.rows for text in row.values())
        for name, draw in samples.pictures.items():
            assert os.path.basename(name) == name
            draw(path := str(tmp_path / f"{name}.png"))
            with open(path, "rb") as file:
                assert file.read(8) == b"\x89PNG\r\n\x1a\n"

    def test_a_report_has_an_output_for_each_example_and_then_scores(self, run, trained):
        reports = list(run.task.report(trained.variables, "test"))
        for report in reports:
            assert isinstance(report, Report)
            assert len(report.outputs) == len(report.examples) == self.test_examples
            assert all(isinstance(text, str) and "\n" not in text for text in report.outputs)
            assert all(isinstance(text, str) for example in report.examples for text in example.values())
            assert isinstance(json.dumps([report.settings, report.rate, report.identity]), str)
            for score in report.scores:
                types = type(score.name), type(score.value), type(score.signature)
                assert types == (str, float, str)
        assert reports[0].scores
        for before, after in itertools.pairwise(reports):
            assert after.scores[: len(before.scores)] == before.scores

    def test_an_ensemble_differs_from_its_members(self, run, variables, trained):
        if not run.task.averages_models:
            pytest.skip("the task evaluates no ensembles")
        members = variables, trained.variables
        *_, ensemble = run.task.report(members, "test")
        singles = [list(run.task.report(member, "test"))[-1] for member in members]
        reports = [(report.outputs, report.scores) for report in singles]
        if reports[0] == reports[1]:
            pytest.skip("models of a few steps have equal reports")
        assert (ensemble.outputs, ensemble.scores) not in reports

    def test_every_default_example_can_be_observed(self, run, variables):
        if not isinstance(run.task, Observes):
            pytest.skip("the task has no examples")
        for example in run.task.default_examples():
            assert isinstance(run.task.observe(variables, example, MAX_TOKENS), Observation)

    def test_an_observed_text_has_the_tokens_that_training_reads(self, run, data, variables):
        if not self.text_track:
            pytest.skip("the task observes no single texts of its training data")
        tokenizer = source_tokenizer(run.task.tokenizer)
        batches = itertools.islice(data.train_batches(0), SEARCHED_BATCHES)
        rows = [_join_labels(label_tokens(tokenizer, row)) for b in batches for row in self.read_tokens(b)]
        observation = run.task.observe(variables, self.read_example(run.config.data), MAX_TOKENS)
        # Rows may cut a text, but some row has its beginning.
        labels = _join_labels(observation.tracks[self.text_track].labels[:OBSERVED_TOKENS])
        assert any(labels in row for row in rows), labels

    def test_assets_are_files_that_recreate_the_task(self, run, variables, tmp_path):
        assets = run.task.assets()
        for name, fingerprint in assets.items():
            assert isinstance(fingerprint, str)
            assert len(fingerprint) >= 32
            shutil.copyfile(run.workdir / name, tmp_path / name)
        again = run.create(tmp_path)
        assert again.assets() == assets
        shapes = jax.eval_shape(again.init, jax.random.key(0))
        assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, variables)

    def test_a_planned_task_is_a_task_of_the_same_class(self, run):
        plan = getattr(tasks.find(run.config.task), "plan", None)
        if plan is None:
            pytest.skip("the task has no plan")
        assert type(plan(run.config)) is type(run.task)

    def test_a_config_survives_json(self, run, tmp_path):
        path = str(tmp_path / "config.json")
        save(run.config, path)
        assert from_mapping(type(run.config), load(path)) == run.config
        assert runs.parse_config(load(path)) == run.config

    def test_a_portable_config_contains_no_path(self, run):
        portable = run.config.without_paths()
        values = [leaf.value for leaf in walk_fields(portable)]
        values = [each for value in values for each in (value if isinstance(value, tuple) else [value])]
        assert not [value for value in values if isinstance(value, str) and os.path.isabs(value)]
        assert portable.without_paths() == portable
        assert portable.model == run.config.model
        assert type(portable) is type(run.config)

    def test_a_resumed_run_equals_the_unbroken_run_bit_for_bit(self, run, trained, tmp_path):
        for name in run.task.assets():
            shutil.copyfile(run.workdir / name, tmp_path / name)
        signals = SignalHandler()
        hooks = [_StopAfterStep(signals, 1)]
        with pytest.raises(SystemExit) as raised:
            train(run.task, TRAINING, str(tmp_path), signals=signals, hooks=hooks)
        assert raised.value.code == 128 + signal.SIGTERM
        train(run.create(tmp_path, new=True), TRAINING, str(tmp_path))
        assert rows_without_times(tmp_path) == rows_without_times(run.workdir)
        one, other = (_last_state(run, workdir) for workdir in (run.workdir, tmp_path))
        jax.tree.map(np.testing.assert_array_equal, one, other)
        assert int(one["optimizer"]["step"]) == STEPS


def _join_labels(labels: Sequence[str]) -> str:
    """Returns the labels of tokens as one text without special tokens and padding."""
    return "\0".join(label for label in labels if label not in SPECIAL_LABELS.values())


class _StopAfterStep(Hook):
    """Asks a run to end after a step, as SIGTERM does."""

    def __init__(self, signals: SignalHandler, step: int):
        self._signals, self._step = signals, step

    def on_step(self, step: int, metrics: Any) -> None:
        if step == self._step:
            self._signals.signal = signal.SIGTERM


def _assert_equal_rows(batch: Mapping[str, np.ndarray]) -> None:
    assert all(isinstance(name, str) and isinstance(x, np.ndarray) for name, x in batch.items())
    assert len({len(x) for x in batch.values()}) == 1


def _are_equal(batch: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return batch.keys() == other.keys() and all(np.array_equal(batch[name], other[name]) for name in batch)


def rows_without_times(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the rows of metrics.jsonl without the numbers that a clock decides."""
    return [
        {name: x for name, x in row.items() if name != "time" and not name.endswith("_per_second")}
        for row in read_metrics(str(workdir))
    ]


def _last_state(run: TinyRun, workdir: pathlib.Path) -> Any:
    """Returns the tree of the last checkpoint: parameters, states, and the state of the optimizer."""
    like = Setup(run.task, TRAINING).state
    return open_checkpoints(run.task, TRAINING, str(workdir)).restore(STEPS, like.items())
