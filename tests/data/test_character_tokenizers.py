"""Bytes and characters as tokens: every text survives, and ids are those of the special tokens' order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.data.character_tokenizers import BYTES, FIRST_BYTE, CharacterTokenizer
from tfm.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer
from tfm.errors import UserError

ENGLISH = CharacterTokenizer("the quick brown fox\n")


@pytest.mark.parametrize("tokenizer", [CharacterTokenizer(), ENGLISH])
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_survives(tokenizer, text):
    ids = tokenizer.encode([text])[0]
    assert tokenizer.decode(ids) == text
    assert all(FIRST_BYTE <= each < len(tokenizer) for each in ids)


def test_bytes_and_characters():
    assert CharacterTokenizer().encode(["aß"]) == [[FIRST_BYTE + byte for byte in "aß".encode()]]
    known = ENGLISH.encode(["tß"])[0]
    assert known[0] >= FIRST_BYTE + BYTES
    assert known[1:] == [FIRST_BYTE + byte for byte in "ß".encode()]


def test_decoding_ends_at_the_end():
    ids = ENGLISH.encode(["the fox"])[0]
    assert ENGLISH.decode([BOS_ID, *ids[:3], EOS_ID, *ids[3:], PAD_ID]) == "the"
    assert CharacterTokenizer().decode([FIRST_BYTE + 0xC3]) == "\ufffd"


def test_a_tokenizer_is_read_as_written(tmp_path):
    path = str(tmp_path / "tokenizer.model")
    trained = CharacterTokenizer.train(["ab", "bcä"], path)
    loaded = CharacterTokenizer.load(path)
    assert len(trained) == len(loaded) == FIRST_BYTE + BYTES + 4
    assert trained.fingerprint == loaded.fingerprint != CharacterTokenizer("ab").fingerprint
    assert trained.encode(["äb"]) == loaded.encode(["äb"])


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 100_000, b'["a"]'])
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(UserError, match="Expected the characters of a tokenizer"):
        CharacterTokenizer.load(str(path))
    with pytest.raises(UserError, match="Expected a tokenizer at"):
        CharacterTokenizer.load(f"{path}.absent")


def test_half_a_character_is_refused():
    with pytest.raises(UserError, match="half of a character"):
        CharacterTokenizer().encode(["a\ud800"])


def test_lossless_word_pieces_keep_white_space(tmp_path):
    texts = [f"def f{i}(x):\n    return x" for i in range(50)]
    pieces = Tokenizer.train(texts, 310, str(tmp_path / "v.model"), lossless=True)
    for text in ["  two\n\n  blanks  ", "\n", " é ﬁ", *texts[:3]]:
        assert pieces.decode(pieces.encode([text])[0]) == text
