"""Tests of the random choices of pretraining by brute force: divisions, other documents, hidden tokens."""

import collections
import itertools

import numpy as np
import pytest

from tfm.data.source import hold
from tfm.data.sources.sentences import list_sentences
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.characters import Characters
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.systems.bert.mask import MASK, MaskTokenizer, add_mask
from tfm.systems.bert.masked_pairs import (
    MaskedPairs,
    SentencesConfig,
    choose_tokens,
    empty_batch,
    find_chunks,
    join_texts,
)

TOKENIZER = MaskTokenizer(Characters())
EPOCHS, ROOM = 800, 9
# Sentences of three tokens. Three of them fill a row, so that the first document has two rows.
ROWS = [["aa.", "bb.", "cc."], ["dd.", "ee.", "ff."], ["gg.", "hh.", "ii."], ["jj.", "kk.", "ll."]]
DOCUMENTS = [ROWS[0] + ROWS[1], ROWS[2], ROWS[3]]
DOCUMENT_OF = [0, 0, 1, 2]  # of each row


def make_pairs(folder, share=0.15, documents=DOCUMENTS, row_length=ROOM + 3):
    texts = [(" ".join(sentences),) for sentences in documents]
    cache = TokenCache.open(list_sentences(hold(texts, repr(texts))), TOKENIZER, str(folder))
    config = SentencesConfig(row_length=row_length, batch_tokens=5 * row_length)
    return MaskedPairs(cache, config, TOKENIZER, share, seed=3)


def read_rows(pairs, epochs=EPOCHS):
    """Yields (number of the row, batch of this row alone) of some epochs."""
    for epoch, row in itertools.product(range(epochs), range(pairs.pieces)):
        yield row, pairs.assemble(epoch, np.array([row]), (1, ROOM + 3))


def shorten(first, second):
    """Removes tokens of the longer text, far from the boundary of the texts, until the row has room."""
    while len(first) + len(second) > ROOM:
        if len(first) > len(second):
            first = first[1:]
        else:
            second = second[:-1]
    return first, second


def enumerate_divisions(row, follows):
    """Returns {(first text, second text): (cut, other row, other cut)} of all divisions of a row."""
    divisions = {}
    others = [i for i, document in enumerate(DOCUMENT_OF) if document != DOCUMENT_OF[row]]
    for cut, other, other_cut in itertools.product((1, 2), [row] if follows else others, (1, 2)):
        second = ROWS[other][cut if follows else other_cut :]
        texts = shorten("".join(ROWS[row][:cut]), "".join(second))
        divisions[texts] = (cut, other, cut if follows else other_cut)
    return divisions


def assert_equally_frequent(counts, number):
    """Asserts that there are `number` keys, and that their counts differ by chance only."""
    assert len(counts) == number
    total = sum(counts.values())
    for key, count in counts.items():
        assert abs(count - total / number) < 5 * (total / number) ** 0.5, (key, counts)


@pytest.fixture(scope="module")
def divisions(tmp_path_factory):
    """Returns (row, follows, division) of all rows of many epochs."""
    pairs = make_pairs(tmp_path_factory.mktemp("cache"))
    assert pairs.pieces == 4
    known = {(row, follows): enumerate_divisions(row, follows) for row in range(4) for follows in (0, 1)}
    found = []
    for row, batch in read_rows(pairs):
        tokens, types = batch["tokens"][0], batch["types"][0]
        count = batch["weights"][0].sum()
        tokens[batch["predicted"][0][:count]] = batch["targets"][0][:count]
        length = np.count_nonzero(tokens)
        end = int(types.argmax())
        assert tokens[0] == BOS_ID
        assert tokens[end - 1] == tokens[length - 1] == EOS_ID
        assert types[:length].tolist() == [0] * end + [1] * (length - end)
        texts = TOKENIZER.decode(tokens[1 : end - 1]), TOKENIZER.decode(tokens[end : length - 1])
        follows = int(batch["follows"][0])
        found.append((row, follows, known[row, follows][texts]))
    return found


def test_half_of_the_second_texts_follow(divisions):
    assert np.mean([follows for _, follows, _ in divisions]) == pytest.approx(0.5, abs=0.03)


def test_all_divisions_of_a_row_are_equally_frequent(divisions):
    for row, follows in itertools.product(range(4), (0, 1)):
        cuts = collections.Counter(place[0] for r, f, place in divisions if (r, f) == (row, follows))
        assert_equally_frequent(cuts, 2)


@pytest.mark.parametrize(("row", "others"), [(0, 2), (1, 2), (2, 3), (3, 3)])
def test_all_rows_of_other_documents_continue_a_row_equally_often(row, others, divisions):
    found = collections.Counter(place[1:] for r, follows, place in divisions if (r, follows) == (row, 0))
    assert_equally_frequent(found, 2 * others)


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """Returns (tokens, targets) of rows of which every token is predicted."""
    pairs = make_pairs(tmp_path_factory.mktemp("cache"), share=1.0)
    rows = []
    for _, batch in read_rows(pairs):
        count = batch["weights"][0].sum()
        rows.append((batch["tokens"][0][batch["predicted"][0][:count]], batch["targets"][0][:count]))
    return rows


def test_random_tokens_are_all_tokens_of_texts_equally_often(hidden):
    tokens, targets = (np.concatenate(arrays) for arrays in zip(*hidden, strict=True))
    is_random = (tokens != TOKENIZER.mask_id) & (tokens != targets)
    counts = collections.Counter(tokens[is_random].tolist())
    assert counts.keys() <= set(range(EOS_ID + 1, TOKENIZER.mask_id))
    of_others = {i: count for i, count in counts.items() if i not in targets}
    assert_equally_frequent(of_others, TOKENIZER.mask_id - EOS_ID - 1 - len(set(targets.tolist())))


