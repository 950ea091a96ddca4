"""The task of language modelling: its loss, what it counts, its tokenizers, and what it refuses."""

import dataclasses
import functools
import math
import types

import jax
import numpy as np
import pytest
import scipy

from tests.support.programs import count_programs
from tests.support.tiny_lm import make_lm_config, write_documents
from tfm.data.config import TOKENIZER_FILE
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.errors import UserError
from tfm.models import TransformerConfig
from tfm.tasks import language_modeling
from tfm.tasks.language_modeling import report
from tfm.tasks.language_modeling.data import TokenizedDocuments
from tfm.tasks.language_modeling.report import document_nats
from tfm.tasks.language_modeling.samples import PROMPT_WORDS, make_samples
from tfm.testing.parameters import random_parameters
from tfm.training.task import Context, check_data, check_task


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
    """Parameters that are large enough for probabilities that differ."""
    params = random_parameters(task.model, np.ones((1, 1), int), deviation=0.02, seed=seed)
    return jax.tree.map(lambda x: 4 * x, params)


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, inputs):
    return model.apply({"params": params}, inputs, train=False)


def logits_of(task, params, inputs):
    """float64 [L, V] behind each of the tokens [L]; padded, so that one program does for all lengths."""
    padded = np.zeros((1, task.config.model.max_positions), int)
    padded[0, : len(inputs)] = inputs
    return np.asarray(apply(task.model, params, padded), np.float64)[0, : len(inputs)]


def forward(task, params, tokens):
    """float64 [L] log-probability of each token of one text that begins with BOS, by the whole model."""
    logits = logits_of(task, params, np.concatenate([[1], tokens[:-1]]))
    norm = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    return logits[np.arange(len(tokens)), tokens] - norm


def test_protocols_of_training(task):
    check_task(task)
    check_data(task.open_data())


@pytest.mark.long
def test_loss_is_the_mean_over_tokens(task, params):
    batch = task.open_data().train_batches(0).__next__()
    terms, metrics, _ = jax.jit(task.loss)({"params": params}, batch, Context())
    total, count = terms["loss"]
    log_probabilities = np.asarray(task.log_probabilities((params,), batch), np.float64)
    assert count == (batch["segments"] > 0).sum()
    assert float(total) == pytest.approx(-(log_probabilities * batch["weights"]).sum(), rel=1e-5)
    bits, tokens = metrics["bits_per_token"]
    assert float(bits / tokens) == pytest.approx(float(total / count) / math.log(2), rel=1e-5)


def test_rows_of_zeros_count_for_nothing(task, params):
    data = task.open_data()
    batch = data.train_batches(0).__next__()
    more = {name: np.concatenate([x, np.zeros_like(x)]) for name, x in batch.items()}
    loss = jax.jit(task.loss)
    (total, count), (other, same) = (
        loss({"params": params}, each, Context()).terms["loss"] for each in (batch, more)
    )
    assert (float(other), float(same)) == (pytest.approx(float(total), rel=1e-5), float(count))
    assert data.count(more) == data.count(batch) == count


@pytest.mark.long
def test_a_document_alone_equals_the_model(folder, tmp_path):
    """Rows are packed, so that none sees another; windows are long enough for each."""
    config = make_lm_config(folder, data={"rows": "packed", "row_length": 32}, model={"max_positions": 64})
    task = language_modeling.create(config, str(tmp_path))
    params = initialize(task)
    documents = TokenizedDocuments(config, task.tokenizer, "test")
    found = document_nats(task, params, documents)
    for nats, begin, end in zip(found, [0, *documents.ends[:-1]], documents.ends, strict=True):
        if end - begin <= 32:
            assert nats == pytest.approx(-forward(task, params, documents.tokens[begin:end]).sum(), rel=1e-4)


