"""Whatever comes in, the answer is a result or one sentence: properties over drawn input."""

import dataclasses
import gzip
import json
import lzma
import os
import pickle
import resource
import shutil
import sys
import tempfile

import jax
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tfm
from tests import entries
from tests.test_vocabulary import TEXTS
from tests.tiny import talkative
from tfm import artefact, cli, config, runs
from tfm.data.vocabulary import UNK_ID, Vocabulary
from tfm.errors import UserError
from tfm.tasks.translation import Config

settings.register_profile(
    "tfm", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("tfm")


def fields(section, path="config"):
    """The full names of all fields of a dataclass."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        yield f"{path}.{field.name}"
        if dataclasses.is_dataclass(value):
            yield from fields(value, f"{path}.{field.name}")


def answer(entry, *arguments):
    """What an entry returns, or None for a UserError, which must be one sentence."""
    sentences = []
    try:
        return entry(*arguments)
    except UserError as error:
        sentences.append(str(error))
    assert all(sentence.strip() and sentence.isprintable() for sentence in sentences)
    return None


def in_folder(entry, *arguments):
    """`answer` of an entry that takes a folder, which is new and gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        return answer(entry, folder, *arguments)


VALUES = st.one_of(
    st.text(max_size=20),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["", "None", "True", "()", "(1,", "{}", "1e999", "-0", "\udcff", "9" * 5000]),
)


@given(st.lists(st.tuples(st.sampled_from(list(fields(Config()))), VALUES), min_size=1, max_size=3))
@settings(max_examples=150)
def test_an_override_gives_a_valid_config_or_one_sentence(chosen):
    made = answer(entries.overrides, [f"--{name}={value}" for name, value in chosen])
    if made is not None:
        assert config.from_mapping(Config, json.loads(json.dumps(dataclasses.asdict(made)))) == made
        assert config.from_mapping(Config, config.to_config_dict(made)) == made


@given(st.lists(st.text(max_size=20).map("--config".__add__), min_size=1, max_size=2))
def test_an_override_of_any_name_does_so_too(arguments):
    answer(entries.overrides, arguments)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
)


@given(st.sampled_from(list(fields(Config()))), JSON)
@settings(max_examples=200)
@example("config.training.steps", 10**400)
@example("config.label_smoothing", 10**400)
@example("config.data.target_language", "../../secret")
@example("config.data.directory", "a\0b")
@example("config.data.name", "community:anything")
@example("config.training.learning_rate_scale", float("nan"))
@example("config.training.steps", {"\x1b[31m\n": None})
def test_any_value_in_a_saved_config_gives_a_valid_config_or_one_sentence(name, value):
    saved = dataclasses.asdict(Config())
    *sections, field = name.split(".")[1:]
    section = saved
    for part in sections:
        section = section[part]
    section[field] = value
    made = in_folder(entries.saved_config, json.dumps(saved).encode())
    if made is not None:
        assert not {"/", ":"} & {*made.data.target_language, *made.data.name.partition("/")[0]}
        assert json.loads(json.dumps(dataclasses.asdict(made), allow_nan=False))


@given(st.binary(max_size=200) | JSON.map(lambda x: json.dumps(x).encode()))
@example(b"1" * 5000)
@example(b"\xff\xfe")
def test_any_content_of_a_saved_config_gives_one_sentence(content):
    in_folder(entries.saved_config, content)


# Texts.

LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r", "\u2028", "\x85", "\v", "\0", "\ufeff", ""])
CONTENTS = st.one_of(
    st.binary(max_size=100),
    st.lists(st.text(max_size=10) | LINE_ENDS, max_size=8)
    .map("".join)
    .flatmap(
        lambda text: st.sampled_from(["utf-8", "utf-16", "latin-1", "utf-8-sig"]).map(
            lambda encoding: text.encode(encoding, errors="replace")
        )
    ),
)


@given(CONTENTS, CONTENTS)
def test_any_two_files_are_pairs_of_stripped_lines_or_one_sentence(source, target):
    pairs = in_folder(entries.texts, source, target)
    if pairs is None:
        return
    for side, content in zip(zip(*pairs, strict=True), (source, target), strict=True):
        if content == b"\xef\xbb\xbf":
            continue  # a mark alone is one empty line
        lines = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8").split("\n")
        assert list(side) == [line.strip() for line in lines[: len(side)]]
        assert len(lines) - len(side) == (lines[-1] == "")


