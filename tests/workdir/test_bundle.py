"""Tests of exported folders: their content, loading them, and damaged folders."""

import dataclasses
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import tfm
from tests.support import tiny_regression
from tests.support.comparison import assert_trees_equal
from tests.support.paths import ROOT
from tests.support.processes import LIMIT
from tests.support.tiny import randomize_weights
from tfm.checkpoints import manifest
from tfm.commands import export
from tfm.commands.options import Export
from tfm.errors import UserError
from tfm.export.write import write_bundle
from tfm.io.files import only_writer
from tfm.training.run_log import read_metrics
from tfm.workdir import bundle, runs

TEXTS = ["red dog", "", "big green bird sleeps", "small blue cat runs red", "dog \U0001f600"]


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


@pytest.fixture(scope="module")
def exported(run, tiny_run, tmp_path_factory):
    """Returns the export of the tiny run. Tests must not change it."""
    folder = tmp_path_factory.mktemp("exported") / "folder"
    write_bundle(run, str(folder), workdir=str(tiny_run))
    return folder


@pytest.fixture
def copy(exported, tmp_path):
    """Returns a copy of the export that tests may damage."""
    return shutil.copytree(exported, tmp_path / "copy")


def command(*arguments, stdin=""):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        check=False,
        timeout=LIMIT,
    )


@pytest.mark.long
def test_loaded_export_equals_the_run(run, exported):
    loaded = runs.load(str(exported))
    assert jax.tree.structure(loaded.params) == jax.tree.structure(run.params)
    assert_trees_equal(loaded.params, run.params)
    assert loaded.steps == run.steps
    assert loaded.task.config == run.task.config.without_paths()
    expected = tfm.Translator(run).translate(TEXTS)
    assert len(set(expected)) > 2
    assert tfm.Translator.load(str(exported)).translate(TEXTS) == expected


@pytest.mark.long
def test_export_has_five_files_and_no_optimizer_state(run, exported):
    assert {path.name for path in exported.iterdir()} == {
        "README.md",
        "config.json",
        "manifest",
        "model.safetensors",
        "vocabulary.model",
    }
    flat = flatten_dict(run.params, sep="/")
    parameters = load_file(exported / "model.safetensors")
    assert parameters.keys() == flat.keys()
    assert {x.dtype for x in parameters.values()} == {np.dtype(np.float32)}
    rest = (exported / "model.safetensors").stat().st_size - 4 * sum(x.size for x in flat.values())
    assert 0 < rest < 500 + 150 * len(flat)


def test_export_of_a_model_with_bfloat16_parameters_opens_with_their_dtype(tmp_path):
    class Half(tiny_regression.Regression):
        def init(self, rng):
            return jax.tree.map(lambda x: x.astype(jnp.bfloat16), super().init(rng))

    task = Half(tiny_regression.make_config())
    variables = task.init(jax.random.key(0))
    folder = str(tmp_path / "export")
    write_bundle(runs.Run(task, variables, [6]), folder, workdir=str(tmp_path))
    loaded, steps = bundle.read_bundle(folder, task)
    assert steps == [6]
    assert jax.tree.map(lambda x: x.dtype, loaded) == jax.tree.map(lambda x: x.dtype, variables)
    assert_trees_equal(loaded, jax.tree.map(np.asarray, variables))


def test_export_contains_no_paths_of_the_machine(run, corpus, tiny_run, exported):
    for path in exported.iterdir():
        content = path.read_bytes()
        for place in (corpus, tiny_run, ROOT):
            assert str(place).encode() not in content, path
    config = json.loads((exported / "config.json").read_text())
    assert config["data"]["directory"] == config["data"]["cache_dir"] == ""
    data = dataclasses.replace(run.task.config.data, train=f"{corpus}/train", test="heldout/test")
    data = dataclasses.replace(run.task.config, data=data).without_paths().data
    assert (data.train, data.test) == ("train", "heldout/test")


