"""Tests of the export as a page: what is refused, and the size. A browser opens the page in the next file."""

import dataclasses
import re

import numpy as np
import pytest

from tests.support.commands import run_command
from tests.support.tiny import MODEL
from tests.support.tokenizers import train_model
from tfm.data.config import VOCABULARY_FILE, PairsConfig
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.decoding.config import DecodingConfig
from tfm.errors import UserError
from tfm.export.page import find_problems, find_tokenizer_problems, pack_model, write_page
from tfm.systems.parsing.task import Config as ParsingConfig
from tfm.systems.universal.model import UniversalConfig
from tfm.tasks.translation.task import Config
from tfm.visualize.page import make_model_page
from tfm.workdir import runs

LIMIT = 4_000_000  # bytes of the page of the quick start
VOCABULARY_BYTES = 170_000  # of the quick start, whose tokenizer normalizes by nmt_nfkc
QUICKSTART_PARAMETERS = 1_434_624


def make_config(section, **fields):
    sections = {"model": MODEL, "data": PairsConfig(), "decoding": DecodingConfig()}
    if section:
        sections[section] = dataclasses.replace(sections[section], **fields)
    return Config(**sections)


def test_config_of_the_quick_start_has_no_problem():
    config = make_config("model", positions="interleaved_and_rotary")
    assert list(find_problems(config)) == []


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("model", "positions", "alibi"),
        ("model", "positions", "relative_bias"),
        ("model", "positions", "relative_keys"),
        ("model", "activation", "gelu"),
        ("model", "attention_window", 3),
        ("model", "feed_forward_kernel", 3),
        ("model", "dtype", "bfloat16"),
        ("data", "source_prefix", "translate:"),
        ("data", "target_prefix", "de"),
        ("decoding", "samples", 4),
        ("decoding", "coverage_penalty", 0.2),
        ("decoding", "no_repeat_ngram", 3),
        ("decoding", "repetition_penalty", 1.2),
        ("decoding", "dtype", "bfloat16"),
    ],
)
def test_fields_that_the_page_cannot_compute_are_named(section, field, value):
    (problem,) = find_problems(make_config(section, **{field: value}))
    assert problem.startswith(f"{section}.{field} is {value!r}, expected ")


def test_all_fields_are_named_together():
    config = make_config("decoding", no_repeat_ngram=2, samples=1)
    assert [problem.split()[0] for problem in find_problems(config)] == [
        "decoding.samples",
        "decoding.no_repeat_ngram",
    ]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (ParsingConfig(), "task is 'parsing', expected 'translation'"),
        (Config(model=UniversalConfig()), "model.name is 'universal', expected 'transformer'"),
    ],
)
def test_other_tasks_and_models_are_refused(config, problem):
    assert list(find_problems(config)) == [problem]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model_type": "unigram"}, "no byte-pair encoding"),
        ({"model_type": "bpe", "user_defined_symbols": ["<2de>"]}, "symbols of the user"),
        ({"model_type": "bpe", "treat_whitespace_as_suffix": True}, "rules for blanks"),
    ],
)
def test_tokenizers_that_the_page_cannot_compute_are_refused(options, problem, tmp_path):
    content = train_model(**options)
    (tmp_path / VOCABULARY_FILE).write_bytes(content)
    problems = list(find_tokenizer_problems(WordPieces(content), str(tmp_path)))
    assert any(problem in text for text in problems)


def test_byte_pair_encoding_has_no_problem(tmp_path):
    content = train_model(model_type="bpe")
    (tmp_path / VOCABULARY_FILE).write_bytes(content)
    assert list(find_tokenizer_problems(WordPieces(content), str(tmp_path))) == []


def test_run_that_the_page_cannot_compute_writes_nothing(tiny_run, tmp_path):
    result = run_command(
        "export",
        f"--workdir={tiny_run}",
        f"--output={tmp_path / 'out'}",
        "--format=page",
        "--config.decoding.no_repeat_ngram=2",
    )
    assert result.code == 2
    assert "decoding.no_repeat_ngram is 2, expected 0" in result.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_run_in_bfloat16_is_exported_with_the_flag_that_the_message_names(tiny_run, tmp_path):
    arguments = (f"--workdir={tiny_run}", f"--output={tmp_path / 'out'}", "--format=page")
    refused = run_command("export", *arguments, "--config.model.dtype=bfloat16")
    assert "model.dtype is 'bfloat16', expected 'float32'" in refused.error
    (flag,) = re.findall(r"--config\.model\.dtype=\w+", refused.error)
    assert run_command("export", *arguments, flag).code == 0


def test_ensemble_is_refused(tmp_path):
    ensemble = runs.Run(None, ({}, {}), [1, 2])
    with pytest.raises(UserError, match="An ensemble is several models"):
        write_page(ensemble, str(tmp_path / "out"), workdir=str(tmp_path), title="tiny")


def test_parameters_that_are_not_numbers_are_refused():
    with pytest.raises(UserError, match="Expected parameters that are numbers"):
        pack_model({}, {"x": np.array([[1, np.nan]], np.float32)}, b"")


def test_page_of_as_many_parameters_as_the_quick_start_has_at_most_four_megabytes():
    numbers = np.random.default_rng(0).normal(0, 0.09, (QUICKSTART_PARAMETERS, 1)).astype(np.float32)
    page = make_model_page(["a"], "run", {}, pack_model({}, {"embedding/table": numbers}, b""))
    assert len(page.encode()) < LIMIT - VOCABULARY_BYTES


def test_title_of_a_page_never_becomes_html():
    title = "</title></script><script>alert(1)</script>"
    page = make_model_page([title], title, {}, pack_model({}, {"x": np.ones((2, 2), np.float32)}, b""))
    assert "<script>alert" not in page
