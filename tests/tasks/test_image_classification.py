"""Tests of the task that classifies images: loss, report, observations, errors and commands."""

import dataclasses
import json
import types

import jax
import numpy as np
import pytest
import scipy.special

from tests.support import batch_norm_net
from tests.support import images as tiny
from tests.support.hostile_values import answer
from tests.support.tiny import write_config_file
from tfm.commands import compare, evaluate, export, train, translate, visualize
from tfm.config import from_mapping, save
from tfm.data.config import ImagesConfig
from tfm.data.images import ArrayImages, open_images, open_splits
from tfm.errors import UserError
from tfm.interpret.observation import AttentionMap, Probabilities
from tfm.systems.vit.model import ViTConfig
from tfm.tasks import image_classification as classification
from tfm.tasks.image_classification import Config
from tfm.testing.models import quick_jit
from tfm.training.config import TrainingConfig
from tfm.training.task import Context
from tfm.workdir import runs, warm_start
from tfm.workdir.translator import Translator


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "images.npz"
    tiny.write_arrays(path, {"train": 13, "validation": 7, "test": 5})
    data = ImagesConfig(kind="arrays", file=str(path), batch_size=4)
    training = TrainingConfig(peak_learning_rate=1e-3, steps=26, warmup_steps=2)
    return Config(model=tiny.MODEL, data=data, training=training, label_smoothing=0.2)


@pytest.fixture(scope="module")
def task(config, tmp_path_factory):
    return classification.create(config, str(tmp_path_factory.mktemp("run")))


def random_params(task, seed):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(task.init, jax.random.key(0))["params"]
    return jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)


@pytest.fixture(scope="module")
def params(task):
    return random_params(task, 0)


@quick_jit(static_argnums=0)
def apply(model, params, images):
    return model.apply({"params": params}, images, train=False)


def classify(task, params, images):
    """Returns the probabilities of the classes, float64 [B, classes]."""
    return scipy.special.softmax(np.asarray(apply(task.model, params, images), np.float64), axis=-1)


def read_images(task, split):
    """Returns all images of a split as the model reads them, and their labels."""
    source = open_images(task.config.data, split)
    pixels, labels = source.take(np.arange(len(source)))
    return pixels.astype(np.float32) / 127.5 - 1, labels


@pytest.mark.long
def test_loss_smooths_over_the_other_classes_and_ignores_padding(task, params):
    *_, last = task.open_data().validation_batches()  # three images and a row of padding
    loss = quick_jit(lambda params: task.loss({"params": params}, last, Context())[:2])
    terms, metrics = loss(params)
    total, count = terms["loss"]
    labels, logs = last["labels"][:3], np.log(classify(task, params, last["images"][:3]))
    target = 0.1 + 0.7 * np.eye(3)[labels]
    assert count == 3
    np.testing.assert_allclose(total, -(target * logs).sum(), rtol=1e-5)
    np.testing.assert_allclose(metrics["nll"][0], -logs[np.arange(3), labels].sum(), rtol=1e-5)
    assert [float(x) for x in metrics["accuracy"]] == [(logs.argmax(-1) == labels).sum(), 3]
    for bias in (5, 0):  # padding has label 0, and class 0 wins if all logits are equal
        head = {"kernel": np.zeros_like(params["head"]["kernel"]), "bias": np.array([bias, 0, 0], np.float32)}
        accuracy = loss(params | {"head": head})[1]["accuracy"]
        assert [float(x) for x in accuracy] == [(labels == 0).sum(), 3]


@pytest.mark.long
def test_evaluation_is_the_mean_over_images(task, params):
    scores = task.evaluate({"params": params}, task.open_data()).scores
    images, labels = read_images(task, "validation")
    found = classify(task, params, images)
    expected = {
        "validation/accuracy": (found.argmax(-1) == labels).mean(),
        "validation/nll": -np.log(found[np.arange(7), labels]).mean(),
    }
    assert scores == pytest.approx(expected, rel=1e-5)


