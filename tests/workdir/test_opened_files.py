"""Tests that damaged and untrusted files work or are an error, and that they are never executed."""

import json
import os
import pickle
import shutil
import sys
import tempfile
import tracemalloc

import jax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tfm
from tests.support import entries
from tests.support.hostile_values import JSON, answer, in_folder
from tfm import config
from tfm.commands.command import parse
from tfm.commands.options import Evaluate
from tfm.errors import UserError
from tfm.export.write import write_bundle
from tfm.workdir import bundle, compiled_programs, runs


@pytest.fixture(scope="module")
def exported(tiny_run, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("exported") / "folder")
    write_bundle(runs.load(str(tiny_run)), folder, workdir=str(tiny_run))
    return folder


@st.composite
def damage(draw):
    """Draws a function that changes, inserts and cuts off bytes."""
    changes = draw(st.lists(st.tuples(st.integers(0), st.binary(max_size=9), st.booleans()), max_size=3))
    end = draw(st.none() | st.integers(0, 400))

    def damaged(content):
        content = bytearray(content)
        for place, new, within_header in changes:
            place %= max(min(len(content), 300 if within_header else len(content)), 1)
            replaced = len(new) - new.startswith(b"\0")  # a null byte at the beginning is inserted
            content[place : place + replaced] = new
        return bytes(content[: None if end is None else len(content) - end])

    return damaged


@pytest.mark.long
@given(name=st.sampled_from([bundle.PARAMETERS_FILE, runs.CONFIG_FILE, "vocabulary.model"]), change=damage())
@settings(max_examples=40)
def test_damaged_export_opens_or_is_an_error(exported, name, change):
    with open(os.path.join(exported, name), "rb") as file:
        content = file.read()
    with tempfile.TemporaryDirectory() as folder:
        found = answer(entries.export, os.path.join(folder, "copy"), exported, name, change(content))
    if not isinstance(found, UserError) and name == "vocabulary.model":
        sound = runs.load(exported)
        assert found.task.tokenizer.fingerprint == sound.task.tokenizer.fingerprint


@pytest.mark.long
@given(change=damage())
def test_damaged_tokenizer_works_or_is_an_error(tiny_run, change):
    in_folder(entries.tokenizer, change((tiny_run / "vocabulary.model").read_bytes()))


ROWS = st.lists(JSON.map(json.dumps) | st.text(max_size=20), max_size=4).map("\n".join)


@pytest.mark.long
@given(ROWS.map(lambda text: text.encode("utf-8", errors="replace")) | st.binary(max_size=50))
def test_metrics_of_any_content_are_read(content):
    rows = in_folder(entries.metrics, content)
    assert all(isinstance(row["step"], int) for row in rows)


@pytest.mark.long
@example(float("inf"), "sentences")
@given(JSON, st.sampled_from(["checkpoints", "decoding", "sentences", "scores"]))
def test_report_of_any_content_yields_a_model_card_or_an_error(value, name):
    score = {"name": "BLEU", "value": 1.0, "signature": "s"}
    sound = {"checkpoints": [6], "decoding": {"beam_size": 4}, "sentences": 3, "scores": [score]}
    in_folder(entries.report, json.dumps(sound | {name: value}).encode())


@pytest.mark.long
@given(
    st.sampled_from(["source.tokens", "source.ends", "target.tokens", "target.ends", "checksums.json"]),
    st.binary(max_size=300),
)
def test_token_cache_of_any_content_is_rebuilt(name, content):
    tokens = in_folder(entries.token_cache, name, content)
    assert tokens == [([97, 98, 2], [99, 2]), ([2], [120, 121, 122, 2]), ([113, 2], [2])]


@pytest.fixture(scope="module")
def unpickled():
    """Returns the list of names that were unpickled. A hook that cannot be removed appends to it."""
    names = []
    sys.addaudithook(lambda event, found: names.append(found) if event == "pickle.find_class" else None)
    pickle.loads(pickle.dumps(config.load))  # shows that the hook works
    assert names
    return names


@pytest.mark.long
def test_opening_a_run_unpickles_nothing(unpickled, tiny_run, exported):
    unpickled.clear()
    runs.load(str(tiny_run))
    runs.load(exported)
    assert not unpickled


@pytest.fixture
def traced_memory():
    """Returns a function that returns how many bytes Python code holds now and held at most in the test."""
    tracemalloc.start()
    yield tracemalloc.get_traced_memory
    tracemalloc.stop()


@pytest.mark.parametrize("name", [runs.CONFIG_FILE, "vocabulary.model", bundle.PARAMETERS_FILE])
def test_huge_files_are_rejected_before_they_are_read(exported, tmp_path, name, traced_memory):
    folder = shutil.copytree(exported, tmp_path / "copy")
    os.truncate(folder / name, 1 << 40)  # a sparse file
    with pytest.raises(UserError, match=r"at most [\d,]+ bytes|is not a complete safetensors file"):
        runs.load(str(folder))
    assert traced_memory()[1] < 100e6


@pytest.mark.parametrize("field", ["directory", "cache_dir", "train"])
def test_export_with_paths_in_its_config_is_an_error(exported, tmp_path, field):
    """Otherwise an export could make `tfm evaluate` read and write files anywhere."""
    folder = shutil.copytree(exported, tmp_path / "copy")
    saved = json.loads((folder / runs.CONFIG_FILE).read_text())
    saved["data"][field] = "/home/somebody"
    (folder / runs.CONFIG_FILE).write_text(json.dumps(saved))
    with pytest.raises(UserError, match="contains paths of files"):
        tfm.Translator.load(str(folder))


@pytest.fixture
def _no_compilation_cache():
    """Unsets the folder of compiled programs. The test may set it."""
    folder = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", folder)


@pytest.mark.usefixtures("_no_compilation_cache")
def test_compiled_programs_are_in_the_users_cache(tiny_run, tmp_path, monkeypatch):
    """Compiled programs in the folder of a run would be executed, although the run may be untrusted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    parse(Evaluate, [f"--workdir={tiny_run}"]).load()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "tfm" / "compiled")


@pytest.mark.usefixtures("_no_compilation_cache")
def test_folder_of_compiled_programs_is_set_once(tmp_path):
    for name in ("first", "second"):
        compiled_programs.enable_compilation_cache(str(tmp_path / name))
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "first" / "compiled")


@pytest.mark.usefixtures("_no_compilation_cache")
def test_without_a_writable_folder_no_compiled_program_is_stored():
    compiled_programs.enable_compilation_cache("/dev/null")
    assert jax.config.jax_compilation_cache_dir is None
