"""Tests of the task of language modelling: loss, scores, samples, tokenizers and observations."""

import dataclasses
import math
import re
import types

import jax
import numpy as np
import pytest
import scipy.special

from tests.support.programs import count_programs
from tests.support.tiny_lm import MODEL, make_lm_config, write_documents
from tests.support.tokenizers import train_model
from tfm.data.config import VOCABULARY_FILE
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.errors import UserError
from tfm.models import TransformerConfig
from tfm.tasks import language_modeling
from tfm.tasks.language_modeling import (
    MAX_PROMPT_CHARACTERS,
    PROMPT_WORDS,
    LanguageModeling,
    TokenizedDocuments,
)
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters
from tfm.training.setup import CHECKPOINT_FOLDER
from tfm.training.task import Context


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    write_documents(folder)
    return folder


@pytest.fixture(scope="module")
def task(folder, tmp_path_factory):
    return language_modeling.create(make_lm_config(folder), str(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def params(task):
    return initialize(task)


def initialize(task, seed=0):
    """Returns parameters that are large enough for probabilities that differ."""
    params = random_parameters(task.model, np.ones((1, 1), int), deviation=0.02, seed=seed)
    return jax.tree.map(lambda x: 4 * x, params)


@quick_jit(static_argnums=0)
def apply(model, params, inputs):
    return model.apply({"params": params}, inputs, train=False)


def logits_of(task, params, inputs):
    """Returns the logits after each token, float64 [L, V]. One padded program suits all lengths."""
    padded = np.zeros((1, task.config.model.max_positions), int)
    padded[0, : len(inputs)] = inputs
    return np.asarray(apply(task.model, params, padded), np.float64)[0, : len(inputs)]


def change(task, **fields):
    """Returns the task with other values of some fields of its config."""
    return LanguageModeling(dataclasses.replace(task.config, **fields), task.tokenizer)


@pytest.fixture(scope="module")
def batch(task):
    return next(task.open_data().train_batches(0))


@pytest.mark.long
def test_loss_is_the_mean_over_tokens(task, params, batch):
    terms, metrics, _ = quick_jit(task.loss)({"params": params}, batch, Context())
    total, count = terms["loss"]
    log_probabilities = np.asarray(task.log_probabilities((params,), batch), np.float64)
    assert count == (batch["segments"] > 0).sum()
    assert float(total) == pytest.approx(-(log_probabilities * batch["weights"]).sum(), rel=1e-5)
    bits, tokens = metrics["bits_per_token"]
    assert float(bits / tokens) == pytest.approx(float(total / count) / math.log(2), rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("rows", "stride"), [("contiguous", 3), ("contiguous", 16), ("packed", 5)])
def test_each_token_is_scored_once_in_its_window(task, params, rows, stride):
    """The expected scores come from windows cut by hand, of the stream or of each document in packed rows."""
    data = dataclasses.replace(task.config.data, rows=rows)
    task = change(task, stride=stride, data=data)
    documents = TokenizedDocuments(task.config, task.tokenizer, "test")
    tokens, length = documents.tokens, data.row_length
    inputs = np.concatenate([[BOS_ID], np.where(tokens[:-1] == EOS_ID, BOS_ID, tokens[:-1])])
    starts = [0, *documents.ends[:-1]]
    texts = zip(starts, documents.ends, strict=True) if rows == "packed" else [(0, len(tokens))]
    expected = np.zeros(len(tokens))
    for begin, last in texts:
        done = begin
        while done < last:
            end = min(done + (length if done == begin else stride), last)
            first = max(end - length, begin)
            logits = logits_of(task, params, inputs[first:end])
            scores = scipy.special.log_softmax(logits, axis=-1)[np.arange(end - first), tokens[first:end]]
            expected[done:end] = scores[done - first :]
            done = end
    sums = -np.add.reduceat(expected, starts)
    np.testing.assert_allclose(task.document_nats(params, documents), sums, rtol=1e-4)


@pytest.mark.parametrize(("text", "size"), [("", 1), ("a", 1), ("ab", 2), ("\u00e4b", 3)])
def test_outputs_of_the_report_are_bits_per_byte(task, monkeypatch, text, size):
    documents = types.SimpleNamespace(texts=[text], tokens=[EOS_ID], changed=0)
    monkeypatch.setattr(language_modeling, "TokenizedDocuments", lambda *_: documents)
    monkeypatch.setattr(task, "document_nats", lambda *_: np.array([4.2]), raising=False)
    monkeypatch.setattr(language_modeling, "likelihood_scores", lambda *_: [])
    [report] = task.report({"params": None}, "test")
    assert report.outputs == [f"{4.2 / math.log(2) / size:.4f}"]


def test_first_documents_without_text_are_an_error(task, tmp_path):
    (tmp_path / "blank").write_text('{"text": ""}\n{"text": "red dog"}\n', encoding="utf-8")
    data = dataclasses.replace(
        task.config.data, kind="table", format="jsonl", directory=str(tmp_path), validation="blank"
    )
    config = dataclasses.replace(task.config, data=data)
    with pytest.raises(
        UserError, match=r"first 1 documents of the split 'validation'.* validation_documents"
    ):
        TokenizedDocuments(config, task.tokenizer, "validation", 1)
    assert TokenizedDocuments(config, task.tokenizer, "validation", 2).texts == ["", "red dog"]


def test_scores_agree_in_their_units(task, params):
    data = task.open_data()
    scores = task.evaluate({"params": params}, data).scores
    [report] = task.report({"params": params}, "validation")
    by_name = {score.name: score for score in report.scores}
    texts, tokens = data.validation.texts, len(data.validation.tokens)
    sizes = [len(text.encode()) for text in texts]
    assert scores["validation/bits_per_byte"] == pytest.approx(by_name["bits per byte"].value)
    total = scores["validation/bits_per_byte"] * sum(sizes) * math.log(2)
    assert scores["validation/perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-6)
    words = sum(len(text.split()) + 1 for text in texts)
    assert scores["validation/perplexity_per_word"] == pytest.approx(math.exp(total / words), rel=1e-6)
    characters = total / math.log(2) / sum(map(len, texts))
    assert scores["validation/bits_per_character"] == pytest.approx(characters)
    mean = np.average([float(output) for output in report.outputs], weights=sizes)
    assert mean == pytest.approx(scores["validation/bits_per_byte"], abs=1e-3)
    assert by_name["bits per byte"].signature.endswith(
        "7 documents, ends counted, window 16, stride 8, rows contiguous"
    )


@pytest.mark.long
def test_ensemble_averages_probabilities(task, params, batch):
    members = params, initialize(task, seed=1)
    one, two, both = (
        np.exp(np.asarray(task.log_probabilities(each, batch), np.float64))
        for each in (members[:1], members[1:], members)
    )
    np.testing.assert_allclose(both, (one + two) / 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("texts", "changed"),
    [(["red dog", "cat"], 0), (["red dog", "\u0436\u0436 dog", "\uff43at"], 2)],
    ids=["kept", "unknown character and normalization"],
)
def test_signature_counts_documents_that_the_tokenizer_changes(
    task, tmp_path, caplog, monkeypatch, texts, changed
):
    (tmp_path / "mine").write_text("\n".join(texts) + "\n", encoding="utf-8")
    data = dataclasses.replace(task.config.data, directory=str(tmp_path), documents="line", test="mine")
    lossy = LanguageModeling(dataclasses.replace(task.config, data=data), WordPieces(train_model()))
    documents = TokenizedDocuments(lossy.config, lossy.tokenizer, "mine")
    assert documents.changed == changed
    assert (f"changes {changed} of {len(texts)} documents" in caplog.text) == (changed > 0)
    monkeypatch.setattr(lossy, "document_nats", lambda *_: np.ones(len(texts)), raising=False)
    [report] = lossy.report({"params": None}, "mine")
    for score in report.scores:
        assert (f"{changed} changed by the tokenizer" in score.signature) == (changed > 0)


@pytest.mark.long
def test_samples_of_texts_without_blanks_have_short_prompts(task, params):
    (row,) = change(task, validation_samples=1).make_samples(params, ["ab" * 200]).rows
    assert len(row["prompt"]) == MAX_PROMPT_CHARACTERS
    assert row["prompt"] + row["reference"] == "ab" * 200


@pytest.mark.long
def test_samples_continue_documents_greedily(task, params):
    """Compares with a loop over the whole model. Later evaluations compile no program."""
    sampled = change(task, validation_samples=2)
    long = "a b c d e f g h"
    texts = [long, " \n", "cat", "not wanted"]
    samples = sampled.make_samples(params, texts)
    with count_programs() as programs:
        sampled.make_samples(initialize(task, seed=1), texts)
    assert not programs
    expected = [(" ".join(long.split()[:PROMPT_WORDS]), "g h"), ("cat", "")]
    for row, (prompt, reference) in zip(samples.rows, expected, strict=True):
        start = [BOS_ID, *task.tokenizer.encode([prompt])[0]]
        tokens = list(start)
        while len(tokens) < len(start) + task.config.decoding.max_tokens and tokens[-1] != EOS_ID:
            tokens.append(int(logits_of(task, params, tokens)[-1][EOS_ID:].argmax()) + EOS_ID)
        text = task.tokenizer.decode([token for token in tokens if token > EOS_ID])
        continuation = text.removeprefix(prompt)
        assert row == {"prompt": prompt, "reference": reference, "continuation": continuation}
    assert not samples.pictures


def test_no_document_is_read_for_samples_that_are_turned_off(task):
    """Each evaluation split all validation documents into words, even without samples."""
    texts = (pytest.fail("a document was read") for _ in range(3))
    assert task.make_samples(None, texts).rows == []


@pytest.mark.parametrize(("tokenizer", "size"), [("bytes", None), ("characters", None), ("word_pieces", 290)])
def test_tokenizers_are_stored_in_the_run_and_restore_texts(folder, tmp_path, tokenizer, size):
    data = {"tokenizer": tokenizer} | ({"vocabulary_size": size} if size else {})
    config = make_lm_config(folder, data=data)
    task = language_modeling.create(config, str(tmp_path))
    again = language_modeling.create(config, str(tmp_path), new=False)
    assert task.assets() == again.assets()
    assert set(task.assets()) == (set() if tokenizer == "bytes" else {VOCABULARY_FILE})
    assert (tmp_path / VOCABULARY_FILE).exists() == (tokenizer != "bytes")
    assert task.model.vocabulary_size == len(task.tokenizer) == len(again.tokenizer)
    text = "red dog\nß  "
    assert task.tokenizer.decode(task.tokenizer.encode([text])[0]) == text


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (TransformerConfig(), r"'transformer' is no language model: it has no prefill\."),
        (
            dataclasses.replace(MODEL, d_model=65_536, d_ff=1 << 20, heads=1),
            r"Training [\d,]+ parameters .* GiB .*feed_forward",
        ),
    ],
)
def test_other_models_are_rejected(folder, tmp_path, model, message):
    config = dataclasses.replace(make_lm_config(folder), model=model)
    with pytest.raises(UserError, match=message):
        language_modeling.create(config, str(tmp_path))


@pytest.mark.parametrize("tokenizer", ["bytes", "characters"])
def test_resumed_run_does_not_read_its_test_split(tokenizer, tmp_path):
    """A tokenizer of bytes leaves no file by which the start of the run could be recognised."""
    write_documents(tmp_path, [("train", 60), ("validation", 7)])
    config = make_lm_config(tmp_path, data={"tokenizer": tokenizer, "test": "mine"})
    workdir = tmp_path / "run"
    workdir.mkdir()
    with pytest.raises(UserError, match=r"\bmine\b"):
        language_modeling.create(config, str(workdir))
    (tmp_path / "mine").write_text("red dog\n")
    language_modeling.create(config, str(workdir))
    (workdir / CHECKPOINT_FOLDER / "1").mkdir(parents=True)
    (tmp_path / "mine").unlink()
    assert language_modeling.create(config, str(workdir)).config == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": {"row_length": 33}}, r"data\.row_length \(33\).*positions of the model .*=32\)"),
        ({"stride": 17}, r"stride .*data\.row_length \(16\).*got 17"),
    ],
)
def test_contradictory_fields_are_errors(folder, fields, message):
    with pytest.raises(UserError, match=message):
        make_lm_config(folder, **fields)


