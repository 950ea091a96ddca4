"""Tests of splits with several corpora: tags of source texts and shares of corpora."""

import numpy as np
import pytest

from tests.support.corpora import pairs_of, text_config, write
from tfm.data.batches.pairs import compute_repeats
from tfm.data.config import PairsConfig
from tfm.data.sources.opening import check_splits, open_corpora, open_pairs
from tfm.data.tokenizers.learning import learn_word_pieces
from tfm.errors import UserError
from tfm.tasks.translation.data import take_from_each


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, b"one\ntwo\n\n", b"eins\nzwei\nleer\n", "train_de")
    write(tmp_path, b"one\n", b"un\n", "train_fr")
    write(tmp_path, b"three\n", b"drei\n", "dev_de")
    write(tmp_path, b"three\n", b"trois\n", "dev_fr")
    return tmp_path


@pytest.mark.parametrize(
    ("train", "tags", "sources"),
    [
        ("train_de, train_fr", "<de>,<fr>", ["<de> one", "<de> two", "", "<fr> one"]),
        ("train_de,train_fr", ",<fr>", ["one", "two", "", "<fr> one"]),
        ("train_*", "<x>", ["<x> one", "<x> two", "", "<x> one"]),  # a pattern is one corpus
    ],
)
def test_each_source_text_begins_with_the_tag_of_its_corpus(folder, train, tags, sources):
    pairs = pairs_of(text_config(folder, train=train, tags=tags))
    assert pairs == list(zip(sources, ["eins", "zwei", "leer", "un"], strict=True))


@pytest.mark.parametrize(("count", "shares"), [(3, (2, 1)), (4, (2, 2)), (9, (3, 2))])
def test_validation_decodes_equally_many_pairs_of_each_corpus(tmp_path, count, shares):
    write(tmp_path, b"a\nb\nc\n", b"1\n2\n3\n", "dev_de")
    write(tmp_path, b"d\ne\n", b"4\n5\n", "dev_fr")
    config = text_config(tmp_path, validation="dev_de,dev_fr", tags="<de>,<fr>")
    corpora = open_corpora(config, "validation")
    expected = [*corpora[0][: shares[0]], *corpora[1][: shares[1]]]
    assert take_from_each(corpora, count) == expected


def test_tag_is_a_single_piece(tmp_path):
    texts = [f"<2de> the {word} house" for word in ("red", "blue", "small", "big")] * 20
    path = str(tmp_path / "vocabulary.model")
    tokenizer = learn_word_pieces(texts, 310, path, symbols=["<2de>", "<2fr>"])
    for tag in ("<2de>", "<2fr>"):
        ids = tokenizer.encode([f"{tag} the house"])[0]
        assert tag in tokenizer.pieces(ids)
        assert tokenizer.decode(ids) == f"{tag} the house"


def test_every_split_needs_one_name_per_tag(folder):
    config = text_config(folder, train="train_de,train_fr", validation="dev_de", tags="<de>,<fr>")
    with pytest.raises(UserError, match=r"data\.tags .*2 .*'dev_de' .*1 "):
        check_splits(config)
    check_splits(text_config(folder, train="train_de,train_fr", validation="dev_de,dev_fr", tags="<de>,<fr>"))


TAGS = ("<s>", "<de>,</s>", "<pad>", "<unk>", "<0x41>", "de", "<d e>", ",", "<de>;")
SHARES = ("0", "1,0", "1,,2", "-1,2", "temperature:0", "temperature:", "nan", "inf", "1e3")


def test_split_without_tags_may_have_fewer_corpora_than_tags(folder):
    """Real texts next to back-translations have validation texts without a tag."""
    config = text_config(folder, train="train_de,train_fr", validation="dev_de", tags=",<bt>")
    check_splits(config)
    plain = text_config(folder, train="train_de", validation="dev_de")
    assert list(open_pairs(config, "validation")) == list(open_pairs(plain, "validation"))
    assert any(source.startswith("<bt> ") for source, _ in open_pairs(config, "train"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(({"tags": tags}, r"data\.tags .*<de>") for tags in TAGS),
        *(({"mixing": shares}, r"data\.mixing .*above 0") for shares in SHARES),
        ({"train": "news,talks", "mixing": "1"}, r"data\.mixing has 1 .*data\.train .*2 "),
        ({"train": "news,talks", "mixing": "1,2,3"}, r"data\.mixing has 3 .*data\.train .*2 "),
        ({"kind": "tfds", "mixing": "1,2"}, r"data\.kind=text, table, builtin, got 'tfds'"),
        ({"kind": "tfds", "tags": "<de>,<fr>"}, r"data\.kind=text, table, builtin, got 'tfds'"),
    ],
)
def test_invalid_tags_and_shares_are_errors(fields, message):
    with pytest.raises(UserError, match=message):
        PairsConfig(**{"kind": "text"} | fields)


@pytest.mark.parametrize(
    ("mixing", "expected"),
    [
        ("", [1, 1]),
        ("1,1", [500 / 100, 500 / 900]),
        ("3,1", [750 / 100, 250 / 900]),
        ("1.5,.5", [750 / 100, 250 / 900]),
        ("temperature:1", [1, 1]),
        ("temperature:2", [250 / 100, 750 / 900]),  # square roots of 100 and 900: 10 and 30
        ("temperature:0.001", [0, 1000 / 900]),
        ("temperature:999999999", [500 / 100, 500 / 900]),
    ],
)
def test_repeats_of_the_corpora_yield_the_shares(mixing, expected):
    np.testing.assert_allclose(compute_repeats([100, 900], mixing), expected, rtol=1e-6, atol=1e-9)
