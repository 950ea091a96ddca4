"""Tests of the training loop: resuming, early stopping, checkpoints, compilation, metrics and averages."""

import contextlib
import dataclasses
import itertools
import os
import re
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.support import eight_gaussians, tiny
from tests.support.bare_task import make_state, make_step
from tests.support.eight_gaussians import EightGaussians
from tests.support.tiny import train_run
from tests.support.tiny_regression import FEATURES, ROWS, Regression, make_config
from tfm.devices.flops import count_flops, peak_flops
from tfm.errors import UserError
from tfm.io.lock import DirectoryGuard
from tfm.testing.tasks import rows_without_times
from tfm.training import metrics, setup
from tfm.training.hooks import Hook, Hooks
from tfm.training.metrics import StepMetrics
from tfm.training.run_log import METRICS_FILE, MetricsWriter, format_duration, read_metrics
from tfm.training.setup import Setup
from tfm.training.task import Evaluation, LossOutput
from tfm.visualize.figures import save as save_figure
from tfm.visualize.plots import plot_curves
from tfm.workdir import runs


@pytest.mark.long
@pytest.mark.parametrize("stop", [3, 5])
def test_checkpoint_between_logged_steps_contains_the_sums(stop, regression_run, tmp_path):
    """A resumed run logs the same rows as an unbroken run. The logged steps are 2, 4 and 6."""
    settings = make_config(checkpoint_every=stop)
    train_run(settings, tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "6")
    with open(tmp_path / METRICS_FILE, "rb+") as file:
        file.truncate(file.seek(-9, os.SEEK_END))  # a kill cuts the last line short
    train_run(settings, tmp_path)
    assert rows_without_times(tmp_path) == rows_without_times(regression_run)
    cut = [line for line in (tmp_path / METRICS_FILE).read_text().splitlines() if line[-1] != "}"]
    assert len(cut) == 1  # the next row begins on a new line


@pytest.mark.long
def test_former_best_checkpoint_is_deleted_after_a_better_last_evaluation(tmp_path, monkeypatch):
    """Steps 3 and 6 are evaluated. Step 3 is the best step until step 6 has a score."""
    scores = itertools.count()  # each score is better than the scores before it
    monkeypatch.setattr(Regression, "evaluate", lambda *_: Evaluation({"validation/score": next(scores)}))
    train_run(make_config(keep=1, keep_best=1), tmp_path)
    assert os.listdir(tmp_path / "checkpoints") == ["6"]


@pytest.mark.long
def test_run_stops_early_and_stays_stopped(tmp_path, monkeypatch, caplog):
    """Restarts have no effect on the patience. A score that equals the best score is no improvement."""
    monkeypatch.setattr(Regression, "evaluate", lambda *_: Evaluation({"validation/score": 100.0}))
    options = {"eval_every": 2, "checkpoint_every": 1, "patience": 2}
    for name, pieces in (("whole", (18,)), ("pieces", (2, 3, 4, 5, 18, 18))):
        for steps in pieces:
            caplog.clear()
            with caplog.at_level("INFO", "tfm"):
                train_run(make_config(steps=steps, **options), tmp_path / name)
        assert re.search(r"\b2 evaluations\b.* 100\b", caplog.text)
    assert "Nothing to do: 2 evaluations" in caplog.text
    for name, last in (("whole", 6), ("pieces", 4)):  # each piece is also evaluated at its end
        assert runs.load(str(tmp_path / name), checkpoint="last").steps == [last]


@pytest.mark.long
def test_translation_trains_on_while_its_loss_falls(corpus, tmp_path, caplog):
    """BLEU is 0 at first, and the patience is one evaluation."""
    config = tiny.make_config(corpus, steps=8, warmup_steps=100, eval_every=2, patience=1, best_by="max:bleu")
    rows = tiny.train_run(dataclasses.replace(config, validation_sentences=2), tmp_path / "run")
    losses = {row["step"]: row["validation/nll"] for row in rows if "validation/nll" in row}
    assert list(losses) == [2, 4, 6, 8]
    assert sorted(losses.values(), reverse=True) == list(losses.values())
    assert {row["validation/bleu"] for row in rows if "validation/bleu" in row} == {0.0}


