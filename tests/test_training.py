"""The training loop: resuming, several devices, checkpoints, and what a run leaves behind."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.tiny import make_config, train_run
from tfm import runs
from tfm.errors import UserError
from tfm.tasks import translation
from tfm.training import checkpoints as saved
from tfm.training.reporting import duration, read_metrics
from tfm.training.step import TrainState, make_train_step


def final_params(workdir):
    return runs.load(str(workdir), checkpoint="last").params


def test_a_stopped_run_goes_on_with_the_same_batches_losses_and_parameters(corpus, tiny_run, tmp_path):
    rows = read_metrics(str(tiny_run))
    train_run(make_config(corpus, steps=4), tmp_path)
    resumed = train_run(make_config(corpus), tmp_path)
    for name in ("train/loss", "train/learning_rate", "train/gradient_norm"):
        whole = {row["step"]: row[name] for row in rows if name in row}
        pieces = {row["step"]: row[name] for row in resumed if name in row}
        assert whole == pieces
    jax.tree.map(np.testing.assert_array_equal, final_params(tiny_run), final_params(tmp_path))


def test_a_finished_run_does_nothing(corpus, tiny_run, caplog):
    workdir, rows = tiny_run, read_metrics(str(tiny_run))
    with caplog.at_level("INFO", "tfm"):
        again = train_run(make_config(corpus), workdir)
    assert "Nothing to do" in caplog.text
    assert again == rows


def test_metrics_show_training_and_validation(tiny_run):
    rows = read_metrics(str(tiny_run))
    training = [row for row in rows if "train/loss" in row]
    assert [row["step"] for row in training] == [2, 4, 6]
    assert [row["step"] for row in rows if "validation/bleu" in row] == [3, 6]
    assert all(row["train/tokens_per_second"] > 0 for row in training)


def test_tensorboard_has_event_files(tiny_run):
    assert list((tiny_run / "tensorboard").glob("events.*"))


def test_the_step_is_compiled_once(corpus, tmp_path, monkeypatch):
    compiled = []
    plain = translation.Translation.loss

    def counting(self, params, batch, rng):
        if rng is not None:
            compiled.append(batch["inputs"].shape)
        return plain(self, params, batch, rng)

    monkeypatch.setattr(translation.Translation, "loss", counting)
    train_run(make_config(corpus, steps=5), tmp_path)
    assert len(compiled) == 1


def test_checkpoints_keep_the_newest_and_the_best(tmp_path):
    store = saved.Checkpoints(tmp_path, best_metric="bleu", keep=2)
    for step, bleu in [(1, 3.0), (2, 9.0), (3, None), (4, 5.0), (5, None)]:
        store.save(state_of(step), {"bleu": bleu} if bleu else {"nll": 1.0})
    store.wait()
    assert store.steps() == [2, 4, 5]
    assert (store.best(), store.latest()) == (2, 5)
    assert int(store.restore(state_of(0), 4).step) == 4
    np.testing.assert_array_equal(store.restore_weights(state_of(0).params, 2)["w"], state_of(2).params["w"])
    with pytest.raises(UserError, match="no checkpoint of step 3"):
        store.restore(state_of(0), 3)
    store.close()


def state_of(step):
    params = {"w": jnp.full((3, 2), float(step))}
    return TrainState(jnp.int32(step), params, optax.adam(1e-3).init(params))


def test_a_checkpoint_of_another_shape_is_refused_by_name(tmp_path):
    store = saved.Checkpoints(tmp_path)
    store.save(state_of(1))
    store.wait()
    other = {"w": jnp.zeros((3, 5))}
    with pytest.raises(UserError, match=r"w should be \(3, 5\) and is \(3, 2\)"):
        store.restore_weights(other)
    with pytest.raises(UserError, match=r"v should be \(1,\) and is absent"):
        store.restore_weights({"w": jnp.zeros((3, 2)), "v": jnp.zeros(1)})
    store.close()


def test_no_checkpoint_is_a_user_error(tmp_path):
    store = saved.Checkpoints(tmp_path)
    with pytest.raises(UserError, match="train first"):
        store.restore(state_of(0))
    store.close()


def test_average_is_the_mean_in_float64():
    trees = [{"w": np.float32([1e8, 1.0])}, {"w": np.float32([1.0, 2.0])}, {"w": np.float32([-1e8, 3.0])}]
    np.testing.assert_array_equal(saved.average(trees)["w"], np.float32([1 / 3, 2.0]))


def test_load_averages_the_last_checkpoints(tiny_run):
    mean = runs.load(str(tiny_run), average_last=2)
    assert mean.steps == [4, 6]
    each = [runs.load(str(tiny_run), checkpoint=str(step)).params for step in mean.steps]
    expected = jax.tree.map(lambda a, b: (np.asarray(a, np.float64) + b) / 2, *each)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), mean.params, expected)
    assert runs.load(str(tiny_run), average_last=3).steps == [2, 4, 6]  # there is one of step 3 too
    with pytest.raises(UserError, match="Expected 40 checkpoints at equal distances"):
        runs.load(str(tiny_run), average_last=40)
    with pytest.raises(UserError, match="'best', 'last' or one of the steps"):
        runs.load(str(tiny_run), checkpoint="5")


def test_a_step_descends_the_mean_over_tokens_not_over_rows():
    """The update of a linear model against the formula of Adam's first step in NumPy."""

    def loss(params, batch, rng):
        return ((params["w"] * batch["x"]).sum(), batch["count"].sum()), {}

    params = {"w": jnp.float32(2.0)}
    step = make_train_step(loss, optax.sgd(0.5), jax.random.key(0))
    state = TrainState(jnp.int32(0), params, optax.sgd(0.5).init(params))
    after, metrics = step(state, {"x": jnp.float32([1, 2, 5]), "count": jnp.float32([1, 1, 2])})
    assert float(after.params["w"]) == pytest.approx(2.0 - 0.5 * (8 / 4))
    assert [float(x) for x in metrics["loss"]] == [16.0, 4.0]
    assert float(metrics["gradient_norm"][0]) == pytest.approx(2.0)


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (75, "1:15"), (3675, "1:01:15")])
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path):
    lines = '{"step": 1, "train/loss": 3.0}\n{"step": 1, "train/loss": 2.0}\n{"step": 2, "tra'
    (tmp_path / "metrics.jsonl").write_text(lines)
    assert read_metrics(str(tmp_path)) == [{"step": 1, "train/loss": 2.0}]


