"""Tests of BPE dropout: sampled segmentations and the epochs that use them."""

import collections
import random

import numpy as np
import pytest

from tests.support.corpora import text_config, write
from tests.support.pairs import read_and_check_sentences
from tests.support.processes import run_python
from tests.support.tiny import WORDS, write_corpus
from tfm.data.batches.pairs import open_train_batches
from tfm.data.sources.opening import open_pairs
from tfm.data.tokenizers.learning import learn_word_pieces
from tfm.data.tokenizers.sampling import SampledWordPieces, merge_with_dropout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    texts = [text for pair in open_pairs(text_config(folder), "train")[:] for text in pair]
    return learn_word_pieces(texts, 330, str(folder / "vocabulary.model"))


TEXTS = [" ".join(WORDS[i % 10] for i in range(start, start + 6)) for start in range(40)]


def sample(tokenizer, dropout, seed):
    return SampledWordPieces(tokenizer, dropout, seed).encode(TEXTS)


def test_sampled_pieces_decode_to_the_text(tokenizer):
    sampled = SampledWordPieces(tokenizer, 0.3, 5)
    ids = sampled.encode(TEXTS)
    assert [tokenizer.decode(each) for each in ids] == TEXTS
    assert len(sampled) == len(tokenizer)
    assert sum(map(len, ids)) > 1.1 * sum(map(len, tokenizer.encode(TEXTS)))


def test_dropout_of_zero_yields_the_best_segmentation(tokenizer):
    assert sample(tokenizer, 0.0, 5) == tokenizer.encode(TEXTS)


def test_sampled_pieces_depend_on_the_seed(tokenizer):
    first, again, other = (sample(tokenizer, 0.3, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_another_process_samples_the_same_pieces(tokenizer, folder):
    program = "import sys; from tfm.data.tokenizers import files, sampling; "
    program += "tokenizer = files.load_word_pieces(sys.argv[1]); "
    program += f"print(sampling.SampledWordPieces(tokenizer, 0.3, 1).encode({TEXTS!r}))"
    result = run_python("-c", program, folder / "vocabulary.model")
    assert result.stdout.decode().strip() == str(sample(tokenizer, 0.3, 1)), result.stderr


def test_symbols_and_unknown_characters_stay_whole(folder):
    text = "<en> small dogs \u96e8"
    symbols = learn_word_pieces([text[:10]], 275, str(folder / "symbols.model"), symbols=["<en>", "og"])
    assert SampledWordPieces(symbols, 0.0, 1).encode([text]) == symbols.encode([text])
    for seed in range(20):
        (ids,) = SampledWordPieces(symbols, 0.9, seed).encode([text])
        assert symbols.decode(ids) == text
        assert {"<en>", "og", "<0xE9>"} <= set(symbols.pieces(ids))


def test_merges_are_dropped_with_the_configured_probability():
    """The segmentations of a word of three characters have known probabilities."""
    scores, p, count = {"ab": 0.0, "bc": -1.0, "abc": -2.0}, 0.3, 20_000
    rng = random.Random(0)
    found = collections.Counter(" ".join(merge_with_dropout("abc", scores, p, rng)) for _ in range(count))
    expected = {"abc": (1 - p) ** 2 * (1 + p), "ab c": (1 - p) * p, "a bc": p * (1 - p) * p, "a b c": p**2}
    assert found.keys() == expected.keys()
    for segmentation, probability in expected.items():
        assert found[segmentation] / count == pytest.approx(probability, abs=0.015)


def test_leftmost_of_equal_merges_is_applied_first():
    assert merge_with_dropout("aaa", {"aa": 0.0}, 0.0, random.Random(0)) == ["aa", "a"]


def open_split(folder, tokenizer, **fields):
    defaults = {"subword_dropout": 0.3, "subword_samples": 3, "batch_tokens": 256, "row_length": 64}
    return open_train_batches(text_config(folder, **defaults | fields), 7, tokenizer)[0]


@pytest.mark.parametrize("batching", ["packed", "buckets"])
def test_each_epoch_has_each_pair_once_in_the_next_segmentation(folder, tokenizer, batching):
    batches = open_split(folder, tokenizer, batching=batching)
    expected = collections.Counter(open_pairs(text_config(folder), "train")[:])
    step, pieces = 0, []
    for epoch in range(7):
        found, first = [], step
        while batches.epoch_of(step) == epoch:
            place = batches.describe(step)
            assert (place["epoch"], place["batch"], place["segmentation"]) == (epoch, step - first, epoch % 3)
            found += read_and_check_sentences(batches.batch(step))
            step += 1
        texts = [tuple(map(tokenizer.decode, pair)) for pair in found]
        assert collections.Counter(texts) == expected
        pieces.append(sorted(found))
    assert pieces[0] == pieces[3] == pieces[6]
    assert pieces[0] != pieces[1] != pieces[2] != pieces[0]


def test_order_differs_between_segmentations(folder, tokenizer):
    """With almost no dropout, the segmentations differ in nothing but the order."""
    batches = open_split(folder, tokenizer, batching="buckets", subword_dropout=1e-9)
    first, second = (batches.describe(step)["pairs"] for step in (0, batches.batches))
    assert sorted(first) != sorted(second)


def test_shapes_cover_all_segmentations(folder, tokenizer):
    batches = open_split(folder, tokenizer, batching="buckets")
    shapes = {batches.batch(step)["inputs"].shape for step in range(3 * batches.batches + 3)}
    assert shapes <= set(batches.shapes)
    assert batches.largest_batch()["inputs"].shape == max(batches.shapes, key=np.prod)
    assert 0 < batches.padding_fraction < 1
    assert batches.pieces == 200


def test_corpora_are_mixed_in_every_segmentation(tmp_path, folder, tokenizer):
    """The second corpus has a tenth of the pairs and half of each epoch."""
    write(tmp_path, b"big bird\n" * 20, b"grosser vogel\n" * 20, "other")
    for name in ("train.en", "train.de"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    batches = open_split(tmp_path, tokenizer, train="train,other", mixing="1,1")
    found = [read_and_check_sentences(batches.batch(step)) for step in range(3 * batches.batches)]
    sources = [tokenizer.decode(source) for batch in found for source, _ in batch]
    assert sources.count("big bird") / len(sources) == pytest.approx(0.5, abs=0.1)
