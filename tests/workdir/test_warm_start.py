"""Tests of new runs that begin with parameters of another run, of an export, or from elsewhere."""

import dataclasses
import re
import shutil
import types

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from tests.support import tiny_regression
from tests.support.comparison import assert_trees_equal
from tests.support.tiny import make_config, write_corpus
from tests.support.tiny_lm import make_lm_config, write_documents
from tfm import tasks
from tfm.errors import UserError
from tfm.export.write import write_bundle
from tfm.tasks import language_modeling, translation
from tfm.testing.tasks import rows_without_times
from tfm.training.parameter_map import load_tree
from tfm.workdir import resume, runs, warm_start
from tfm.workdir.train import train


def begin(config, workdir, *, steps, source=""):
    """Trains up to step `steps`, as `tfm train` does."""
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, steps=steps))
    workdir.mkdir(exist_ok=True)
    resume.save_config(config, str(workdir))
    if source:
        warm_start.prepare_warm_start(str(source), config, str(workdir))
    task = tasks.find(config.task).create(config, str(workdir), new=not source)
    initial = warm_start.find_initial_variables(task, str(source))
    train(task, config.training, str(workdir), initial_variables=initial)


def weights(workdir, step):
    return runs.load(str(workdir), checkpoint=str(step)).params


def settings(corpus, **options):
    """Returns a config that keeps every checkpoint and validates without a search."""
    config = make_config(corpus, checkpoint_every=1, keep=99, **options)
    return dataclasses.replace(config, validation_sentences=0)


@pytest.fixture
def known(tiny_run, corpus, tmp_path):
    """Returns a copy of the tiny run."""
    return shutil.copytree(tiny_run, tmp_path / "known")


@pytest.mark.long
def test_warm_start_loads_the_best_parameters_only_at_the_first_start(regression_run, tmp_path):
    known, new = shutil.copytree(regression_run, tmp_path / "known"), tmp_path / "new"
    config = tiny_regression.make_config(checkpoint_every=1, keep=99, ema_decay=0.5)
    begin(config, new, source=known, steps=2)
    best = runs.load(str(known)).params
    assert_trees_equal(weights(new, 0), best)
    shutil.rmtree(known)  # the source is not needed again
    begin(config, new, source=known, steps=4)
    assert [row["step"] for row in rows_without_times(new) if "train/loss" in row] == [2, 4]
    whole = shutil.copytree(new, tmp_path / "whole")
    for step in range(1, 5):
        shutil.rmtree(whole / "checkpoints" / str(step))
    begin(config, whole, steps=4)  # resumes from step 0 without the source
    assert_trees_equal(weights(whole, 4), weights(new, 4))
    changed = jax.tree.map(lambda a, b: (a != b).any(), weights(new, 4), best)
    assert any(jax.tree.leaves(changed))


@pytest.mark.long
def test_card_of_an_untrained_warm_start_names_the_source_of_its_parameters(known, corpus, tmp_path):
    """A run that is killed early has only the checkpoint of step 0."""
    new = tmp_path / "new"
    begin(settings(corpus), new, source=known, steps=1)
    shutil.rmtree(new / "checkpoints" / "1")
    write_bundle(runs.load(str(new), checkpoint="last"), str(tmp_path / "out"), workdir=str(new))
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    (training,) = re.findall(r"\| training \| (.*) \|", card)
    assert training == r"none, because the parameters were imported or --warm\_start took them"


@pytest.mark.long
def test_warm_start_keeps_the_tokenizer(known, tmp_path, caplog):
    (tmp_path / "other").mkdir()
    write_corpus(tmp_path / "other", sizes=(("train", 90), ("val", 9), ("test", 9)))
    config = settings(tmp_path / "other")
    wider = dataclasses.replace(config, data=dataclasses.replace(config.data, vocabulary_size=301))
    with caplog.at_level("INFO"):
        warm_start.prepare_warm_start(str(known), wider, str(tmp_path / "new"))
    assert f"takes vocabulary.model from {known}" in caplog.text
    assert "no effect" not in caplog.text  # data.directory still chooses the texts
    assert "data.vocabulary_size was 330 and is now 301" in caplog.text
    assert translation.create(config, str(tmp_path / "new")).tokenizer.fingerprint == tokenizer(known)


def tokenizer(workdir):
    return runs.load(str(workdir)).task.tokenizer.fingerprint


@pytest.mark.long
def test_warm_start_from_an_export_has_its_parameters(known, corpus, tmp_path):
    run, export, new = runs.load(str(known)), tmp_path / "export", tmp_path / "new"
    write_bundle(run, str(export), workdir=str(known))
    warm_start.prepare_warm_start(str(export), settings(corpus), str(new))
    task = translation.create(settings(corpus), str(new))
    found = warm_start.find_initial_variables(task, str(export))({})
    assert_trees_equal(found, run.variables)