EIGHT_DEVICES = """
import dataclasses, sys
import jax, jax.numpy as jnp, numpy as np, optax
from tests.tiny import MODEL
from tfm.tasks.translation import Config, Translation
from tfm.training.parallel import make_layout
from tfm.training.step import TrainState, make_train_step

assert jax.device_count() == 8
class Vocabulary:
    def __len__(self):
        return 50
task = Translation(Config(model=dataclasses.replace(MODEL, dropout=0.0)), Vocabulary())
rng = np.random.default_rng(0)
def batch(rows):  # ragged: rows of different lengths, not a multiple of the devices, one almost all padding
    arrays = {name: np.zeros((rows, 12), np.int32) for side in ("input", "target")
              for name in (side + "s", side + "_positions", side + "_segments")}
    for side in ("input", "target"):
        for row in range(rows):
            length = 1 if row == 0 else rng.integers(1, 13)
            arrays[side + "s"][row, :length] = rng.integers(3, 50, length)
            arrays[side + "_positions"][row, :length] = np.arange(length)
            arrays[side + "_segments"][row, :length] = 1
    return arrays
batches = [batch(rows) for rows in (13, 13, 13)]
optimizer = optax.sgd(0.5)
params = task.init(jax.random.key(0))
results = []
for mode in ("jit", "pmap"):
    layout = make_layout(mode)
    assert layout.devices == (1 if mode == "jit" else 8)
    step = layout.compile(make_train_step(task.loss, optimizer, jax.random.key(1)))
    state = layout.place_state(TrainState.create(jax.tree.map(jnp.copy, params), optimizer))
    losses = []
    for each in batches:
        state, metrics = step(state, layout.place_batch(each))
        total, count = layout.fetch_metrics(metrics)["loss"]
        losses.append((float(total), float(count)))
    results.append((losses, jax.device_get(layout.fetch_state(state))))
np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-5)
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *(r[1] for r in results))
assert make_layout("auto").devices == 8
print("equal")
"""


def test_eight_devices_equal_one_on_ragged_batches():
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-c", EIGHT_DEVICES], capture_output=True, text=True, env=environment, check=False
    )
    assert result.stdout.strip() == "equal", result.stderr[-2000:]
