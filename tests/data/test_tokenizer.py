"""The tokenizer: special ids, the round trip of any text, and what cannot be trained."""

import re

import pytest

from tests.support.pairs import TEXTS
from tfm.data import tokenizer
from tfm.data.tokenizer import Tokenizer
from tfm.errors import UserError


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return Tokenizer.train(TEXTS, 310, str(tmp_path_factory.mktemp("vocabulary") / "v.model"))


@pytest.mark.parametrize(
    "text",
    ["The big cat sees the dog .", "unseen: Zürich, 東京, 😀!", "", "a", "x" * 300, "tab\tand  spaces"],
)
def test_texts_survive_the_round_trip(trained, text):
    assert trained.decode(trained.encode([text])[0]) == " ".join(text.split())


def test_special_ids_never_come_from_text(trained):
    assert (tokenizer.PAD_ID, tokenizer.BOS_ID, tokenizer.EOS_ID, tokenizer.UNK_ID) == (0, 1, 2, 3)
    encoded = trained.encode(["<pad> <s> </s> <unk>", *TEXTS])
    assert all(i > tokenizer.UNK_ID for ids in encoded for i in ids)


def test_decode_stops_at_eos_and_skips_bos(trained):
    ids = trained.encode(["The dog"])[0]
    assert trained.decode([1, *ids, 2, *ids, 0, 0]) == "The dog"


def test_size_and_pieces(trained):
    assert len(trained) == 310
    ids = trained.encode(["The dog"])[0]
    assert "".join(trained.pieces(ids)).replace("▁", " ").strip() == "The dog"


def test_training_is_deterministic_and_loads_back(trained, tmp_path):
    again = Tokenizer.train(TEXTS, 310, str(tmp_path / "v.model"))
    assert again.fingerprint == trained.fingerprint
    assert Tokenizer.load(str(tmp_path / "v.model")).encode(TEXTS) == trained.encode(TEXTS)
    assert [path.name for path in tmp_path.iterdir()] == ["v.model"]


@pytest.mark.parametrize(
    ("size", "message", "beyond"),
    [
        (5000, r"data\.vocabulary_size to at most (\d+)", 1),
        (20, r"data\.vocabulary_size to at least (\d+)", -1),
    ],
)
def test_a_size_that_does_not_fit_names_the_limit(tmp_path, size, message, beyond):
    path = str(tmp_path / "v.model")
    with pytest.raises(UserError, match=message) as error:
        Tokenizer.train(TEXTS, size, path)
    assert not list(tmp_path.iterdir())
    limit = int(re.search(message, str(error.value))[1])
    assert len(Tokenizer.train(TEXTS, limit, path)) == limit
    with pytest.raises(UserError, match=message):
        Tokenizer.train(TEXTS, limit + beyond, path)


@pytest.mark.parametrize(
    ("texts", "size", "message"),
    [
        ([], 300, "nothing to learn word pieces from"),
        (["", "  "], 300, "nothing to learn word pieces from"),
        (["\u200b\x01"], 300, "has only invisible characters"),
        (["ab " * 30_000], 300, "longer than 65,536 bytes"),
        (TEXTS, 3, "3 word pieces .*data.vocabulary_size"),
        (TEXTS, 1 << 31, "must be at most 2,147,483,647"),
    ],
)
def test_no_error_of_sentencepiece_is_shown(tmp_path, texts, size, message):
    with pytest.raises(UserError, match=message) as error:
        Tokenizer.train(texts, size, str(tmp_path / "v.model"))
    assert "INTERNAL" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_damaged_model_is_an_error_message(tmp_path):
    with pytest.raises(UserError, match="there is none"):
        Tokenizer.load(str(tmp_path / "v.model"))
    (tmp_path / "v.model").write_bytes(b"not a model at all")
    with pytest.raises(UserError, match="may be damaged"):
        Tokenizer.load(str(tmp_path / "v.model"))


def test_texts_are_split_after_sentences_or_words(trained):
    ids = trained.encode(["The dog sees . The cat bites the dog"])[0]
    assert trained.split(ids, len(ids)) == [ids]
    sentence, rest = trained.split(ids, len(ids) - 1)
    assert trained.decode(sentence) == "The dog sees ."
    for longest in range(1, len(rest)):
        parts = trained.split(rest, longest)
        assert [i for part in parts for i in part] == rest
        assert max(map(len, parts)) <= longest
    assert [trained.decode(part) for part in trained.split(rest, len(rest) - 1)] == [
        "The cat bites the",
        "dog",
    ]


@pytest.mark.long
def test_words_number_the_pieces(trained):
    ids = trained.encode(["The dog sees xyz"])[0]
    words = trained.words(ids)
    assert words[0] == 0
    assert words[-1] == 3
    parts = [[i for i, word in zip(ids, words, strict=True) if word == number] for number in range(4)]
    assert [trained.decode(part) for part in parts] == ["The", "dog", "sees", "xyz"]
    assert trained.words([]) == []
