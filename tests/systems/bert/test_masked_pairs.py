"""Tests of the pairs of texts with hidden tokens that BERT is pretrained on."""

import dataclasses

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tfm.data.source import hold
from tfm.data.sources.opening import open_documents
from tfm.data.sources.sentences import list_sentences, split_sentences
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.characters import Characters
from tfm.data.tokenizers.learning import learn_word_pieces
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.errors import UserError
from tfm.systems.bert.mask import MASK, MaskTokenizer, add_mask
from tfm.systems.bert.masked_pairs import (
    MaskedPairs,
    SentencesConfig,
    find_chunks,
    fit_lengths,
)

TEXT = "It is tired. It is too wide, too."
TOKENIZER = MaskTokenizer(Characters())
CONFIG = SentencesConfig(row_length=32, batch_tokens=160)
# Each sentence has a single letter, which names its document in lower case, and counts the sentences.
DOCUMENTS = [" ".join(f"{letter * (2 + 3 * i)}." for i in range(5)) for letter in "abcd"]


def make_pairs(folder, documents=DOCUMENTS, seed=7):
    source = list_sentences(hold([(text,) for text in documents], repr(documents)))
    return MaskedPairs(TokenCache.open(source, TOKENIZER, str(folder)), CONFIG, TOKENIZER, 0.15, seed)


def batch_of(pairs, epoch):
    return pairs.assemble(epoch, np.arange(pairs.pieces), (pairs.pieces, CONFIG.row_length))


def restore(batch, row):
    """Returns the two texts of a row before tokens were hidden."""
    tokens = batch["tokens"][row].copy()
    count = batch["weights"][row].sum()
    tokens[batch["predicted"][row, :count]] = batch["targets"][row, :count]
    second = batch["types"][row] == 1
    first = ~second & (tokens > 0)
    assert tokens[first][0] == BOS_ID
    assert tokens[first][-1] == tokens[second][-1] == EOS_ID
    return TOKENIZER.decode(tokens[first]), TOKENIZER.decode(tokens[second])


def test_sentences_end_at_stops_and_at_blank_lines():
    text = "One  a.\nTwo! Three?\tFour\n\n  Five.5\n"
    assert split_sentences(text) == ["One a.", "Two!", "Three?", "Four", "Five.5"]


def test_a_row_has_two_texts_of_one_document_or_of_two(tmp_path):
    pairs = make_pairs(tmp_path)
    follows = []
    for epoch in range(30):
        batch = batch_of(pairs, epoch)
        for row in range(pairs.pieces):
            first, second = restore(batch, row)
            letters = {*first} - {"."}, {*second} - {"."}
            assert all(len(each) == 1 for each in letters)
            assert (letters[0] == letters[1]) == batch["follows"][row]
            assert first.endswith(".")
            if batch["follows"][row]:  # the next sentence has three more letters
                assert len(second.split(".")[0]) in (
                    len(first.split(".")[-2]) + 3,
                    CONFIG.row_length // 2 - 1,
                )
            follows.append(batch["follows"][row])
    assert 0.35 < np.mean(follows) < 0.65


def test_tokens_are_hidden_in_the_shares_of_the_paper(tmp_path):
    pairs, counts, total = make_pairs(tmp_path), np.zeros(3), 0
    for epoch in range(80):
        batch = batch_of(pairs, epoch)
        is_predicted = batch["weights"] > 0
        seen = np.take_along_axis(batch["tokens"], batch["predicted"], 1)[is_predicted]
        targets = batch["targets"][is_predicted]
        is_mask, stays = seen == TOKENIZER.mask_id, seen == targets
        counts += [is_mask.sum(), stays.sum(), (~is_mask & ~stays).sum()]
        total += (batch["tokens"] > EOS_ID).sum()
        assert targets.min() > EOS_ID
    np.testing.assert_allclose(counts / counts.sum(), [0.8, 0.1, 0.1], atol=0.03)
    np.testing.assert_allclose(counts.sum() / total, 0.15, atol=0.02)


def test_a_row_depends_only_on_seed_epoch_and_number(tmp_path):
    pairs, again, other = (make_pairs(tmp_path, seed=seed) for seed in (7, 7, 8))
    whole = batch_of(pairs, 3)
    rows = np.arange(pairs.pieces)[::-1]
    backwards = again.assemble(3, rows, (len(rows), CONFIG.row_length))
    for name, array in whole.items():
        np.testing.assert_array_equal(array, backwards[name][::-1])
    for changed in (batch_of(pairs, 4), batch_of(other, 3)):
        assert (changed["tokens"] != whole["tokens"]).any()


def test_every_sentence_of_documents_with_two_sentences_is_in_a_chunk():
    rng = np.random.default_rng(0)
    for room in (2, 9, 40):
        lengths = np.where(rng.random(200) < 0.2, 0, rng.integers(1, 12, 200))
        lengths[-1] = 0
        ends = np.flatnonzero(lengths == 0)
        alone = [end - 1 for end, begin in zip(ends, [0, *ends + 1], strict=False) if end - begin == 1]
        chunks = find_chunks(lengths, room)
        covered = {i for first, last, _ in zip(*chunks, strict=True) for i in range(first, last)}
        assert covered == set(np.flatnonzero(lengths)) - set(alone)
        assert (chunks.last - chunks.first >= 2).all()


