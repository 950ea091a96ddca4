"""Tests of the pairs of word2vec by their frequencies, and of how hosts share a batch."""

import collections
import dataclasses
import json

import numpy as np
import pytest

from tfm.systems.word2vec import task as word_vectors
from tfm.systems.word2vec.model import Word2VecConfig
from tfm.systems.word2vec.skip_grams import (
    SkipGramBatches,
    SkipGramsConfig,
    count_words,
    keep_probabilities,
    number_sentences,
)
from tfm.systems.word2vec.word_questions import make_analogies, read_sentences
from tfm.training.config import TrainingConfig

WINDOW, LENGTH = 3, 30
# Each word occurs once, so that a word's number is its place. Sentences differ in their words.
SENTENCES = [[f"{sentence}_{place:02}" for place in range(LENGTH)] for sentence in range(4)]
UNIFORM = SkipGramsConfig(minimum_count=1, window=WINDOW, subsampling=1.0, batch_size=3000)


def make_batches(config=UNIFORM, sentences=SENTENCES, seed=0, **hosts):
    counts = count_words(sentences, config.minimum_count)
    return SkipGramBatches(number_sentences(sentences, counts), counts, config, seed, **hosts)


def read_pairs(batch):
    """Returns the pairs [N, 2] of a batch without padding."""
    return np.stack([batch["centers"], batch["contexts"]], axis=1)[batch["weights"] == 1]


def test_defaults_are_those_of_the_paper():
    """Mikolov et al. 2013, sections 2.2 to 4: windows of 5, t = 1e-5, 5 noise words, 300 features."""
    config = word_vectors.Config()
    assert (config.data.window, config.data.minimum_count, config.data.subsampling) == (5, 5, 1e-5)
    assert (config.negatives, config.model.features) == (5, 300)


def test_words_are_ordered_by_count_and_then_by_alphabet():
    sentences = [["b", "c", "a"], ["c", "b", "d"], ["c"], ["a", "e"]]
    assert list(count_words(sentences, 1).items()) == [("c", 3), ("a", 2), ("b", 2), ("d", 1), ("e", 1)]
    assert list(count_words(sentences, 2)) == ["c", "a", "b"]  # two occurrences are enough


def test_rare_words_always_stay():
    counts = np.array([10, 100, 890])
    np.testing.assert_allclose(keep_probabilities(counts, 0.1), [1, 1, (0.1 / 0.89) ** 0.5])


