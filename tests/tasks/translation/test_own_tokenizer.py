"""Tests of runs with a tokenizer file of the user: training, resuming, translation and export."""

import dataclasses

import pytest

from tests.support.tiny import TRANSLATED, WORDS, losses, make_config, train_run
from tests.support.tokenizers import make_json, train_model
from tfm.errors import UserError
from tfm.export.write import write_bundle
from tfm.tasks import translation
from tfm.workdir import runs

TEXTS = [" ".join(WORDS), " ".join(TRANSLATED)] * 5
FILES = {
    "own.model": lambda: train_model(TEXTS, model_type="bpe"),
    "own.json": lambda: make_json("bytes", texts=TEXTS),
}


def config_of(corpus, file, **training):
    config = make_config(corpus, **training)
    data = dataclasses.replace(config.data, tokenizer=str(file), vocabulary_size="auto")
    return dataclasses.replace(config, data=data, validation_sentences=0)


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_run_depends_only_on_its_copy_of_the_tokenizer(corpus, tmp_path, name):
    file, whole, stopped = tmp_path / name, tmp_path / "whole", tmp_path / "stopped"
    file.write_bytes(FILES[name]())
    training = {"checkpoint_every": 1, "eval_every": 2, "log_every": 1}
    train_run(config_of(corpus, file, steps=2, **training), whole)
    train_run(config_of(corpus, file, steps=1, **training), stopped)
    file.unlink()
    train_run(config_of(corpus, file, steps=2, **training), stopped)
    assert losses(stopped)[-1] == losses(whole)[-1]

    run = runs.load(str(stopped))
    assert len(run.task.translate(run.params, ["red dog"])) == 1
    write_bundle(run, str(tmp_path / "export"), workdir=str(stopped))
    assert str(tmp_path) not in (tmp_path / "export" / "config.json").read_text()
    exported = runs.load(str(tmp_path / "export"))
    assert exported.task.assets() == run.task.assets()
    assert exported.task.tokenizer.encode(TEXTS) == run.task.tokenizer.encode(TEXTS)

    (stopped / translation.VOCABULARY_FILE).write_bytes(train_model(TEXTS, vocab_size=40))
    with pytest.raises(UserError, match=translation.VOCABULARY_FILE):
        runs.load(str(stopped))


def test_missing_or_unusable_file_is_an_error_before_the_data_are_read(tmp_path):
    with pytest.raises(UserError, match=r"absent\.model"):
        translation.create(config_of(tmp_path, tmp_path / "absent.model"), str(tmp_path))
    (tmp_path / "own.model").write_bytes(train_model()[:100])
    with pytest.raises(UserError, match=r"own\.model.*damaged"):
        translation.create(config_of(tmp_path, tmp_path / "own.model"), str(tmp_path))


@pytest.mark.parametrize("value", ["pieces", "bytes", "own.txt", ".json"])
def test_other_values_of_the_tokenizer_are_errors(tmp_path, value):
    with pytest.raises(UserError, match=r"data\.tokenizer"):
        config_of(tmp_path, value)