@pytest.mark.parametrize("stride", [3, 16])
def test_windows_score_as_the_model_does(task, params, stride):
    """The stream, cut by hand: each token with the context of its window, once."""
    config = dataclasses.replace(task.config, stride=stride)
    task = language_modeling.LanguageModeling(config, task.tokenizer)
    documents = TokenizedDocuments(config, task.tokenizer, "test")
    tokens, length = documents.tokens, config.data.row_length
    inputs = np.concatenate([[1], np.where(tokens[:-1] == 2, 1, tokens[:-1])])
    expected, done = np.zeros(len(tokens)), 0
    while done < len(tokens):
        end = min(done + (stride if done else length), len(tokens))
        begin = max(end - length, 0)
        logits = logits_of(task, params, inputs[begin:end])
        scores = scipy.special.log_softmax(logits, axis=-1)[np.arange(end - begin), tokens[begin:end]]
        expected[done:end] = scores[done - begin :]
        done = end
    sums = -np.add.reduceat(expected, [0, *documents.ends[:-1]])
    np.testing.assert_allclose(document_nats(task, params, documents), sums, rtol=1e-4)


@pytest.mark.parametrize(("text", "size"), [("", 1), ("a", 1), ("ab", 2), ("\u00e4b", 3)])
def test_outputs_of_a_report_are_bits_per_byte(task, monkeypatch, text, size):
    documents = types.SimpleNamespace(texts=[text])
    monkeypatch.setattr(report, "TokenizedDocuments", lambda *_: documents)
    monkeypatch.setattr(report, "document_nats", lambda *_: np.array([4.2]))
    monkeypatch.setattr(report, "score_documents", lambda *_: [])
    [found] = report.report_split(task, None, "test")
    assert found.outputs == [f"{4.2 / math.log(2) / size:.4f}"]