@pytest.mark.long
def test_observation_of_a_text_has_the_probabilities_of_scoring(task, params):
    text = "red dog runs"
    observation = task.observe({"params": params}, text, 64)
    ids = [*task.tokenizer.encode([text])[0], EOS_ID]
    batch = {
        "inputs": np.array([[BOS_ID, *ids[:-1]]]),
        "targets": np.array([ids]),
        "positions": np.arange(len(ids))[None],
        "segments": np.ones((1, len(ids)), int),
    }
    expected = np.exp(task.log_probabilities((params,), batch))[0]
    np.testing.assert_allclose([each.probability for each in observation.predictions], expected, rtol=1e-4)
    assert observation.tracks["predicted"].texts == ["red", "dog", "runs", "</s>"]
    assert observation.tracks["read"].labels == ["<s>", *observation.tracks["predicted"].labels[:-1]]
    weights = observation.attention["decoder"].weights
    assert weights.shape == (3, 2, len(ids), len(ids))
    assert (np.triu(weights, 1) == 0).all()


@pytest.mark.parametrize(
    ("text", "message"), [(" ", "empty"), ("x" * 40, r"at most 32 tokens, got 41"), ("x" * 9, "at most 8")]
)
def test_observing_an_empty_or_long_text_is_an_error(task, text, message):
    with pytest.raises(UserError, match=message):
        task.observe({"params": None}, text, 64 if len(text) > 9 else 8)