def test_near_words_are_paired_more_often_than_far_words():
    """The reach is uniform from 1 to R, so a distance d is in reach with probability (R - d + 1) / R."""
    pairs = read_pairs(make_batches().batch(0))
    assert (pairs[:, 0] // LENGTH == pairs[:, 1] // LENGTH).all()  # of one sentence
    distances = pairs[:, 1] - pairs[:, 0]
    # LENGTH - d words of a sentence have a context at the distance d on each side.
    expected = {d: (WINDOW - abs(d) + 1) * (LENGTH - abs(d)) for d in range(-WINDOW, WINDOW + 1) if d}
    shares = {d: (distances == d).mean() for d in expected}
    total = sum(expected.values())
    assert sum(shares.values()) == pytest.approx(1)
    assert shares == pytest.approx({d: count / total for d, count in expected.items()}, abs=0.03)


def test_center_has_the_contexts_of_one_reach_on_both_sides():
    """In a batch with all pairs of its sentences, a center has a context before it as often as after it."""
    config = dataclasses.replace(UNIFORM, batch_size=500_000)
    pairs = read_pairs(make_batches(config, [[f"{place}" for place in range(7)]]).batch(0))
    assert len(pairs) < 500_000  # no pair was cut off
    counts = collections.Counter(map(tuple, pairs.tolist()))
    for distance in range(1, WINDOW + 1):
        assert counts[3, 3 - distance] == counts[3, 3 + distance]
    assert counts[3, 1] != counts[1, 3]  # the reaches of two centers are independent


def test_sentences_of_a_batch_are_drawn_uniformly():
    sentences = [[f"{number}_{place:02}" for place in range(LENGTH)] for number in range(10)]
    config = dataclasses.replace(UNIFORM, batch_size=50_000)
    pairs = read_pairs(make_batches(config, sentences).batch(0))
    shares = np.bincount(pairs[:, 0] // LENGTH, minlength=10) / len(pairs)
    np.testing.assert_allclose(shares, 0.1, atol=0.06)
    assert shares.std() > 0.004  # about 430 draws have a deviation of 0.014, and turns would have none


def test_words_that_are_no_words_of_the_vocabulary_leave_no_gap():
    sentences = [["a", "x", "b"], ["a", "y", "b"]]
    config = dataclasses.replace(UNIFORM, minimum_count=2, window=1, batch_size=10)
    pairs = read_pairs(make_batches(config, sentences).batch(0))
    assert set(map(tuple, pairs.tolist())) == {(0, 1), (1, 0)}


def test_subsampling_uses_the_count_of_each_word():
    """All words are equally frequent among the pairs if the words of low frequency stay more often."""
    rng = np.random.default_rng(0)
    words = rng.choice(4, 4000, p=[0.4, 0.3, 0.2, 0.1]).reshape(400, 10)
    sentences = [[f"{word}" for word in row] for row in words]
    config = dataclasses.replace(UNIFORM, subsampling=0.05, window=1, batch_size=4000)
    counts = np.bincount(words.ravel())
    expected = counts * np.sqrt(0.05 / (counts / counts.sum()))
    pairs = read_pairs(make_batches(config, sentences).batch(0))
    shares = np.bincount(pairs[:, 0]) / len(pairs)
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.03)


def test_batches_follow_the_seed_and_the_step():
    one, again = (make_batches(seed=1).batch(2) for _ in range(2))
    np.testing.assert_equal(one, again)
    for other in (make_batches(seed=1).batch(3), make_batches(seed=2).batch(2)):
        assert (one["centers"] != other["centers"]).mean() > 0.9


def test_hosts_share_the_batch_of_one_host():
    config = dataclasses.replace(UNIFORM, batch_size=7)
    whole = read_pairs(make_batches(config).batch(0))
    batches = [make_batches(config, host_index=host, host_count=2) for host in range(2)]
    shares = [each.batch(0) for each in batches]
    assert [share["weights"].tolist() for share in shares] == [[1, 1, 1, 1], [1, 1, 1, 0]]
    for host, share in enumerate(shares):
        np.testing.assert_array_equal(read_pairs(share), whole[host::2])
    for each, share in zip(batches, shares, strict=True):
        example = each.largest_batch()
        assert {name: x.shape for name, x in example.items()} == {name: x.shape for name, x in share.items()}
        assert not any(x.any() for x in example.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def task(folder):
    """Returns a task with the words of 1,500 sentences, in `folder`."""
    data = SkipGramsConfig(sentences=1500, minimum_count=3, subsampling=1.0, batch_size=500)
    training = TrainingConfig(seed=5)
    config = word_vectors.Config(model=Word2VecConfig(features=4), data=data, training=training)
    return word_vectors.create(config, str(folder))


def test_run_counts_and_reads_only_the_sentences_of_its_config(task, folder):
    sentences = read_sentences("train")[:1500]
    counts = collections.Counter(word for words in sentences for word in words)
    expected = {word: count for word, count in counts.items() if count >= 3}
    assert dict(json.loads((folder / "words.json").read_text())) == expected
    data = task.open_data()
    assert data.describe(0)[0][1].startswith("1,500 sentences")
    np.testing.assert_equal(
        next(data.train_batches(0)), make_batches(task.config.data, sentences, seed=5).batch(0)
    )


@pytest.mark.long
def test_identity_of_the_sentences_does_not_depend_on_fields_that_a_resume_may_change(task):
    fields = {"most_frequent": 1000, "similarities": "pairs.tsv", "cache_dir": "other"}
    assert _identify_sentences(task, **fields) == _identify_sentences(task)
    assert _identify_sentences(task, sentences=1400) != _identify_sentences(task)


def _identify_sentences(task, **fields):
    data = dataclasses.replace(task.config.data, **fields)
    config = dataclasses.replace(task.config, data=data)
    return word_vectors.WordVectors(config, task.counts, "").open_data().identity()["train"]


def test_padding_does_not_count_as_pairs(task):
    assert task.open_data().count({"weights": np.array([1, 1, 0], np.float32)}) == 2


def test_identity_of_the_validation_data_is_that_of_the_validation_report(task):
    variables = {"params": {"centers": np.random.default_rng(0).normal(size=(len(task.words), 4))}}
    identities = {}
    for split in ("validation", "test"):
        (report,) = task.report(variables, split)
        assert [example["analogy"] for example in report.examples] == [
            f"{q.first} : {q.second} = {q.third} : {q.fourth}"
            for q in make_analogies(split)
            if {*q[1:]} <= {*task.words}
        ]
        identities[split] = report.identity
    assert task.open_data().identity()["validation"] == identities["validation"] != identities["test"]