def test_misspelt_score_is_reported_before_the_first_step(corpus, tmp_path):
    config = tiny.make_config(corpus, best_by="max:bluu")
    with pytest.raises(UserError, match=r"training\.best_by.*\(loss, nll, accuracy, bleu\).*'max:bluu'"):
        tiny.train_run(config, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.long
def test_loop_waits_for_the_first_step_only(tmp_path, caplog):
    """A wait after each step would leave the device without work."""
    with caplog.at_level("INFO", "tfm"):
        train_run(make_config(steps=2), tmp_path)
        train_run(make_config(steps=5), tmp_path)
    assert caplog.text.count("First step finished") == 2  # of each start


def test_finished_run_does_nothing(regression_run, caplog):
    workdir, rows = regression_run, read_metrics(str(regression_run))
    with caplog.at_level("INFO", "tfm"):
        again = train_run(make_config(), workdir)
    assert "Nothing to do" in caplog.text
    assert again == rows


def test_run_ends_if_the_step_is_too_large(tmp_path, monkeypatch):
    def refuse(memory, accumulation):
        raise UserError("too large")

    monkeypatch.setattr("tfm.training.setup.check_memory", refuse)
    with pytest.raises(UserError, match="too large"):
        train_run(make_config(steps=3), tmp_path)


def test_metrics_contain_training_and_validation(regression_run):
    rows = read_metrics(str(regression_run))
    training = [row for row in rows if "train/loss" in row]
    assert [row["step"] for row in rows if "validation/score" in row] == [3, 6]
    assert all(row["train/points_per_second"] > 0 for row in training)
    assert all(row["train/skipped"] == 0 < row["train/parameter_norm"] for row in training)


@pytest.mark.long
def test_logged_steps_have_the_learning_rate_of_the_paper(tmp_path):
    rows = train_run(make_config(steps=7, warmup_steps=3, log_every=3), tmp_path)
    rates = {row["step"]: row["train/learning_rate"] for row in rows if "train/learning_rate" in row}
    expected = {step: FEATURES**-0.5 * min(step**-0.5, step * 3**-1.5) for step in (3, 6, 7)}
    assert rates == pytest.approx(expected, rel=1e-6)


def test_load_averages_the_last_checkpoints(regression_run):
    mean = runs.load(str(regression_run), average=2)
    assert mean.steps == [4, 6]
    each = [runs.load(str(regression_run), checkpoint=str(step)).params for step in mean.steps]
    expected = jax.tree.map(lambda a, b: (np.asarray(a, np.float64) + b) / 2, *each)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), mean.params, expected)
    assert runs.load(str(regression_run), average=3).steps == [2, 4, 6]  # step 3 has a checkpoint, too
    with pytest.raises(UserError, match="Expected 40 checkpoints at equal distances"):
        runs.load(str(regression_run), average=40)
    with pytest.raises(UserError, match="'best', 'last' or one of the steps"):
        runs.load(str(regression_run), checkpoint="5")


@pytest.mark.long
def test_gradient_is_the_mean_over_tokens():
    """Compares the SGD updates of a linear model with their formula."""

    def loss(variables, batch, context):
        total = (variables["params"]["w"] * batch["x"]).sum()
        return LossOutput({"loss": (total, batch["count"].sum())})

    step = make_step(loss, optax.sgd(0.5))
    state = make_state({"w": jnp.float32(2.0)}, optax.sgd(0.5))
    after, metrics = step(state, {"x": jnp.float32([1, 2, 5]), "count": jnp.float32([1, 1, 2])})
    assert float(after.params["w"]) == pytest.approx(2.0 - 0.5 * (8 / 4))
    assert [float(x) for x in metrics["loss"]] == [16.0, 4.0]
    assert float(metrics["gradient_norm"][0]) == pytest.approx(2.0)
    after, _ = step(state, {"x": jnp.float32([1, 2, 5]), "count": jnp.float32([0.25, 0.25, 0])})
    assert float(after.params["w"]) == pytest.approx(2.0 - 0.5 * (8 / 0.5))
    after, metrics = step(state, {"x": jnp.zeros(3), "count": jnp.zeros(3)})
    assert (float(after.params["w"]), float(metrics["skipped"][0])) == (2.0, 0.0)