def test_exports_of_the_same_run_are_identical(run, tiny_run, exported, tmp_path):
    write_bundle(run, str(tmp_path / "again"), workdir=str(tiny_run))
    for path in exported.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def test_export_writes_only_to_an_empty_folder(run, tiny_run, tmp_path):
    (tmp_path / "empty").mkdir()
    write_bundle(run, f"{tmp_path}/empty/", workdir=str(tiny_run))
    assert bundle.is_bundle(str(tmp_path / "empty"))
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    write_bundle(run, f"{tmp_path}/link", workdir=str(tiny_run))
    assert (tmp_path / "link").is_symlink()
    assert bundle.is_bundle(str(tmp_path / "target"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        with pytest.raises(UserError, match=re.escape(str(tmp_path / name))):
            write_bundle(run, str(tmp_path / name), workdir=str(tiny_run))
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "file"))):
        write_bundle(run, str(tmp_path / "file" / "below"), workdir=str(tiny_run))


def test_failed_export_leaves_no_files(run, tiny_run, tmp_path):
    with pytest.raises(TypeError):
        write_bundle(run, str(tmp_path / "out"), workdir=str(tiny_run), programs={"program": "no bytes"})
    assert list(tmp_path.iterdir()) == []


def test_choosing_a_checkpoint_of_an_export_is_an_error(exported):
    for choice in ({"checkpoint": "last"}, {"checkpoint": "6"}, {"average": 2}):
        with pytest.raises(UserError, match=re.escape(str(exported))):
            tfm.Translator.load(str(exported), **choice)


def test_reading_the_metrics_of_an_export_is_an_error(exported):
    with pytest.raises(UserError, match=re.escape(str(exported))):
        read_metrics(str(exported))


def rewrite(folder, change, metadata=None):
    """Changes the parameters in their file, and replaces the metadata of tfm unless `metadata` is None."""
    path = folder / "model.safetensors"
    with safe_open(path, framework="numpy") as file:
        about = file.metadata()
    if metadata is not None:
        about = {bundle.METADATA_KEY: metadata}
    parameters = load_file(path)
    change(parameters)
    save_file(parameters, path, about)


def cast(parameters):
    name = sorted(parameters)[0]
    parameters[name] = parameters[name].astype(np.float16)


def transpose(parameters):
    parameters["decoder/layers_0/feed_forward/hidden/kernel"] = np.zeros((40, 32), np.float32)


def bytes_of(name, change):
    def damage(folder):
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return damage


def config_of(**model):
    def damage(folder):
        config = json.loads((folder / "config.json").read_text())
        config["model"] |= model
        (folder / "config.json").write_text(json.dumps(config))

    return damage