def test_random_tokens_of_a_row_are_independent(hidden):
    equal = []
    for tokens, targets in hidden:
        random = tokens[(tokens != TOKENIZER.mask_id) & (tokens != targets)]
        equal += [one == other for one, other in itertools.combinations(random.tolist(), 2)]
    assert np.mean(equal) < 0.02
    assert len(equal) > 500


def test_the_kinds_of_hidden_tokens_have_the_shares_of_the_paper(hidden):
    tokens, targets = (np.concatenate(arrays) for arrays in zip(*hidden, strict=True))
    shares = [np.mean(tokens == TOKENIZER.mask_id), np.mean(tokens == targets)]
    np.testing.assert_allclose(shares, [0.8, 0.1], atol=0.01)


@pytest.mark.parametrize(
    ("length", "share", "count"), [(20, 0.15, 3), (3, 0.15, 1), (16, 0.15, 2), (7, 1, 7)]
)
def test_the_share_is_that_of_the_tokens_without_bos_and_eos(length, share, count):
    tokens, _ = join_texts([5] * (length - 1), [6])
    assert len(choose_tokens(np.random.default_rng(0), tokens, share)) == count


def test_each_token_of_the_texts_is_predicted_equally_often():
    tokens, _ = join_texts([5, 6, 7, 3], [8, 9])
    rng = np.random.default_rng(0)
    chosen = [choose_tokens(rng, tokens, 0.3) for _ in range(2000)]
    assert_equally_frequent(collections.Counter(np.concatenate(chosen).tolist()), 6)
    assert all(len(set(places.tolist())) == 2 and (np.diff(places) > 0).all() for places in chosen)


def test_a_batch_has_a_place_for_each_prediction_of_a_full_row_and_no_more():
    batch = empty_batch((2, 33), 0.15)
    assert {name: array.shape for name, array in batch.items()} == {
        **dict.fromkeys(("tokens", "types"), (2, 33)),
        **dict.fromkeys(("predicted", "targets", "weights"), (2, 5)),
        **dict.fromkeys(("follows", "rows"), (2,)),
    }
    assert not any(array.any() for array in batch.values())


def test_a_chunk_ends_with_the_sentence_that_fills_the_row():
    rng = np.random.default_rng(1)
    for room in (4, 9, 20):
        lengths = np.where(rng.random(300) < 0.1, 0, rng.integers(1, 6, 300))
        lengths[-1] = 0
        previous = 0
        for first, last, document in zip(*find_chunks(lengths, room), strict=True):
            assert document == np.count_nonzero(lengths[:first] == 0)
            before, tokens = lengths[first : last - 1], lengths[first:last]
            assert before.sum() < room or len(tokens) == 2
            assert tokens.sum() >= room or lengths[last] == 0
            assert first == previous or lengths[previous] == 0 or lengths[last] == 0
            previous = last


def test_tokens_of_an_epoch_are_those_of_the_rows_whose_second_text_follows(tmp_path):
    documents = [["aaaaaaaaaaaaa.", "b."], ["c.", "d."], ["eee.", "ff."]]  # longer and shorter than a row
    pairs = make_pairs(tmp_path, documents=documents)
    lengths = {}
    for row, batch in read_rows(pairs, epochs=40):
        if batch["follows"][0]:
            lengths[row] = np.count_nonzero(batch["tokens"])
    assert lengths == {0: 12, 1: 7, 2: 10}
    assert pairs.tokens == 29


def test_an_epoch_is_a_permutation_that_depends_on_seed_and_epoch(tmp_path):
    pairs = make_pairs(tmp_path, documents=[[f"{letter}.", "z."] for letter in "abcdefghijklmnop"])
    orders = [pairs.shuffle(epoch)[0].tolist() for epoch in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert [sorted(order) for order in orders] == [list(range(16))] * 3
    assert pairs.shuffle(0)[1].tolist() == list(range(len(pairs.cuts)))


def test_rows_in_order_are_those_of_epoch_0_with_padding_after_them(tmp_path):
    pairs = make_pairs(tmp_path)
    batches = list(pairs.in_order())
    expected = pairs.assemble(0, np.arange(4), (5, ROOM + 3))
    assert [len(batch["rows"]) for batch in batches] == [5]
    for name, array in expected.items():
        np.testing.assert_array_equal(batches[0][name], array)
    assert expected["rows"].tolist() == [1, 1, 1, 1, 0]
    assert not any(array[4].any() for array in expected.values())


def test_a_row_is_described_by_its_first_sentence(tmp_path):
    """The end of a document counts as a sentence."""
    pairs = make_pairs(tmp_path)
    assert pairs.describe(0, np.array([3, 0, 1, 2])) == {"sentences": [11, 0, 3, 7]}


def test_neighbouring_masks_are_decoded_one_by_one():
    mask = TOKENIZER.mask_id
    (ids,) = TOKENIZER.encode(["ab"])
    assert TOKENIZER.decode([mask, mask, *ids, mask]) == f"{MASK}{MASK}ab{MASK}"


class LimitedPieces(Characters):
    """Characters that are pieces, and that fail for ids that they do not have, as SentencePiece does."""

    def pieces(self, ids):
        return [["<pad>", "<s>", "</s>", *map(chr, range(256))][i] for i in ids]

    def word_starts(self, ids):
        return [piece == " " for piece in self.pieces(ids)]


def test_a_mask_that_the_tokenizer_lacks_begins_a_word():
    masked = add_mask(LimitedPieces())
    assert masked.word_starts([40, masked.mask_id]) == [False, True]
    assert masked.pieces([68, masked.mask_id]) == ["A", MASK]
