"""Tests of the record of an evaluation."""

import json

import pytest

from tests.support.records import RECORD, write_record
from tfm.errors import UserError
from tfm.evaluation.score import Score
from tfm.workdir.evaluations import read_record

SAVED = json.loads(json.dumps(RECORD._asdict())) | {"scores": [Score("BLEU", 1, "")._asdict()]}


def test_record_is_read_as_it_was_written(tmp_path):
    written = write_record(tmp_path / "a.json", scores=[Score("F1", 0.5, "s", 4)], complete=False)
    assert read_record(str(tmp_path / "a.json")) == written


@pytest.mark.parametrize(
    "content",
    [
        *("", "{}", "[1]", "3", '{"scores": [', "[" * 100_000),
        json.dumps(SAVED | {"scores": [{"name": "BLEU"}]}),
        json.dumps(SAVED | {"scores": [SAVED["scores"][0] | {"digits": "two"}]}),
        *(json.dumps(SAVED | {"scores": [SAVED["scores"][0] | {"digits": n}]}) for n in (-1, 10**9)),
        json.dumps(SAVED | {"checkpoints": 3}),
        json.dumps(SAVED | {"checkpoints": [float("inf")]}),
        json.dumps({name: value for name, value in SAVED.items() if name != "texts"}),
    ],
)
def test_error_of_an_invalid_record_names_the_file(content, tmp_path):
    (tmp_path / "test.de.scores.json").write_text(content)
    with pytest.raises(UserError, match=r"test\.de\.scores\.json"):
        read_record(str(tmp_path / "test.de.scores.json"))