def test_rows_that_a_resumed_run_repeats_do_not_count(tmp_path):
    def write(step, *rows):
        with Hooks([MetricsWriter(str(tmp_path))]) as writer:
            writer.on_start(step, None)
            for at, loss in rows:
                writer.on_log(at, {"train/loss": loss})
                writer.on_evaluation(at, {"validation/nll": loss})

    write(0, (2, 2.0), (4, 4.0), (6, 6.0))
    write(4, (5, 5.0), (8, 8.0))
    rows = read_metrics(str(tmp_path))
    assert [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row] == [
        (2, 2.0),
        (4, 4.0),
        (5, 5.0),
        (8, 8.0),
    ]
    assert [row["step"] for row in rows if "validation/nll" in row] == [2, 4, 5, 8]
    write(0)
    assert read_metrics(str(tmp_path)) == []


def test_error_of_a_hook_that_closes_leaves_no_other_hook_open():
    closed = []

    class Named(Hook):
        def __init__(self, name):
            self.name = name

        def close(self, outcome):
            closed.append((self.name, outcome))
            if self.name == "first":
                raise OSError("The disk is full.")

    hooks = Hooks([Named("first"), Named("second")])
    with pytest.raises(OSError, match="full"):
        hooks.close("finished")
    assert closed == [("first", "finished"), ("second", "finished")]


def report(task, sums, folder):
    """Returns the metrics that `StepMetrics` reports for sums."""
    with contextlib.closing(DirectoryGuard(folder)) as guard:
        return StepMetrics(Setup(task, task.config.training), None, guard, None, 0, sums).report(2)


@pytest.mark.parametrize(
    ("loss", "updates", "warns"), [((0, 0), 2, True), ((0, 0), 0, False), ((3, 1), 1, False)]
)
def test_loss_with_a_count_of_zero_yields_a_warning(loss, updates, warns, tmp_path, caplog):
    """Steps that were skipped, and steps in which an update is not due, have no gradient norm."""
    task = Regression(make_config())
    report(task, {"loss": loss, "gradient_norm": (0.5 * updates, updates)}, tmp_path)
    assert ("up to 2 counts nothing" in caplog.text) == warns


@pytest.mark.parametrize("empty", [[], ["fit"], ["fit", "judge"]])
def test_each_term_with_a_count_of_zero_yields_a_warning(empty, tmp_path, caplog):
    """The loss of several terms is the sum of their means, which counts 1 in each step."""
    counts = {name: (3 * (name not in empty),) * 2 for name in ("fit", "judge")}
    sums = {"loss": (2, 2), "gradient_norm": (1, 2)} | {f"loss/{name}": counts[name] for name in counts}
    report(Regression(make_config()), sums, tmp_path)
    assert [name for name in counts if f"The loss/{name} of the steps" in caplog.text] == empty


def test_loss_of_several_updates_is_the_sum_of_the_means_of_the_steps_in_which_they_are_due(tmp_path):
    task = EightGaussians(eight_gaussians.make_config())
    losses = {"discriminator/loss": (6.0, 2.0), "generator/loss": (5.0, 1.0)}
    metrics = report(task, losses | {"loss": (11.0, 3.0)}, tmp_path)
    assert metrics["train/loss"] == 3 + 5
    assert report(task, {"generator/loss": (5.0, 1.0)}, tmp_path)["train/loss"] == 5


def test_speed_counts_the_training_but_not_the_pauses(tmp_path, monkeypatch):
    """Two steps of ROWS points take 4 seconds, and an evaluation between them takes 1,000 seconds."""
    task, clock = Regression(make_config()), [0.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: clock[0])
    data = task.open_data()
    batch = data.example()
    with contextlib.closing(DirectoryGuard(tmp_path)) as guard:
        steps = StepMetrics(Setup(task, task.config.training), data, guard, Hook(), 0, {})
        for number in (1, 2):
            clock[0] += 2
            steps.put(number, batch, {"loss": (1.0, 1.0), "skipped": (0.0, 1.0)}, None)
            with steps.paused():
                clock[0] += 500
        steps.read(None)
        assert steps.report(2)["train/points_per_second"] == 2 * ROWS / 4


def test_error_of_a_loss_without_a_text_is_named_by_its_type(monkeypatch):
    def fail(*_):
        raise ValueError

    task = Regression(make_config())
    monkeypatch.setattr(task, "loss", fail)
    with pytest.raises(UserError, match=r"update 'loss' .*\(ValueError, at .*test_loop"):
        Setup(task, task.config.training).check_losses(task.open_data().example())


