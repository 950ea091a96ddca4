"""Tests of BERT's initial values, losses and reports against NumPy."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references.numeric_gradients import assert_gradient_close
from tests.support import tiny_lm
from tests.support.labelled_texts import make_config, write_tables
from tests.systems.bert import numpy_bert
from tests.systems.bert.numpy_bert import class_logits, class_sums, log_softmax, pretraining_sums
from tfm.data.tokenizers.characters import Characters
from tfm.layers import residual
from tfm.systems.bert import classification, pretraining
from tfm.systems.bert.mask import MASK
from tfm.systems.bert.masked_pairs import SentencesConfig, choose_tokens, join_texts
from tfm.systems.bert.model import Bert, BertConfig
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters
from tfm.training.config import TrainingConfig
from tfm.training.task import Context

MODEL = BertConfig(encoder_layers=2, d_model=16, d_ff=24, heads=4, max_positions=32, classes=3)
RNG = np.random.default_rng(3)
TOKENS = RNG.integers(3, 20, (4, 10)) * (np.arange(10) < [[10], [7], [4], [0]])  # the last row is padding
TYPES = ((np.arange(10) >= [[5], [3], [4], [9]]) & (TOKENS > 0)).astype(np.int32)


def make_task(module, head, seed=0, **fields):
    """Returns a task with 24 tokens, and its random parameters."""
    model = dataclasses.replace(MODEL, head=head)
    if module is pretraining:
        config = pretraining.Config(model=model, data=SentencesConfig(row_length=32), **fields)
        task = pretraining.MaskedLanguageModeling(config, range(23))
    else:
        config = classification.Config(model=model, data=classification.LabelledConfig(max_length=32))
        kind = classification.TextRegression if head == "regression" else classification.TextClassification
        task = kind(config, range(23), ["a", "b", "c"], "")
    return task, random_parameters(task.model, TOKENS, seed=seed)


def make_pretraining_batch():
    """Returns a batch with fewer predictions in the second and third row, and none in the fourth."""
    counts = np.array([3, 2, 1, 0])
    weights = (np.arange(3) < counts[:, None]).astype(np.int32)
    return {
        "tokens": TOKENS,
        "types": TYPES,
        "predicted": np.array([[1, 4, 8], [2, 5, 0], [3, 0, 0], [0, 0, 0]]),
        "targets": RNG.integers(3, 24, (4, 3)) * weights,
        "weights": weights,
        "follows": np.array([1, 0, 1, 0]),
        "rows": np.array([1, 1, 1, 0]),
    }


def make_class_batch(head):
    """Returns a batch with a label for each row, or for some of its tokens."""
    weights = np.zeros((4, 10), np.int32)
    weights[:3, 0] = 1
    if head == "tags":
        weights = (RNG.random((4, 10)) < 0.5) * (TOKENS > 0).astype(np.int32)
    labels = RNG.integers(0, 3, (4, 10))  # also where the weight is 0
    return {"tokens": TOKENS, "types": TYPES, "labels": labels, "weights": weights}


def value_and_gradient(task, params, batch):
    """Returns the outputs of a task's loss, and the gradient of the sum of its terms."""

    @quick_jit
    def run(params):
        def total(params):
            output = task.loss({"params": params}, batch, Context())
            return sum(pair[0] for pair in output.terms.values()), (output.terms, output.metrics)

        return jax.grad(total, has_aux=True)(params)

    gradient, (terms, metrics) = run(params)
    return terms, metrics, gradient