@given(
    st.sampled_from([(".gz", gzip.compress), (".xz", lzma.compress)]),
    st.integers(0, 40),
    st.integers(0, 10_000),
    st.integers(0, 255),
)
@settings(max_examples=200)
def test_a_damaged_archive_is_read_as_it_was_or_is_one_sentence(kind, missing, place, byte):
    """Both formats carry checksums; some bytes of a header mean nothing."""
    ending, compress = kind
    plain = b"".join(b"line %d\n" % i for i in range(50))
    packed = bytearray(compress(plain))
    packed[place % len(packed)] = byte
    pairs = in_folder(entries.texts, bytes(packed[: len(packed) - missing]), b"x\n" * 50, ending)
    assert pairs is None or [source for source, _ in pairs] == plain.decode().splitlines()


# Vocabulary.


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return Vocabulary.train(TEXTS, 310, str(tmp_path_factory.mktemp("vocabulary") / "v.model"))


SPECIAL = st.sampled_from(["<pad>", "<s>", "</s>", "<unk>", "\u2581", "<0x0A>", "\0", "\ufeff", "\u200b"])
ANY_TEXT = st.lists(st.text(st.characters(codec="utf-8"), max_size=20) | SPECIAL, max_size=5).map("".join)


@given(text=ANY_TEXT)
@settings(max_examples=300)
def test_any_text_makes_ordinary_ids_that_decode_to_what_makes_them_again(vocabulary, text):
    """One round trip normalises; after it, a second one changes nothing."""
    (ids,) = vocabulary.encode([text])
    assert all(UNK_ID < i < len(vocabulary) for i in ids)
    once = vocabulary.decode(ids)
    twice = vocabulary.decode(vocabulary.encode([once])[0])
    assert twice == once
    assert len(vocabulary.words(ids)) == len(vocabulary.pieces(ids)) == len(ids)
    for longest in (1, 2, 7):
        parts = vocabulary.split(ids, longest)
        assert [i for part in parts for i in part] == ids


@given(ids=st.lists(st.integers(0, 309), max_size=20))
def test_any_ids_are_a_text(vocabulary, ids):
    vocabulary.decode(ids).encode("utf-8")


# Translation.


@given(CONTENTS, st.lists(st.text(st.characters(codec="utf-8")) | LINE_ENDS, min_size=1, max_size=4))
@settings(max_examples=200)
def test_a_line_in_is_a_line_out_whatever_both_hold(content, answers):
    entries.translated(content, answers)


@pytest.fixture(scope="module")
def translator(tiny_run):
    return tfm.Translator(talkative(runs.load(str(tiny_run))))


@given(content=CONTENTS)
@settings(max_examples=5)
def test_a_line_in_is_a_line_out_with_a_model_too(translator, content):
    entries.translated(content, [], translator)


# What is opened again.


@pytest.fixture(scope="module")
def exported(translator, tiny_run, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("exported") / "folder")
    artefact.save(translator.run, folder, workdir=str(tiny_run))
    return folder


@st.composite
def damage(draw):
    """A function of bytes: some are changed, cut off or put in."""
    changes = draw(st.lists(st.tuples(st.integers(0), st.binary(max_size=9), st.booleans()), max_size=3))
    end = draw(st.none() | st.integers(0, 400))

    def damaged(content):
        content = bytearray(content)
        for place, new, within_header in changes:
            place %= max(min(len(content), 300 if within_header else len(content)), 1)
            content[place : place + draw_length(new)] = new
        return bytes(content[: None if end is None else len(content) - end])

    return damaged


def draw_length(new):
    """How many bytes `new` takes the place of: mostly as many."""
    return max(len(new) - 1, 0) if new[:1] == b"\0" else len(new)