def test_user_error_of_a_loss_is_raised_unchanged(monkeypatch):
    error = UserError("The table has no column label.")

    def fail(*_):
        raise error

    task = Regression(make_config())
    monkeypatch.setattr(task, "loss", fail)
    with pytest.raises(UserError) as raised:
        Setup(task, task.config.training).compile_step(task.open_data().example())
    assert raised.value is error


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (75, "1:15"), (3675, "1:01:15")])
def test_durations_have_hours_minutes_and_seconds(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.long
@pytest.mark.parametrize("value", ['"x"', "null", "[1]", "true", "{}"])
def test_rows_without_numbers_are_left_out(value, tmp_path):
    rows = [f'{{"step": 1, "train/loss": {value}}}', '{"step": 2, "train/loss": Infinity}']
    rows += ['{"step": true, "train/loss": 4}', '{"step": 3, "train/loss": 4}']
    rows += ['{"step": 3, "train/loss": 5}', '{"step": 4, "tra']  # a kill cut the last line
    (tmp_path / METRICS_FILE).write_text("\n".join(rows))
    assert [row["step"] for row in read_metrics(str(tmp_path))] == [2, 3]  # the last row of a step counts
    figure = plot_curves({"run": read_metrics(str(tmp_path))}, ["train/loss"])
    save_figure(figure, str(tmp_path / "curves.png"))


@pytest.mark.long
def test_moving_average_is_validated_and_loaded(tmp_path):
    """The expected average is computed from the checkpoints of a run without an average."""
    decay, steps = 0.75, 4
    options = {"steps": steps, "checkpoint_every": 1, "eval_every": 2}
    train_run(make_config(**options), tmp_path / "plain")
    train_run(make_config(ema_decay=decay, **options), tmp_path / "average")
    every = [runs.load(str(tmp_path / "plain"), checkpoint=str(step)).params for step in range(1, steps + 1)]
    weights = decay ** np.arange(steps)[::-1]
    expected = jax.tree.map(lambda *params: np.average(params, axis=0, weights=weights), *every)
    found = runs.load(str(tmp_path / "average"), checkpoint="last").params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)
    plain, average = (read_metrics(str(tmp_path / name)) for name in ("plain", "average"))
    for kind, same in (("train/loss", True), ("validation/error", False)):
        assert ([r[kind] for r in plain if kind in r] == [r[kind] for r in average if kind in r]) is same


@pytest.mark.long
def test_resumed_run_cannot_start_an_average(tmp_path):
    train_run(make_config(steps=2), tmp_path)
    with pytest.raises(UserError, match="has no average"):
        train_run(make_config(ema_decay=0.5), tmp_path)


def test_log_shows_the_share_of_the_peak_rate_of_a_known_device(tmp_path, monkeypatch, caplog):
    """One step multiplies 6 x 4 points forward and backward, so its rate is far below a peak of 1 GFLOP/s."""
    for module in (setup, metrics):
        monkeypatch.setattr(module, "peak_flops", lambda: 1e9)
    name = "train/share_of_peak_flop_per_second"
    with caplog.at_level("INFO", "tfm"):
        rows = [row for row in train_run(make_config(), tmp_path) if "train/loss" in row]
    flops = [row[name] / row["train/points_per_second"] * ROWS * 1e9 for row in rows]
    np.testing.assert_allclose(flops, flops[0], rtol=1e-6)
    assert round(flops[0]) == 2 * 2 * ROWS * FEATURES
    assert re.search(r"points/s \(\d+\.\d% of peak FLOP/s\)", caplog.text)


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5p", 459e12),
        ("cpu", 0),
    ],
)
def test_peak_rates_follow_the_name_of_the_device(monkeypatch, kind, peak):
    monkeypatch.setattr(jax, "local_devices", lambda: [types.SimpleNamespace(device_kind=kind)])
    assert peak_flops() == peak


def test_operations_of_matrix_products_are_counted():
    def program(x, weights):
        def layer(x, weights):
            return jax.checkpoint(jnp.tanh)(x @ weights), None

        x, _ = jax.lax.scan(layer, x, weights)
        return jax.jit(lambda x: jnp.einsum("bi,bj->ij", x, x))(x)

    shapes = jnp.ones((5, 3)), jnp.ones((4, 3, 3))
    assert count_flops(jax.make_jaxpr(program)(*shapes)) == 2 * (4 * 5 * 3 * 3 + 3 * 3 * 5)