@pytest.mark.long
def test_report_has_the_class_and_the_label_of_each_image(task, params):
    (report,) = task.report({"params": params}, "test")
    images, labels = read_images(task, "test")
    found, names = classify(task, params, images), ["cat", "dog", "bird"]
    assert report.outputs == [names[label] for label in found.argmax(-1)]
    assert [example["label"] for example in report.examples] == [names[label] for label in labels]
    shares = [float(example["probability"]) for example in report.examples]
    assert shares == pytest.approx(found.max(-1).tolist(), abs=1e-3)
    assert report.scores[0].value == pytest.approx(100 * (found.argmax(-1) == labels).mean())


@pytest.mark.long
def test_ensemble_averages_probabilities(task, params):
    images, _ = read_images(task, "test")
    members = (params, random_params(task, 1))
    expected = np.mean([classify(task, each, images) for each in members], axis=0)
    found = task.classify(tuple({"params": each} for each in members), images)
    np.testing.assert_allclose(np.exp(found), expected, atol=1e-5)


def test_description_of_the_data_has_sizes_batches_and_augmentation(task):
    lines = dict(task.open_data().describe(100))
    assert lines["images"] == "13 to train on, 7 to validate"
    assert lines["batches"] == "4 images of 6 x 6 x 5"
    assert lines["augmentation"] == "none"
    assert lines["epochs"] == "8.0 in 26 steps"
    data = dataclasses.replace(task.config.data, batch_size=14, max_shift=1, flip=True)
    changed = classification.ClassificationData(dataclasses.replace(task.config, data=data), task.label_names)
    lines = dict(changed.describe(100))
    assert lines["augmentation"] == "moved by up to 1 pixels and mirrored"
    assert "14 is more than the 13 training images" in lines["warning"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": 8}, r"8 x 8 x 5 \(height, width, channels\).*got 6 x 6 x 5.*model\.image_size"),
        ({"channels": 1}, r"6 x 6 x 1 .*got 6 x 6 x 5.*model\.channels"),
        ({"classes": 10}, r"3 classes .*10.*model\.classes to 3"),
    ],
)
def test_images_that_do_not_fit_the_model_are_errors(config, tmp_path, fields, message):
    other = dataclasses.replace(config, model=dataclasses.replace(config.model, **fields))
    with pytest.raises(UserError, match=message):
        classification.create(other, str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_every_split_is_compared_with_the_model_before_training(config, tmp_path):
    path = tmp_path / "images.npz"
    tiny.write_arrays(path, {"train": 13, "validation": 7, "test": 5})
    arrays = dict(np.load(path))
    for split in ("validation", "test"):
        arrays[f"{split}_images"] = arrays[f"{split}_images"][:, :5]
    np.savez(path, **arrays)
    other = dataclasses.replace(config, data=dataclasses.replace(config.data, file=str(path)))
    with pytest.raises(UserError, match=r"(?s)'validation' .*got 5 x 6 x 5.*'test' .*got 5 x 6 x 5"):
        classification.create(other, str(tmp_path))


@pytest.mark.long
def test_too_large_models_are_rejected_before_training(config, tmp_path):
    huge = ViTConfig(image_size=4, channels=2, patch_size=2, classes=3, d_model=65_520, d_ff=1 << 20)
    with pytest.raises(UserError, match=r"Training .* parameters .*hidden/kernel.* 65,520 x 1,048,576"):
        classification.create(dataclasses.replace(config, model=huge), str(tmp_path))


def test_model_of_texts_cannot_classify_images():
    mapping = {"task": "image_classification", "model": {"name": "transformer"}}
    with pytest.raises(UserError, match=r"'transformer' does not classify images: .* no image_size"):
        from_mapping(Config, mapping)


def write_numbered(folder, **labels):
    """Writes images without names of classes, and returns the data section."""
    arrays = {f"{split}_labels": np.array(values) for split, values in labels.items()}
    arrays |= {
        f"{split}_images": np.zeros((len(values), 6, 6, 5), np.uint8) for split, values in labels.items()
    }
    np.savez(folder / "numbered.npz", **arrays)
    return {"kind": "arrays", "file": str(folder / "numbered.npz")}


def test_the_training_split_may_lack_a_class(config, tmp_path):
    """With 3 classes, the advice was to set 2, and with 2, class 2 was '2' instead of None."""
    data = write_numbered(tmp_path, train=[0, 1], validation=[0, 1, 2], test=[0])
    data = dataclasses.replace(config.data, **data)
    three = dataclasses.replace(config, data=data, model=dataclasses.replace(config.model, classes=3))
    assert classification.create(three, str(tmp_path)).label_names == ["0", "1", "2"]
    two = dataclasses.replace(three, model=dataclasses.replace(config.model, classes=2))
    with pytest.raises(UserError, match=r"'validation' has 3 classes and the model 2.*model\.classes to 3"):
        classification.find_names(two, open_splits(data))


def test_all_splits_may_lack_classes_without_names(config, tmp_path, caplog):
    data = dataclasses.replace(
        config.data, **write_numbered(tmp_path, train=[0, 1], validation=[1], test=[0])
    )
    more = dataclasses.replace(config, data=data, model=dataclasses.replace(config.model, classes=4))
    assert classification.find_names(more, open_splits(data)) == ["0", "1", "2", "3"]
    assert "2 of the 4 classes" in caplog.text


def test_splits_with_other_names_are_errors(config):
    names = {"train": ["cat", "dog"], "validation": ["cat", "dog", "bird"], "test": ["cat", "cow"]}
    sources = {
        split: ArrayImages(np.zeros((1, 2, 2, 1)), np.zeros(1, int), labels, 1.0)
        for split, labels in names.items()
    }
    with pytest.raises(UserError, match=r"'test' and 'validation' .*class 1 is 'cow' and 'dog'"):
        classification.find_names(config, sources)
    sources["test"].label_names = ["cat"]
    assert classification.find_names(config, sources) == ["cat", "dog", "bird"]


def test_each_split_of_a_new_run_is_opened_once(config, tmp_path, monkeypatch):
    """Each split was opened by the check of the data, for the names of the classes, and for training."""
    opened = []
    real = classification.open_images
    monkeypatch.setattr(
        classification, "open_images", lambda data, split: opened.append(split) or real(data, split)
    )
    classification.create(config, str(tmp_path)).open_data()
    assert opened == ["train", "validation", "test"]
    opened.clear()
    classification.create(config, str(tmp_path)).open_data()  # of a run that resumes
    assert opened == ["train", "validation"]


@pytest.mark.parametrize(
    ("kind", "shape", "advice"),
    [
        ("arrays", (8, 8, 1), r"Set model\.image_size to 8 and model\.channels to 1\."),
        ("arrays", (8, 6, 5), "squares: crop or pad"),
        ("tfds", (8, 8, 5), r"model\.image_size to 8 .*or set data\.resize to 6"),
        ("tfds", (8, 6, 3), r"squares: set data\.resize to 6, and model\.channels to 3"),
    ],
)
def test_advice_about_the_shape_of_images_can_be_followed(config, monkeypatch, kind, shape, advice):
    source = types.SimpleNamespace(label_names=["cat"], take=lambda _: (np.zeros((1, *shape)), None))
    monkeypatch.setattr(classification, "open_images", lambda *_: source)
    other = dataclasses.replace(config, data=dataclasses.replace(config.data, kind=kind))
    with pytest.raises(UserError, match=advice):
        classification.open_split(other, "train", None)


def test_changed_class_names_are_errors(config, tmp_path):
    with open(tmp_path / classification.LABELS_FILE, "w", encoding="utf-8") as file:
        json.dump(["dog", "cat", "bird"], file)
    task = classification.create(config, str(tmp_path), new=False)
    for split, open_data in (("train", task.open_data), ("test", lambda: next(task.report({}, "test")))):
        with pytest.raises(UserError, match=rf"'{split}'.*class 0 is 'cat' instead of 'dog'"):
            open_data()


@pytest.mark.parametrize(
    ("trained", "message"),
    [
        ([*"abcdefghijkz"], "class 11 is 'l' instead of 'z'"),
        ([*"abcdefghijk"], "class 11, 'l', is new.*model.classes=12"),
    ],
)
def test_error_shows_the_first_class_name_that_differs(config, monkeypatch, trained, message):
    names = [*"abcdefghijkl"]
    image = np.zeros((1, config.model.image_size, config.model.image_size, config.model.channels))
    source = types.SimpleNamespace(label_names=names, take=lambda _: (image, None))
    monkeypatch.setattr(classification, "open_images", lambda *_: source)
    with pytest.raises(UserError, match=message):
        classification.open_split(config, "train", trained)
    assert classification.open_split(config, "train", [*names, "m"]) is source


@pytest.mark.parametrize("content", [b"", b"[1, 2, 3]", b"{}", b"[" * 100_000, b"\xff", b'["cat"]'])
def test_damaged_class_names_are_an_error(config, tmp_path, content):
    (tmp_path / classification.LABELS_FILE).write_bytes(content)
    error = answer(lambda: classification.create(config, str(tmp_path), new=False))
    assert isinstance(error, UserError)


def test_commands_for_translation_reject_the_task(config, task, tmp_path):
    save(config, runs.config_path(str(tmp_path)))
    message = "needs a run that translates, but this run has the task 'image_classification'"
    with pytest.raises(UserError, match=f"^Translator {message}"):
        Translator(runs.Run(task, {"params": None}, [1]))
    with pytest.raises(UserError, match=f"^tfm compare {message}"):
        compare.read_systems(str(tmp_path), str(tmp_path), "test")


@pytest.mark.long
def test_observation_of_an_image_has_its_class_and_its_patches(task, params):
    observation = task.observe({"params": params}, "3", 64)
    images, labels = read_images(task, "test")
    probabilities = classify(task, params, images[3:4])[0]
    assert observation.result == task.label_names[probabilities.argmax()]
    assert task.label_names[labels[3]] in observation.title
    (prediction,) = observation.predictions
    expected = dict(zip(task.label_names, probabilities, strict=True))
    assert {name: pytest.approx(p, rel=1e-4) for name, p in prediction.choices} == expected
    weights = observation.attention["encoder"].weights
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert len(observation.tracks["patches"].labels) == task.config.model.patches + 1 == weights.shape[-1]


def test_only_patches_and_pixels_are_drawn_on_the_image(task, monkeypatch):
    probabilities = Probabilities(np.ones((1, 1)), np.ones((1, 1)), np.zeros((1, 1), int))
    weights = np.full((1, 2, 3, 64), 1 / 64)
    attention = {"cross": AttentionMap("latents", "pixels", weights)}
    monkeypatch.setattr(classification, "observe", lambda *_, **__: (probabilities, attention))
    tracks = task.observe({}, "0", 64).tracks
    assert tracks["latents"].labels == ["latents 0", "latents 1", "latents 2"]
    assert {name: track.grid for name, track in tracks.items()} == {"latents": None, "pixels": (8, 8)}


@pytest.mark.parametrize("example", ["5", "-1", "cat", "", "1" * 20, "٣"])
def test_observing_a_missing_image_is_an_error(task, example):
    with pytest.raises(UserError, match=r"'test'.* 0 to 4"):
        task.observe({"params": None}, example, 64)


def test_observing_with_nan_parameters_is_an_error(task, params):
    broken = jax.tree.map(lambda x: x * np.nan, params)
    with pytest.raises(UserError, match=r"got NaN.*damaged"):
        task.observe({"params": broken}, "3", 64)


@pytest.mark.long
def test_data_without_a_test_split_are_enough_to_train_and_observe(config, params, tmp_path):
    data = dataclasses.replace(config.data, file=str(tmp_path / "images.npz"))
    tiny.write_arrays(data.file, {"train": 13, "validation": 7})
    task = classification.create(dataclasses.replace(config, data=data), str(tmp_path))
    assert "of the validation split" in task.observe({"params": params}, "3", 64).title
    assert task.default_examples() == ["0", "1"]


def test_split_with_one_image_has_one_default_example(config, tmp_path):
    data = dataclasses.replace(config.data, file=str(tmp_path / "images.npz"))
    tiny.write_arrays(data.file, {"train": 13, "validation": 7, "test": 1})
    task = classification.create(dataclasses.replace(config, data=data), str(tmp_path))
    assert task.default_examples() == ["0"]


def test_warm_start_copies_the_class_names(config, task, tmp_path):
    source, new = tmp_path / "source", tmp_path / "new"
    source.mkdir()
    save(config, runs.config_path(str(source)))
    classification.create(config, str(source))
    warm_start.prepare_warm_start(str(source), config, str(new))
    assert classification.create(config, str(new), new=False).assets() == task.assets()
    (new / classification.LABELS_FILE).write_text('["dog", "cat", "bird"]')
    with pytest.raises(UserError, match=r"new/labels\.json .*source"):
        warm_start.prepare_warm_start(str(source), config, str(new))


@pytest.mark.long
def test_commands_work_on_images(config, tmp_path, capsys):
    options = [f"--config={write_config_file(tmp_path, config)}", f"--workdir={tmp_path / 'run'}"]
    train.main([*options, "--dry_run"])
    assert "13 to train on, 7 to validate" in capsys.readouterr().out
    for steps in (3, 4):
        train.main([*options, f"--config.training.steps={steps}"])
    visualize.main([f"--workdir={tmp_path / 'run'}"])
    export.main([f"--workdir={tmp_path / 'run'}", f"--output={tmp_path / 'export'}"])
    for name in ("run", "export"):
        evaluate.main([f"--workdir={tmp_path / name}", f"--config.data.file={config.data.file}"])
    outputs = [(tmp_path / name / "test.labels.hypotheses").read_text() for name in ("run", "export")]
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 5
    assert set(outputs[0].splitlines()) <= {"cat", "dog", "bird"}
    names = {path.name for path in (tmp_path / "run" / "figures").iterdir()}
    assert {"curves.png", "attention-1-encoder.png", "attention-2-encoder.png", "attention.html"} <= names
    assert "A model of the task image\\_classification" in (tmp_path / "export" / "README.md").read_text()
    assert json.loads((tmp_path / "export" / "config.json").read_text())["data"]["file"] == "images.npz"
    with pytest.raises(UserError, match=r"tfm translate .*'image_classification'"):
        translate.main([f"--workdir={tmp_path / 'run'}"])


@pytest.mark.long
def test_batch_statistics_include_the_rows_of_all_devices(config):
    """Two devices that share the rows of a batch compute the loss of the whole batch."""
    task = classification.Classification(
        dataclasses.replace(config, model=batch_norm_net.Config(dropout=0.0)), ["a", "b", "c"], ""
    )
    variables = quick_jit(task.init)(jax.random.key(0))
    rng = np.random.default_rng(0)
    batch = {"images": rng.normal(size=(4, 6, 6, 5)).astype(np.float32)}
    batch |= {"labels": np.array([0, 2, 1, 1]), "weights": np.float32([1, 1, 0, 1])}
    whole = task.loss(variables, batch, Context(0, jax.random.key(1))).terms["loss"]
    halves = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), batch)
    context = Context(0, jax.random.key(1), row_axes=("rows",))
    parts = jax.vmap(lambda part: task.loss(variables, part, context).terms["loss"], axis_name="rows")(halves)
    np.testing.assert_allclose([part.sum() for part in parts], whole, rtol=1e-5)