def test_scores_and_their_units(task, params):
    data = task.open_data()
    scores = task.evaluate({"params": params}, data).scores
    [report] = task.report({"params": params}, "validation")
    by_name = {score.name: score for score in report.scores}
    texts = data.validation.texts
    size, tokens = sum(len(text.encode()) for text in texts), len(data.validation.tokens)
    assert scores["validation/bits_per_byte"] == pytest.approx(by_name["bits per byte"].value)
    total = scores["validation/bits_per_byte"] * size * math.log(2)
    assert scores["validation/perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-6)
    assert scores["validation/bits_per_character"] == pytest.approx(
        total / math.log(2) / sum(map(len, texts))
    )
    assert task.best.metric in scores
    assert len(report.outputs) == len(texts)
    sizes = [len(text.encode()) for text in texts]
    mean = np.average([float(each) for each in report.outputs], weights=sizes)
    assert mean == pytest.approx(scores["validation/bits_per_byte"], abs=1e-3)
    assert by_name["bits per byte"].signature.endswith("7 documents, ends counted, window 16, stride 8")


@pytest.mark.long
def test_an_ensemble_averages_probabilities(task, params):
    other = initialize(task, seed=1)
    batch = task.open_data().train_batches(0).__next__()
    one, two, both = (
        np.exp(np.asarray(task.log_probabilities(members, batch), np.float64))
        for members in ((params,), (other,), (params, other))
    )
    np.testing.assert_allclose(both, (one + two) / 2, rtol=1e-5)


def test_few_documents_are_validated(folder, tmp_path):
    task = language_modeling.create(make_lm_config(folder, validation_documents=3), str(tmp_path))
    assert len(task.open_data().validation.texts) == 3


@pytest.mark.long
def test_samples_continue_documents_greedily(task, params):
    """As a loop over the whole model does; the first evaluation compiles the search, the others nothing."""
    sampled = language_modeling.LanguageModeling(
        dataclasses.replace(task.config, validation_samples=2), task.tokenizer
    )
    texts = ["red dog", " \n", "cat", "not wanted"]
    found = make_samples(sampled, params, texts)
    others = initialize(task, seed=1)
    with count_programs() as programs:
        make_samples(sampled, others, texts)
    assert not programs
    for row, prompt in zip(found.rows, ("red dog", "cat"), strict=True):
        start = [BOS_ID, *task.tokenizer.encode([prompt])[0]]
        tokens = list(start)
        while len(tokens) < len(start) + task.config.decoding.max_tokens and tokens[-1] != EOS_ID:
            tokens.append(int(logits_of(task, params, tokens)[-1][EOS_ID:].argmax()) + EOS_ID)
        text = task.tokenizer.decode([token for token in tokens if token > EOS_ID])
        assert row == {"prompt": prompt, "reference": "", "continuation": text.removeprefix(prompt)}
    assert not found.pictures


@pytest.mark.long
def test_samples_begin_as_the_documents(task, params):
    assert task.evaluate({"params": params}, task.open_data()).samples.rows == []  # off by default
    config = dataclasses.replace(task.config, validation_samples=3)
    sampled = language_modeling.LanguageModeling(config, task.tokenizer)
    data = sampled.open_data()
    rows = sampled.evaluate({"params": params}, data).samples.rows
    for row, text in zip(rows, data.validation.texts[:3], strict=True):
        assert f"{row['prompt']} {row['reference']}".split() == text.split()
        assert len(row["prompt"].split()) == min(PROMPT_WORDS, len(text.split()))


@pytest.mark.parametrize(("tokenizer", "size"), [("bytes", None), ("characters", None), ("word_pieces", 290)])
def test_tokenizers_and_their_files(folder, tmp_path, tokenizer, size):
    data = {"tokenizer": tokenizer} | ({"vocabulary_size": size} if size else {})
    config = make_lm_config(folder, data=data)
    task = language_modeling.create(config, str(tmp_path))
    again = language_modeling.create(config, str(tmp_path), new=False)
    assert task.assets() == again.assets()
    assert set(task.assets()) == (set() if tokenizer == "bytes" else {TOKENIZER_FILE})
    assert (tmp_path / TOKENIZER_FILE).exists() == (tokenizer != "bytes")
    assert task.model.vocabulary_size == len(task.tokenizer) == len(again.tokenizer)
    text = "red dog\nß  "
    assert task.tokenizer.decode(task.tokenizer.encode([text])[0]) == text


def test_a_model_that_translates_is_refused(folder, tmp_path):
    config = dataclasses.replace(make_lm_config(folder), model=TransformerConfig())
    with pytest.raises(UserError, match=r"'transformer' is no language model: it has no method prefill\."):
        language_modeling.create(config, str(tmp_path))


def test_a_model_too_large_is_refused(folder, tmp_path):
    config = make_lm_config(folder, model={"d_model": 65_536, "d_ff": 1 << 20, "heads": 1, "layers": 3})
    with pytest.raises(UserError, match=r"Training [\d,]+ parameters .* GiB .*feed_forward"):
        language_modeling.create(config, str(tmp_path))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"data": {"row_length": 33}},
            r"data\.row_length \(33\).*model\.max_positions \(32\)",
        ),
        ({"stride": 17}, r"stride .*data\.row_length \(16\).*got 17"),
    ],
)
def test_fields_that_do_not_fit_together(folder, fields, message):
    with pytest.raises(UserError, match=message):
        make_lm_config(folder, **fields)


@pytest.mark.long
def test_a_text_is_observed_with_the_probabilities_of_scoring(task, params):
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
def test_a_text_that_cannot_be_observed_is_refused(task, text, message):
    with pytest.raises(UserError, match=message):
        task.observe({"params": None}, text, 64 if len(text) > 9 else 8)


def test_default_examples_are_beginnings_of_documents(task, folder):
    documents = (folder / "validation").read_text().splitlines()
    for example, document in zip(task.default_examples(), documents, strict=False):
        assert example
        assert document.startswith(example)
        assert len(task.tokenizer.encode([example])[0]) < task.config.model.max_positions
    data = dataclasses.replace(task.config.data, directory="/missing")
    elsewhere = type(task)(dataclasses.replace(task.config, data=data), task.tokenizer)
    assert all(text.startswith("The animal") for text in elsewhere.default_examples())