def flip(name):
    """Flips a bit in the middle of a file. In the file of parameters, an element changes."""
    return bytes_of(name, lambda x: x[: len(x) // 2] + bytes([x[len(x) // 2] ^ 1]) + x[len(x) // 2 + 1 :])


def not_finite(parameters):
    parameters["embedding/table"][3, 5] = np.nan


def signed(damage):
    """Returns a function that damages a folder and writes a valid manifest of the damaged files."""

    def damage_and_sign(folder):
        damage(folder)
        manifest.write(folder, {}, {path.name for path in folder.iterdir()} - {"README.md", manifest.FILE})

    return damage_and_sign


def nothing(_):
    pass


def metadata_of(**fields):
    """Returns a function that replaces the metadata of the parameters by these fields and the version."""
    metadata = json.dumps({"format_version": bundle.FORMAT_VERSION} | fields)
    return lambda folder: rewrite(folder, nothing, metadata)


PARAMETERS, CONFIG, VOCABULARY = "model.safetensors", "config.json", "vocabulary.model"
DAMAGE = {
    "truncated": (bytes_of(PARAMETERS, lambda x: x[:-1]), "is not a complete safetensors file"),
    "too long": (bytes_of(PARAMETERS, lambda x: x + b"0"), "is not a complete safetensors file"),
    "empty": (bytes_of(PARAMETERS, lambda _: b""), "is not a complete safetensors file"),
    "no header": (bytes_of(PARAMETERS, lambda x: b"\xff" * 8 + x[8:]), "is not a complete safetensors file"),
    "foreign": (
        lambda folder: save_file({"x": np.zeros(3, np.float32)}, folder / PARAMETERS, {"format": "pt"}),
        "model.safetensors",
    ),
    "no metadata": (
        lambda folder: save_file({"x": np.zeros(3, np.float32)}, folder / PARAMETERS),
        "model.safetensors",
    ),
    "garbled metadata": (lambda f: rewrite(f, nothing, "[" * 100_000), "model.safetensors"),
    "no version": (lambda f: rewrite(f, nothing, '{"steps": [6]}'), "format version"),
    "other version": (
        lambda folder: rewrite(folder, nothing, '{"format_version": 2, "steps": [6]}'),
        r"format version 2\b.*\b1\b",
    ),
    "metadata cut": (metadata_of(), "metadata of another form"),
    "assets no object": (metadata_of(steps=[6], assets=[], modules={}), "metadata of another form"),
    "modules no object": (metadata_of(steps=[6], assets={}, modules=None), "metadata of another form"),
    "steps no numbers": (metadata_of(steps=["\x1b[31m"], assets={}, modules={}), "metadata of another form"),
    "wrong shape": (
        lambda folder: rewrite(folder, transpose),
        r"layers_0/feed_forward/hidden/kernel .*F32 \[32, 40\].*F32 \[40, 32\]",
    ),
    "wrong dtype": (lambda folder: rewrite(folder, cast), r"F32 .*F16"),
    "parameter missing": (
        lambda folder: rewrite(folder, lambda x: x.pop("embedding/table")),
        r"embedding/table .*F32 \[",
    ),
    "parameter too many": (
        lambda folder: rewrite(folder, lambda x: x.update(other=np.zeros(2, np.float32))),
        r"\bother .*F32 \[2\]",
    ),
    "no parameters": (lambda folder: (folder / PARAMETERS).unlink(), "Expected a checkpoint in"),
    "no config": (lambda folder: (folder / CONFIG).unlink(), CONFIG),
    "config cut": (bytes_of(CONFIG, lambda x: x[:-20]), CONFIG),
    "config too deep": (bytes_of(CONFIG, lambda _: b"[" * 100_000), CONFIG),
    "config no object": (bytes_of(CONFIG, lambda _: b"5"), CONFIG),
    "config without a task": (bytes_of(CONFIG, lambda _: b"{}"), "'task'"),
    "model no section": (
        bytes_of(CONFIG, lambda _: b'{"task": "translation", "model": 5}'),
        "config.model .*'name'",
    ),
    "model without a name": (
        bytes_of(CONFIG, lambda _: b'{"task": "translation", "model": {"heads": 4}}'),
        "config.model .*'name'",
    ),
    "unknown model": (config_of(name="os"), "config.model.name .*transformer"),
    "other model": (config_of(d_ff=128), r"\b128\b"),
    "model of negative size": (config_of(key_features=-3), "model.key_features .*-3"),
    "model far too wide": (config_of(d_model=65_536), "d_model .*65,?536"),
    "model far too deep": (config_of(encoder_layers=1000), "encoder_layers .*1,?000"),
    "no vocabulary": (lambda folder: (folder / VOCABULARY).unlink(), VOCABULARY),
    "vocabulary cut": (bytes_of(VOCABULARY, lambda x: x[:-99]), VOCABULARY),
    "vocabulary empty": (bytes_of(VOCABULARY, lambda _: b""), VOCABULARY),
    "parameters flipped": (flip(PARAMETERS), rf"{PARAMETERS} .*checksum"),
    "not finite": (lambda folder: rewrite(folder, not_finite), "copy"),
    "not finite and signed": (signed(lambda folder: rewrite(folder, not_finite)), "embedding/table"),
    "another setting": (config_of(dropout=0.7), CONFIG),
    "no manifest": (lambda folder: (folder / manifest.FILE).unlink(), manifest.FILE),
    "manifest flipped": (flip(manifest.FILE), f"{manifest.FILE} .*checksum"),
    "manifest cut": (bytes_of(manifest.FILE, lambda x: x[:-3]), f"{manifest.FILE} .*checksum"),
    # Readers skip unknown fields of a protocol buffer, so only the checksum can detect this change.
    "vocabulary changed": (bytes_of(VOCABULARY, lambda x: x + b"\xf8\x7f\x00"), VOCABULARY),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_exports_are_errors(name, copy):
    damage, sentence = DAMAGE[name]
    damage(copy)
    with pytest.raises(UserError, match=sentence):
        tfm.Translator.load(str(copy))


def test_fields_that_are_no_sizes_of_parameters_may_be_large(copy):
    signed(config_of(attention_window=65_536))(copy)
    assert tfm.Translator.load(str(copy)).translate([""]) == [""]


def test_tree_is_restored_from_names_with_slashes():
    """Variables of Flax's SpectralNorm have such names."""
    tree = {"params": {"a/b": {"c": 1}, "a": {"d": 2}}, "batch_stats": {"norm": {"kernel/u": 3, "kernel": 4}}}
    arrays = bundle.flatten(tree)
    assert set(arrays) == {"a/b/c", "a/d", "batch_stats:norm/kernel/u", "batch_stats:norm/kernel"}
    assert bundle.unflatten(arrays, tree) == tree


def test_two_variables_with_the_same_path_are_an_error():
    with pytest.raises(UserError, match="a/b/c"):
        bundle.flatten({"params": {"a/b": {"c": 1}, "a": {"b/c": 2}}})


def test_model_card_may_be_edited(copy, caplog):
    (copy / "README.md").write_text("mine")
    (copy / ".gitattributes").write_text("mine")
    runs.load(str(copy))
    assert not caplog.records


def test_missing_parameters_are_an_error_with_the_path(copy):
    task = runs.load(str(copy)).task
    (copy / PARAMETERS).unlink()
    with pytest.raises(UserError, match=re.escape(str(copy / PARAMETERS))):
        bundle.read_bundle(str(copy), task)


def test_header_is_checked_before_memory_is_allocated(copy):
    """According to its header, the sparse file has a tebibyte of parameters."""
    path = copy / PARAMETERS
    with safe_open(path, framework="numpy") as file:
        about = file.metadata()
    size = 1 << 40
    huge = {"dtype": "F32", "shape": [1 << 19, 1 << 19], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": about, "embedding/table": huge}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + size)
    with pytest.raises(UserError, match=r"model\.safetensors .* encoder_layers"):
        runs.load(str(copy))


class Bomb:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_pickle_in_place_of_the_parameters_is_not_executed(copy, tmp_path):
    (copy / PARAMETERS).write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(UserError, match=re.escape(str(copy / PARAMETERS))):
        runs.load(str(copy))
    assert not (tmp_path / "exploded").exists()


def test_output_folder_is_checked_before_the_run_is_loaded(tmp_path, monkeypatch):
    out = tmp_path / "out"
    options = Export(output=str(out), workdir="", config=None, overrides={})
    monkeypatch.setattr(Export, "load", None)
    with only_writer(out, "--output"), pytest.raises(UserError, match=f"{out}.*--output"):
        export.main.run(options)
    out.write_text("mine")
    with pytest.raises(UserError, match=re.escape(str(out))):
        export.main.run(options)


@pytest.mark.long
def test_exported_average_translates_like_the_average(tiny_run, tmp_path):
    out = tmp_path / "new" / "out"
    result = command(
        *("-m", "tfm", "export", f"--workdir={tiny_run}", f"--output={out}"),
        *("--average=2", "--config.decoding.beam_size=2"),
    )
    assert result.returncode == 0, result.stderr
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]
    mean = runs.load(str(tiny_run), average=2)
    loaded = runs.load(str(out))
    assert loaded.steps == mean.steps == [4, 6]
    assert_trees_equal(loaded.params, mean.params)
    assert "mean of steps 4, 6 of 6" in (out / "README.md").read_text()
    translated = command("-m", "tfm", "translate", f"--workdir={out}", stdin="\n".join(TEXTS[:4]) + "\n")
    assert translated.stdout.split("\n")[:-1] == tfm.Translator(mean).translate(TEXTS[:4], beam_size=2)
