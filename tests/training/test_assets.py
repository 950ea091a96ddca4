"""Tests of the files that a task writes before its first step."""

import dataclasses
import json
import types

import pytest

from tests.support.tiny_lm import WORDS, write_documents
from tests.support.tiny_regression import Config, create
from tfm.data.config import DocumentsConfig, PairsConfig
from tfm.data.tokenizers.files import load_word_pieces
from tfm.errors import UserError
from tfm.systems.bert.masked_pairs import SentencesConfig
from tfm.training.assets import make_tokenizer, prepare_tokenizer, read_labels, sample_evenly, write_labels


@pytest.fixture
def sections(tmp_path):
    """Data sections of both kinds over the same words."""
    write_documents(tmp_path)
    for split in ("train", "validation", "test"):
        for ending in ("en", "de"):
            (tmp_path / f"{split}.{ending}").write_text((tmp_path / split).read_text())
    common = {"directory": str(tmp_path), "batch_tokens": 64, "cache_dir": str(tmp_path / "cache")}
    return {
        "documents": DocumentsConfig(documents="line", row_length=16, tokenizer="characters", **common),
        "pairs": PairsConfig(kind="text", max_length=16, vocabulary_size=300, **common),
    }


def prepare(folder, data, plan=create, new=True):
    """Prepares the tokenizer of a tiny run with this data section."""
    config = types.SimpleNamespace(data=data, training=Config().training)
    return prepare_tokenizer(config, str(folder), lambda _: plan(Config(), ""), new=new)


@pytest.mark.parametrize("kind", ["documents", "pairs"])
def test_a_new_run_makes_a_tokenizer_once(kind, sections, tmp_path):
    tokenizer, text = prepare(tmp_path, sections[kind]), " ".join(WORDS)
    assert tokenizer.decode(tokenizer.encode([text])[0]) == text
    written = (tmp_path / "vocabulary.model").stat().st_mtime_ns
    assert prepare(tmp_path, sections[kind]).fingerprint == tokenizer.fingerprint
    assert prepare(tmp_path, sections[kind], new=False).fingerprint == tokenizer.fingerprint
    assert (tmp_path / "vocabulary.model").stat().st_mtime_ns == written


@pytest.mark.parametrize(("section", "blank"), [(SentencesConfig, "\u2581"), (DocumentsConfig, "")])
def test_only_the_first_word_of_a_sentence_has_the_pieces_of_other_words(section, blank, tmp_path):
    (tmp_path / "train").write_text("Dogs bark. Dogs sleep.\nDogs eat.\n")
    data = section(directory=str(tmp_path), tokenizer="word_pieces", vocabulary_size=290)
    make_tokenizer(data, str(tmp_path / "model"))
    tokenizer = load_word_pieces(str(tmp_path / "model"))
    assert tokenizer.pieces(tokenizer.encode(["Dogs"])[0])[0].startswith(blank + "D")


@pytest.mark.parametrize("kind", ["documents", "pairs"])
def test_config_is_checked_before_the_tokenizer_is_made(kind, sections, tmp_path):
    def plan(*_):
        raise UserError("model.name is wrong")

    with pytest.raises(UserError, match=r"model\.name is wrong"):
        prepare(tmp_path, sections[kind], plan)
    missing = dataclasses.replace(sections[kind], validation="nowhere")
    with pytest.raises(UserError, match="nowhere"):
        prepare(tmp_path, missing)
    assert not (tmp_path / "vocabulary.model").exists()


@pytest.mark.parametrize("kind", ["documents", "pairs"])
def test_a_damaged_test_split_stops_only_a_run_that_begins(kind, sections, tmp_path, caplog):
    damaged = dataclasses.replace(sections[kind], test="nowhere")
    with pytest.raises(UserError, match="nowhere"):
        prepare(tmp_path, damaged)
    prepare(tmp_path, sections[kind])
    caplog.clear()
    prepare(tmp_path, damaged)
    assert "nowhere" in caplog.text


def test_names_of_classes_are_read_as_they_were_written(tmp_path):
    path, names = str(tmp_path / "labels.json"), ["ä", "b"]
    write_labels(path, names)
    assert read_labels(path, 2)[0] == names == json.loads((tmp_path / "labels.json").read_text())
    with pytest.raises(UserError, match=r"2 classes and the model 3.*model\.classes"):
        read_labels(path, 3)


@pytest.mark.parametrize(("most", "rows"), [(2, [0, 3]), (3, [0, 2, 4]), (9, [0, 1, 2, 3, 4])])
def test_sample_of_the_training_pairs_has_at_most_the_number_of_rows(most, rows):
    pairs = [(f"source {row}", f"target {row}", "domain") for row in range(5)]
    expected = [f"{side} {row}" for row in rows for side in ("source", "target")]
    assert list(sample_evenly(pairs, most)) == expected
