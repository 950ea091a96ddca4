"""Tests of `tfm generate` against the class `Generator`."""

import io
import json
import logging

import jax
import pytest

from tests.support.programs import initialize
from tests.support.tiny_lm import make_lm_config, write_documents
from tfm.commands import generate
from tfm.config import save
from tfm.data.config import ImagesConfig
from tfm.data.tokenizers.characters import Characters
from tfm.errors import UserError
from tfm.export.write import write_bundle
from tfm.systems.sagan import task as image_generation
from tfm.tasks import language_modeling
from tfm.workdir import runs
from tfm.workdir.generator import Generator


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Returns the folder of an export with random parameters."""
    folder = tmp_path_factory.mktemp("lm")
    write_documents(folder)
    config = make_lm_config(folder, data={"tokenizer": "characters"})
    workdir = folder / "run"
    workdir.mkdir()
    task = language_modeling.create(config, str(workdir))
    save(config, runs.config_path(str(workdir)))
    params = jax.tree.map(lambda x: 4 * x, initialize(task))
    write_bundle(runs.Run(task, {"params": params}, [1]), str(folder / "bundle"), workdir=str(workdir))
    return str(folder / "bundle")


@pytest.mark.long
def test_json_equals_the_continuations_of_the_class(bundle, capsys):
    arguments = [f"--workdir={bundle}", "--format=jsonl", "--config.decoding.samples=2"]
    generate.main([*arguments, "--prefix=red dog", "--prefix=a"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = Generator.load(bundle).continuations(["red dog", "a"], samples=2)
    assert [row["prefix"] for row in rows] == ["red dog", "a"]
    for row, each in zip(rows, found, strict=True):
        assert [one["text"] for one in row["continuations"]] == [one.text for one in each]
        assert [one["score"] for one in row["continuations"]] == pytest.approx([one.score for one in each])


@pytest.mark.long
def test_each_line_of_standard_input_is_continued(bundle, capsys, monkeypatch):
    """An empty line is an empty prefix. Chunks do not change the samples."""
    monkeypatch.setattr(generate, "CHUNK_LINES", 2)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"red\n\nblue\n")))
    generate.main([f"--workdir={bundle}"])
    texts = ["red", "", "blue"]
    expected = zip(texts, Generator.load(bundle).generate(texts), strict=True)
    output = "".join(f"{text}{continuation}\n{generate.RULE}\n" for text, [continuation] in expected)
    assert capsys.readouterr().out == output


@pytest.mark.long
def test_export_contains_its_tokenizer(bundle):
    run = runs.load(bundle)
    assert isinstance(run.task.tokenizer, Characters)
    assert len(run.task.tokenizer) > 260


def test_run_of_another_task_is_an_error(tiny_run):
    with pytest.raises(UserError, match=r"'translation'.*language_modeling"):
        generate.main([f"--workdir={tiny_run}", "--prefix=a"])


def test_run_of_a_task_that_generates_pictures_is_an_error():
    """Its task has a method `generate`, too."""
    config = image_generation.Config(data=ImagesConfig(kind="digits"))
    task = image_generation.ImageGeneration(config, label_names=list("0123456789"), fingerprint="digits")
    with pytest.raises(UserError, match=r"'image_generation'.*language_modeling"):
        Generator(runs.Run(task, {}, [1]))


@pytest.mark.long
def test_one_warning_names_the_unknown_characters_of_prefixes(bundle, capsys, caplog):
    prefixes = ["--prefix=\u201cred dog\u201d", "--prefix=a dog"]
    generate.main([f"--workdir={bundle}", *prefixes])
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "'\u201c' (U+201C), '\u201d' (U+201D), in 1 of 2 texts" in warning
    assert warning.endswith(
        "may spoil the continuations. Replace them with text that the training data contain"
    )


@pytest.mark.parametrize("prefixes", ["ab", b"ab", None, [None], [b"a"]])
def test_prefixes_that_are_no_list_of_texts_are_errors(bundle, prefixes):
    with pytest.raises(UserError, match="prefixes"):
        Generator.load(bundle).generate(prefixes)


@pytest.mark.parametrize(("is_terminal", "sizes"), [(True, [1, 1, 1]), (False, [3])])
def test_each_line_of_a_terminal_is_answered_at_once(is_terminal, sizes, monkeypatch):
    lines = io.TextIOWrapper(io.BytesIO(b"a\nb\nc\n"))
    monkeypatch.setattr(lines, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr("sys.stdin", lines)
    chunks = list(generate.numbered_chunks(None))
    assert [len(chunk) for _, chunk in chunks] == sizes
    assert [first for first, _ in chunks] == list(range(0, 3, sizes[0]))
    assert [line for _, chunk in chunks for line in chunk] == ["a", "b", "c"]


def test_prefix_may_begin_a_document_with_tags(monkeypatch):
    lines = b"<?xml version='1.0'?>\n<!DOCTYPE html>\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
    [(_, prefixes)] = generate.numbered_chunks(None)
    assert prefixes == ["<?xml version='1.0'?>", "<!DOCTYPE html>"]