def test_default_examples_are_beginnings_of_documents(task, folder):
    documents = (folder / "validation").read_text().splitlines()
    for example, document in zip(task.default_examples(), documents, strict=False):
        assert example
        assert document.startswith(example)
        assert len(task.tokenizer.encode([example])[0]) < task.config.model.max_positions
    data = dataclasses.replace(task.config.data, directory="/missing")
    assert all(text.startswith("The animal") for text in change(task, data=data).default_examples())


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "changed"),
    [
        ({"batch_tokens": 16_000}, ["batch_tokens"]),
        ({"row_length": 4_000, "batch_tokens": 4_000, "rows": "packed"}, ["row_length", "batch_tokens"]),
    ],
)
def test_advice_about_padding_names_the_value_that_leaves_less(tmp_path, data, changed):
    write_documents(tmp_path)

    def describe(data):
        config = make_lm_config(tmp_path, model={"max_positions": 4_000}, data=data)
        task = language_modeling.create(config, str(tmp_path / "run"))
        return dict(task.open_data().describe(parameters=1))

    warning = describe(data)["warning"]
    assert [*re.findall(r"data\.(\w+)", warning)] == changed
    (value,) = re.findall(r"to ([\d,]+)\.$", warning)
    assert "warning" not in describe(data | dict.fromkeys(changed, int(value.replace(",", ""))))