def test_loss_metrics_and_gradient_of_pretraining_equal_numpy():
    task, params = make_task(pretraining, "pretraining")
    batch = make_pretraining_batch()
    terms, metrics, gradient = value_and_gradient(task, params, batch)
    expected, _ = pretraining_sums(params, batch)
    assert metrics.keys() == expected.keys()
    for name, pair in expected.items():
        np.testing.assert_allclose(metrics[name], pair, rtol=1e-5, err_msg=name)
    assert terms.keys() == {"masked", "next"}
    for name, pair in terms.items():
        np.testing.assert_allclose(pair, expected[f"{name}_nll"], rtol=1e-5, err_msg=name)

    def compute(params):
        sums, _ = pretraining_sums(params, batch)
        return sums["masked_nll"][0] + sums["next_nll"][0]

    assert_gradient_close(gradient, compute, params, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("head", ["classes", pytest.param("tags", marks=pytest.mark.long)])
def test_loss_metrics_and_gradient_of_classification_equal_numpy(head):
    task, params = make_task(classification, head)
    batch = make_class_batch(head)
    terms, metrics, gradient = value_and_gradient(task, params, batch)
    nll, correct, count = class_sums(params, batch, head)
    np.testing.assert_allclose(terms["loss"], (nll, count), rtol=1e-5)
    np.testing.assert_allclose(metrics["nll"], (nll, count), rtol=1e-5)
    np.testing.assert_array_equal(metrics["accuracy"], (correct, count))

    def compute(params):
        return class_sums(params, batch, head)[0]

    assert_gradient_close(gradient, compute, params, rtol=1e-3, atol=1e-4)


def test_loss_metrics_and_gradient_of_regression_equal_numpy():
    task, params = make_task(classification, "regression")
    batch = make_class_batch("regression")
    batch["labels"] = batch["labels"].astype(np.float32) - 0.5
    terms, metrics, gradient = value_and_gradient(task, params, batch)

    def compute(params):
        predicted = [
            class_logits(params, tokens[tokens > 0], types[tokens > 0], "regression")[0, 0]
            for tokens, types in zip(TOKENS[:3], TYPES, strict=False)
        ]
        return np.square(predicted - batch["labels"][:3, 0]).sum()

    np.testing.assert_allclose(terms["loss"], (compute(params), 3), rtol=1e-5)
    np.testing.assert_array_equal(metrics["squared_error"], terms["loss"])
    assert_gradient_close(gradient, compute, params, rtol=1e-3, atol=1e-4)


def test_accuracy_differs_from_the_share_of_wrong_labels():
    """Otherwise, the tests above would not see that a task counts wrong labels."""
    for head in ("classes", "tags"):
        _, params = make_task(classification, head)
        _, correct, count = class_sums(params, make_class_batch(head), head)
        assert 2 * correct != count


@pytest.mark.long
@pytest.mark.parametrize("head", ["classes", "tags"])
def test_dropout_is_in_the_embeddings_in_each_sublayer_and_before_the_head(head, monkeypatch):
    """A function takes the place of dropout, so that its places can be compared."""

    def halve(rng, x, rate):
        assert rate == 0.3
        return x / 2

    monkeypatch.setattr(residual, "dropout", halve)
    _, params = make_task(classification, head)
    model = Bert(dataclasses.replace(MODEL, head=head, dropout=0.3, attention_dropout=0.0), 24)
    rngs = {"dropout": jax.random.key(0)}
    call = {"types": TYPES[:1], "train": True, "rngs": rngs}
    found = quick_jit(lambda params: model.apply({"params": params}, TOKENS[:1], **call))(params)
    expected = class_logits(params, TOKENS[0], TYPES[0], head, lambda x: x / 2)
    np.testing.assert_allclose(found[0], expected if head == "tags" else expected[0], atol=2e-5)


def test_a_missing_type_is_the_first_type():
    _, params = make_task(pretraining, "pretraining")
    model = Bert(MODEL, 24)
    logits, follows = quick_jit(lambda p: model.apply({"params": p}, TOKENS[:1], train=False))(params)
    expected, expected_follows = numpy_bert.pretraining(params, TOKENS[0], np.zeros(10, int))
    np.testing.assert_allclose(logits[0], expected, atol=2e-5)
    np.testing.assert_allclose(follows[0], expected_follows, atol=2e-5)


@pytest.mark.long
def test_initial_matrices_are_normal_numbers_within_two_deviations_and_biases_are_zero():
    """The deviation of normal numbers between -2 and 2 is 0.8796, and 1 % of them are outside 1.96."""
    model = Bert(dataclasses.replace(MODEL, encoder_layers=1, d_model=64, heads=2, d_ff=256), 300)
    init = quick_jit(lambda key: model.init(key, jnp.ones((1, 1), int), train=False)["params"])
    params = init(jax.random.key(0))
    matrices = 0
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        if path[-1].key in ("bias", "scale"):
            assert (x == float(path[-1].key == "scale")).all(), path
            continue
        matrices += 1
        assert np.abs(x).max() <= 0.04, path
        assert np.std(x) == pytest.approx(0.8796 * 0.02, abs=4 * 0.02 / math.sqrt(x.size)), path
    assert matrices == 3 + 4 + 2 + 3  # embeddings, attention, feed-forward network, output layers


def test_defaults_are_those_of_the_paper():
    config = pretraining.Config()
    assert (config.predicted_share, config.data.row_length) == (0.15, 512)
    fields = {"encoder_layers": 12, "d_model": 768, "d_ff": 3072, "heads": 12, "max_positions": 512}
    fields |= {"dropout": 0.1, "attention_dropout": 0.1, "activation": "gelu", "norm_order": "post"}
    fields |= {"layer_norm_epsilon": 1e-12, "types": 2, "positions": "learned", "attention_bias": True}
    assert {name: getattr(config.model, name) for name in fields} == fields


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """A folder of documents of sentences."""
    folder = tmp_path_factory.mktemp("documents")
    tiny_lm.write_documents(folder, words=tiny_lm.SENTENCES)
    return folder


def make_documents_task(folder, share=0.3, seed=5):
    fields = {"documents": "line", "row_length": 24, "batch_tokens": 96, "tokenizer": "characters"}
    data = SentencesConfig(**fields, directory=str(folder), cache_dir=str(folder / "cache"))
    config = pretraining.Config(
        model=MODEL, data=data, predicted_share=share, training=TrainingConfig(seed=seed)
    )
    return pretraining.MaskedLanguageModeling(config, Characters())


@pytest.mark.long
def test_report_of_pretraining_equals_numpy(documents):
    task = make_documents_task(documents)
    params = random_parameters(task.model, TOKENS)
    (report,) = task.report({"params": params}, "test")
    sums, outputs, hidden = {}, [], []
    pairs, _ = task.open_split("test", 0)
    for batch in pairs.in_order():
        metrics, rows = pretraining_sums(params, batch)
        for name, pair in metrics.items():
            sums[name] = np.add(sums.get(name, 0), pair)
        decode = task.tokenizer.decode
        outputs += [" ".join(decode([i]).strip() for i in row) for row in rows]
        for row, targets in enumerate(batch["targets"][: len(rows)]):
            count = batch["weights"][row].sum()
            hidden.append(" ".join(decode([i]).strip() for i in targets[:count].tolist()))
    mean = {name: total / count for name, (total, count) in sums.items()}
    expected = {
        "masked accuracy": 100 * mean["masked_accuracy"],
        "masked perplexity": math.exp(mean["masked_nll"]),
        "next sentence accuracy": 100 * mean["next_accuracy"],
    }
    assert {score.name: score.value for score in report.scores} == pytest.approx(expected, rel=1e-4)
    assert report.outputs == outputs
    assert [example["hidden"] for example in report.examples] == hidden


def test_evaluation_hides_the_same_tokens_whatever_the_seed_of_training_is(documents):
    one, other = (make_documents_task(documents, seed=seed).open_data() for seed in (5, 6))
    batches = [next(data.validation.in_order())["tokens"] for data in (one, other)]
    np.testing.assert_array_equal(*batches)
    expected = next(make_documents_task(documents).open_split("validation", 0)[0].in_order())
    np.testing.assert_array_equal(batches[0], expected["tokens"])
    first, second = (data.batches.batch(0)["tokens"] for data in (one, other))
    assert (first != second).any()


def test_the_number_of_tokens_of_a_batch_counts_special_tokens_but_no_padding(documents):
    data = make_documents_task(documents).open_data()
    batch = {"tokens": np.array([[1, 5, 2, 6, 2, 0], [0] * 6])}
    assert data.count(batch) == 5


def test_the_share_of_predicted_tokens_is_that_of_the_config(documents):
    for share in (0.1, 0.5):
        pairs, _ = make_documents_task(documents, share=share).open_split("train", 0)
        for batch in pairs.in_order():
            texts = (batch["tokens"] > 2).sum(1)
            expected = [max(round(share * count), 1) if count else 0 for count in texts.tolist()]
            assert batch["weights"].sum(1).tolist() == expected


def test_an_observed_text_without_masks_is_read_with_the_share_of_hidden_tokens(documents):
    task = make_documents_task(documents, share=0.3)
    params = random_parameters(task.model, TOKENS)
    for text, hidden in (("abcdefghij", 3), (f"abc{MASK}efghij", 1)):
        observed = task.observe({"params": params}, text, 30)
        assert observed.tracks["read"].labels.count(MASK) == hidden
        (ids,) = task.tokenizer.encode(["abcdefghij"])
        tokens, types_ = join_texts(ids)
        if hidden == 1:
            tokens[4] = task.tokenizer.mask_id
        else:
            tokens[choose_tokens(np.random.default_rng(0), tokens, 0.3)] = task.tokenizer.mask_id
        logits, _ = numpy_bert.pretraining(params, tokens, types_)
        best = np.exp(log_softmax(logits)).max(-1)
        np.testing.assert_allclose([each.choices[0][1] for each in observed.predictions], best, rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(("head", "columns"), [("classes", {"second_column": "second"}), ("tags", {})])
def test_report_of_an_ensemble_of_classifiers_equals_numpy(head, columns, tmp_path):
    """The probability of a class is the mean of the probabilities of the models."""
    write_tables(tmp_path)
    if head == "tags":
        columns = {"label_column": "tags"}
    model = dataclasses.replace(MODEL, head=head, classes=2)
    config = make_config(tmp_path, model, **columns)
    task = classification.create(config, str(tmp_path))
    members = [random_parameters(task.model, TOKENS, seed=seed) for seed in (0, 1)]
    (report,) = task.report(tuple({"params": params} for params in members), "test")
    texts, _ = task.open_split("test")
    predictions, losses, is_correct = {}, [], []
    for numbers, batch in texts.in_order():
        for row, number in enumerate(numbers.tolist()):
            tokens = batch["tokens"][row][batch["tokens"][row] > 0]
            types = batch["types"][row][: len(tokens)]
            logits = [class_logits(params, tokens, types, head) for params in members]
            probabilities = np.mean([np.exp(log_softmax(each)) for each in logits], axis=0)
            places = np.flatnonzero(batch["weights"][row][: len(probabilities)])
            labels, best = batch["labels"][row][places], probabilities[places].argmax(-1)
            losses += (-np.log(probabilities[places, labels])).tolist()
            is_correct += (best == labels).tolist()
            predictions[number] = [task.label_names[i] for i in best]
    scores = {score.name: score.value for score in report.scores}
    assert scores["accuracy"] == pytest.approx(100 * np.mean(is_correct))
    assert scores["cross-entropy"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert scores["accuracy"] != pytest.approx(50)
    for number, example in enumerate(report.examples):
        names = iter(predictions[number])
        words = example["label"].split() if head == "tags" else ["any"]
        assert example["prediction"] == " ".join("-" if word == "-" else next(names) for word in words)
    assert report.outputs == [example["prediction"] for example in report.examples]


def test_texts_of_a_batch_are_counted_without_padding(tmp_path):
    write_tables(tmp_path)
    config = make_config(
        tmp_path, dataclasses.replace(MODEL, head="classes", classes=2), second_column="second"
    )
    data = classification.create(config, str(tmp_path)).open_data()
    assert data.count({"tokens": TOKENS}) == 3
    assert sum(data.count(batch) for _, batch in data.validation.in_order()) == data.validation.pieces == 8


def test_scores_of_both_tasks_select_the_best_checkpoint():
    assert pretraining.MaskedLanguageModeling.best == ("validation/masked_nll", "min")
    assert classification.TextClassification.best == ("validation/accuracy", "max")