@pytest.mark.long
def test_impossible_warm_starts_are_errors(known, corpus, tmp_path):
    config = settings(corpus)
    with pytest.raises(UserError, match="--warm_start"):
        warm_start.prepare_warm_start(str(known), config, str(known))
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "none"))):
        warm_start.prepare_warm_start(str(tmp_path / "none"), config, str(tmp_path / "new"))
    other = dataclasses.replace(config, model=dataclasses.replace(config.model, norm_order="pre"))
    with pytest.raises(UserError, match=r"model\.norm_order .*'post'.*'pre'"):
        warm_start.prepare_warm_start(str(known), other, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    small = dataclasses.replace(config, data=dataclasses.replace(config.data, vocabulary_size=300))
    (tmp_path / "new").mkdir()
    translation.create(small, str(tmp_path / "new"))
    with pytest.raises(UserError, match=rf"new/vocabulary\.model .*{known}"):
        warm_start.prepare_warm_start(str(known), config, str(tmp_path / "new"))
    task = translation.create(small, str(tmp_path / "new"))
    with pytest.raises(UserError, match=r"embedding/table .*\(300, 32\).*\(330, 32\)"):
        train(
            task,
            config.training,
            str(tmp_path / "new"),
            initial_variables=lambda _: runs.load(str(known)).variables,
        )


# Maps of parameters.

MODEL = {
    "encoder": {
        "layer_0": {"w": np.zeros((2, 3), np.float32)},
        "layer_1": {"w": np.zeros((2, 3), np.float32)},
    },
    "head": {"w": np.zeros(4, np.float32), "b": np.zeros(1, np.float32)},
}
ELSEWHERE = {
    "enc": {"block": {"0": np.full((2, 3), 1.0), "1": np.full((2, 3), 2.0), "2": np.full((2, 3), 3.0)}},
    "head": {"w": np.full(5, 4.0)},
}


@pytest.mark.parametrize(
    ("entries", "taken"),
    [
        (["encoder/layer_*/w=enc/block/*"], {"encoder/layer_0/w": 1, "encoder/layer_1/w": 2}),
        (["encoder/layer_0/w=enc/block/2"], {"encoder/layer_0/w": 3}),
        (
            ["encoder/layer_0/w=enc/block/1", "encoder/layer_*/w=enc/block/*"],
            {"encoder/layer_0/w": 2, "encoder/layer_1/w": 2},
        ),
    ],
)
def test_map_replaces_only_matching_parameters(entries, taken, caplog):
    with caplog.at_level("INFO", "tfm"):
        result = load_tree(MODEL, ELSEWHERE, entries, "a file")
    values = {
        path: float(result_leaf.reshape(-1)[0]) for path, result_leaf in flatten_dict(result, sep="/").items()
    }
    assert values == {path: float(taken.get(path, 0)) for path in values}
    assert {x.dtype for x in jax.tree.leaves(result)} == {np.dtype(np.float32)}
    assert (
        f"{len(taken)} of 4 parameters taken from a file: encoder/layer_N/w" in caplog.text or len(taken) == 1
    )
    assert "because no entry of the map matches" in caplog.text
    assert "head/w, head/b" in caplog.text


def test_value_that_does_not_fit_into_the_dtype_of_a_parameter_is_an_error():
    elsewhere = {"head": {"w": np.array([1.0, -1e39, 2.0, np.inf, 3.0])}}
    model = {"head": {"w": np.zeros(5, np.float32)}}
    with pytest.raises(UserError, match=r"head/w of a file to fit into float32, got 1e\+39"):
        load_tree(model, elsewhere, ["*=*"], "a file")


def test_log_gives_the_reason_for_unchanged_parameters(caplog):
    elsewhere = ELSEWHERE | {"head": {"w": np.full(5, 4.0)}, "layer_1": {"w": np.ones((2, 3))}}
    with caplog.at_level("INFO", "tfm"):
        load_tree(MODEL, elsewhere, ["encoder/*=*"], "x")
    assert "1 of 4 parameters not taken, because x has no such parameter: encoder/layer_N/w" in (caplog.text)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("head/w=head/w", r"'head/w=head/w' .*shape is \(5,\) there and \(4,\) here"),
        ("head/b=head/b", r"'head/b=head/b' .*has no such parameter.*enc/block/0"),
        ("tail/*=head/*", r"'tail/\*=head/\*' .*matches no parameter.*encoder/layer_0/w"),
        ("*_0/w=enc/block/1*", r"'\*_0/w=enc/block/1\*' .*earlier entry already matches encoder/layer_0/w"),
    ],
)
def test_entry_without_effect_is_an_error_with_the_reason(entry, message):
    with pytest.raises(UserError, match=message):
        load_tree(MODEL, ELSEWHERE, ["encoder/layer_0/w=enc/block/0", entry], "x")