@given(
    name=st.sampled_from([artefact.PARAMETERS_FILE, runs.CONFIG_FILE, "vocabulary.model"]), change=damage()
)
@settings(max_examples=40)
def test_a_damaged_export_is_opened_or_is_one_sentence(exported, name, change):
    with open(os.path.join(exported, name), "rb") as file:
        content = file.read()
    with tempfile.TemporaryDirectory() as folder:
        found = answer(entries.export, os.path.join(folder, "copy"), exported, name, change(content))
    if found is None:
        return
    sound = artefact.load(exported)
    if name == "vocabulary.model":
        assert found.task.vocabulary.fingerprint == sound.task.vocabulary.fingerprint


@given(change=damage())
def test_a_damaged_vocabulary_is_used_or_is_one_sentence(tiny_run, change):
    in_folder(entries.vocabulary, change((tiny_run / "vocabulary.model").read_bytes()))


ROWS = st.lists(JSON.map(json.dumps) | st.text(max_size=20), max_size=4).map("\n".join)


@given(ROWS.map(lambda text: text.encode("utf-8", errors="replace")) | st.binary(max_size=50))
def test_any_content_of_the_metrics_gives_rows(content):
    rows = in_folder(entries.metrics, content)
    assert all(isinstance(row["step"], int) for row in rows)


@example(float("inf"), "sentences")
@given(JSON, st.sampled_from(["checkpoints", "decoding", "sentences", "scores"]))
def test_any_value_in_a_report_gives_a_card_or_one_sentence(value, name):
    score = {"name": "BLEU", "value": 1.0, "signature": "s"}
    sound = {"checkpoints": [6], "decoding": {"beam_size": 4}, "sentences": 3, "scores": [score]}
    in_folder(entries.report, json.dumps(sound | {name: value}).encode())


@given(
    st.sampled_from(["source.npy", "source_ends.npy", "target.npy", "target_ends.npy"]),
    st.binary(max_size=20) | st.binary(max_size=300).map(b"\x93NUMPY\x01\x00".__add__),
)
def test_any_content_of_a_cache_is_built_again(name, content):
    tokens = in_folder(entries.token_cache, name, content)
    assert tokens == [([97, 98, 2], [99, 2]), ([2], [120, 121, 122, 2]), ([113, 2], [2])]


# Data, never code.


@pytest.fixture(scope="module")
def unpickled():
    """Names that something unpickled since a test emptied the list; audit hooks stay for good."""
    names = []
    sys.addaudithook(lambda event, found: names.append(found) if event == "pickle.find_class" else None)
    pickle.loads(pickle.dumps(config.difference))  # sees that the hook sees
    assert names
    return names


def test_opening_a_run_and_an_export_unpickles_nothing(unpickled, tiny_run, exported):
    unpickled.clear()
    runs.load(str(tiny_run))
    artefact.load(exported)
    assert not unpickled


@pytest.mark.parametrize("name", [runs.CONFIG_FILE, "vocabulary.model", artefact.PARAMETERS_FILE])
def test_a_file_of_a_tebibyte_is_refused_before_it_is_read(exported, tmp_path, name):
    folder = shutil.copytree(exported, tmp_path / "copy")
    os.truncate(folder / name, 1 << 40)  # a hole
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"more than tfm writes|is not a whole safetensors file"):
        artefact.load(str(folder))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


@pytest.mark.parametrize("field", ["directory", "cache_dir", "train"])
def test_an_export_that_names_folders_is_refused(exported, tmp_path, field):
    """eval.py would read, and write its caches, where a stranger says."""
    folder = shutil.copytree(exported, tmp_path / "copy")
    saved = json.loads((folder / runs.CONFIG_FILE).read_text())
    saved["data"][field] = "/home/somebody"
    (folder / runs.CONFIG_FILE).write_text(json.dumps(saved))
    with pytest.raises(UserError, match="names files of a machine"):
        tfm.Translator.load(str(folder))


def test_compiled_programs_stand_in_the_users_cache_alone(tmp_path, monkeypatch):
    """They are executed, and a work directory may come from somebody else."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        cli.keep_compiled()
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "tfm" / "compiled")
        cli.keep_compiled()
        monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
        jax.config.update("jax_compilation_cache_dir", None)
        cli.keep_compiled()
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