@pytest.mark.parametrize("first", [1, 3, 10, 30])
@pytest.mark.parametrize("second", [1, 4, 10, 30])
@pytest.mark.parametrize("room", [2, 7, 20])
def test_the_longer_text_is_shortened_token_by_token(first, second, room):
    expected = [first, second]
    while sum(expected) > room:
        expected[0 if expected[0] > expected[1] else 1] -= 1
    found = fit_lengths(first, second, room)
    assert sum(found) == sum(expected)
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("documents", [["One sentence.", "Another one."], ["Two. Sentences.", "One."]])
def test_documents_of_one_sentence_are_an_error(documents, tmp_path):
    with pytest.raises(UserError, match=r"two documents of two or more.*got [01]\..*data\.documents"):
        make_pairs(tmp_path, documents)


class Pieces(Characters):
    """Bytes with pieces, one of which is the mask if it has a place."""

    def __init__(self, mask_place=None):
        super().__init__()
        self.mask_place = mask_place

    def pieces(self, ids):
        return [MASK if i == self.mask_place else f"piece {i}" for i in ids]

    def word_starts(self, ids):
        return [False for _ in ids]


@pytest.mark.parametrize(("tokenizer", "mask_id", "size"), [(Characters(), 259, 260), (Pieces(), 259, 260)])
def test_mask_is_one_more_token_without_a_piece_of_this_name(tokenizer, mask_id, size):
    masked = add_mask(tokenizer)
    assert (masked.mask_id, len(masked)) == (mask_id, size)
    ids = masked.encode_masked(f"a{MASK}b")
    assert ids == [*tokenizer.encode(["a"])[0], mask_id, *tokenizer.encode(["b"])[0]]
    assert masked.decode(ids) == f"a{MASK}b"


@pytest.mark.parametrize("has_lines", [False, True])
def test_a_mask_takes_the_place_of_a_token_of_the_text(has_lines, tmp_path):
    masked = add_mask(learn_word_pieces([TEXT] * 9, 290, str(tmp_path / "model"), has_lines=has_lines))
    (ids,) = masked.encode([TEXT])
    for place, piece in enumerate(masked.pieces(ids)):
        before, after = (masked.decode(part) for part in (ids[:place], ids[place + 1 :]))
        blanks = [" " * (x.startswith("\u2581") and i > 0) for i, x in enumerate(masked.pieces(ids))]
        follows = (blanks[place + 1 :] or [""])[0]
        hidden = masked.encode_masked(f"{before}{blanks[place]}{MASK}{follows}{after.lstrip()}")
        assert hidden == [*ids[:place], masked.mask_id, *ids[place + 1 :]], piece


def test_pieces_of_an_iterator_are_those_of_a_list():
    masked = add_mask(Pieces())
    assert masked.pieces(iter([99, masked.mask_id])) == ["piece 99", MASK]


def test_mask_is_the_piece_of_this_name():
    masked = add_mask(Pieces(100))
    assert (masked.mask_id, len(masked)) == (100, 259)
    assert masked.pieces([99, 100]) == ["piece 99", MASK]
    assert masked.word_starts([99, 100]) == [False, True]


def test_sentences_may_be_lines_between_blank_lines(tmp_path):
    """The authors' create_pretraining_data.py reads this form. "Mr." does not end a sentence in it."""
    text = (
        "Mr. Cassius crossed the highway.\nThis was opposite.\n\nSomething glittered,\r\nand he stopped.\n\n"
    )
    (tmp_path / "train.txt").write_bytes(text.encode())
    fields = {"directory": str(tmp_path), "train": "train.txt", "documents": "paragraph", "sentences": "line"}
    config = SentencesConfig(**fields)
    documents = open_documents(config, "train")
    assert [text for (text,) in list_sentences(documents, config.sentences)] == [
        *("Mr. Cassius crossed the highway.", "This was opposite.", ""),
        *("Something glittered,", "and he stopped.", ""),
    ]
    fingerprints = {list_sentences(documents, unit).fingerprint for unit in ("line", "punctuation")}
    assert len(fingerprints) == 2


@pytest.mark.parametrize("form", ["text", "parquet", "huggingface"])
def test_pairs_of_wikitext_come_from_its_sections(form, tmp_path):
    """Headings and blank rows are documents without two sentences, so that no row contains them."""
    lines = ["", " = Lobster = ", "", " A lobster . It is blue . ", " It moults . ", "", " = = Food = = ", ""]
    lines += [" It eats fish . It hunts at night . ", ""]
    config = SentencesConfig(directory=str(tmp_path), train="train.txt", documents="paragraph", row_length=64)
    if form == "text":
        (tmp_path / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    elif form == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": lines}), tmp_path / "train.parquet")
        config = dataclasses.replace(config, kind="table", train="train.parquet")
    else:
        datasets = pytest.importorskip("datasets")
        data = datasets.Dataset.from_dict({"text": lines})
        datasets.DatasetDict(train=data).save_to_disk(tmp_path / "saved")
        config = dataclasses.replace(
            config, kind="huggingface", directory=str(tmp_path / "saved"), train="train"
        )
    sentences = list_sentences(open_documents(config, "train"))
    cache = TokenCache.open(sentences, TOKENIZER, str(tmp_path / "cache"))
    pairs = MaskedPairs(cache, config, TOKENIZER, 0.15, 0)
    assert pairs.pieces == 2
    (batch,) = pairs.in_order()
    shown = " ".join(TOKENIZER.decode(row) for row in np.where(batch["tokens"] > 2, batch["tokens"], 3))
    assert "=" not in shown