@pytest.mark.parametrize("entry", ["encoder/*", "=a", "a=", "a/*=b", "a=b=c"])
def test_malformed_entry_is_an_error(entry):
    with pytest.raises(UserError, match=f"TARGET=SOURCE.*{re.escape(entry)}"):
        load_tree(MODEL, ELSEWHERE, [entry], "x")


@pytest.mark.long
def test_map_loads_part_of_the_model_of_another_task(known, tmp_path, caplog):
    """A language model loads the feed-forward networks of the decoder of a translation model."""
    write_documents(tmp_path)
    config = make_lm_config(tmp_path)
    source = runs.load(str(known))
    model = source.task.config.model
    config = dataclasses.replace(
        config, model=dataclasses.replace(config.model, d_model=model.d_model, d_ff=model.d_ff)
    )
    entries = ["*/feed_forward/*=*/feed_forward/*"]
    warm_start.prepare_warm_start(str(known), config, str(tmp_path / "new"), entries)
    task = language_modeling.create(config, str(tmp_path / "new"))
    initial = jax.jit(task.init)(jax.random.key(0))
    with caplog.at_level("INFO", "tfm"):
        variables = warm_start.find_initial_variables(task, str(known), entries)(initial)
    assert jax.tree.structure(variables) == jax.tree.structure(dict(initial))
    changed = jax.tree.map(
        lambda a, b: not np.array_equal(a, b), variables["params"], dict(initial["params"])
    )
    paths = [path for path, has_changed in flatten_dict(changed, sep="/").items() if has_changed]
    assert paths
    assert all("feed_forward" in path for path in paths)
    assert f"taken from {known}" in caplog.text


@pytest.mark.parametrize(("fingerprint", "warns"), [("b", True), ("a", False)])
def test_parameters_of_another_tokenizer_are_a_warning(fingerprint, warns, monkeypatch, caplog):
    def task(assets):
        return types.SimpleNamespace(assets=lambda: assets)

    parameters = {"params": {"table": np.zeros(2)}}
    source = types.SimpleNamespace(task=task({"vocabulary.model": fingerprint}), variables=parameters)
    monkeypatch.setattr(runs, "load", lambda _: source)
    load = warm_start.find_initial_variables(task({"vocabulary.model": "a"}), "pretrained", ["*=*"])
    load(parameters)
    assert ("vocabulary.model of this run differs from the file of pretrained" in caplog.text) == warns


@pytest.mark.parametrize(("count", "warns"), [(2, True), (3, False)])
def test_head_of_other_classes_is_a_warning_only_if_it_fits(count, warns, monkeypatch, caplog):
    def task(fingerprint, names):
        return types.SimpleNamespace(assets=lambda: {"labels.json": fingerprint}, label_names=names)

    parameters = {"params": {"head": np.zeros(2)}}
    source = types.SimpleNamespace(task=task("b", ["x"] * count), variables=parameters)
    monkeypatch.setattr(runs, "load", lambda _: source)
    load = warm_start.find_initial_variables(task("a", ["cat", "dog"]), "pretrained", ["*=*"])
    load(parameters)
    assert ("classes of pretrained have other names" in caplog.text) == warns
    assert "Copy that file" not in caplog.text


def test_arrays_of_another_shape_are_resized_if_the_model_can(caplog):
    def resize(path, array, shape):
        return array[: shape[0]] if path == "head/w" else None

    with caplog.at_level("INFO", "tfm"):
        result = load_tree(MODEL, ELSEWHERE, ["head/w=head/w"], "x", resize)
    assert result["head"]["w"].tolist() == [4.0] * 4
    assert "1 of 4 parameters taken from x and resized to the shape here: head/w" in caplog.text


def test_map_loads_model_state_with_the_parameters_of_its_module():
    initial = {"params": {"a": {"scale": np.zeros(2)}}, "stats": {"a": {"mean": np.zeros(2)}}}
    source = {"params": {"b": {"scale": np.ones(2)}}, "stats": {"b": {"mean": np.full(2, 2.0)}}}
    result = warm_start.load_variables(initial, source, ["a/*=b/*"], "x")
    assert result["params"]["a"]["scale"].tolist() == [1, 1]
    assert result["stats"]["a"]["mean"].tolist() == [2, 2]
