"""Tests of tokenizers: a contract for all of them, vocabulary sizes, and files from elsewhere."""

import itertools
import json
import pickle
import re
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.pairs import TEXTS
from tests.support.tokenizers import make_json, train_model
from tfm.data.config import PairsConfig
from tfm.data.tokenizers.characters import BYTES, FIRST_BYTE, Characters, learn_characters
from tfm.data.tokenizers.file_tokenizer import FileTokenizer
from tfm.data.tokenizers.files import copy_tokenizer, load_characters, load_word_pieces
from tfm.data.tokenizers.learning import (
    MAX_TEXT_BYTES,
    MIN_PIECES,
    RepeatableTexts,
    choose_size,
    cut_text,
    learn_word_pieces,
)
from tfm.data.tokenizers.normalization import make_normalizer
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID, number_words, split_ids
from tfm.data.tokenizers.round_trip import check_round_trip
from tfm.data.tokenizers.sampling import SampledWordPieces
from tfm.data.tokenizers.tokenizer_json import TokenizerJson, explain_failure
from tfm.data.tokenizers.unknown_text import find_unknown
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.errors import UserError
from tfm.huggingface.tokenizer_file import make_word_tokenizer
from tfm.training.assets import make_tokenizer

SPECIAL_TEXT = "<pad> <s> </s> <unk> [PAD] [CLS] [SEP]"
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


BERT_TOKENS = ("[UNK]", "[PAD]", "[SEP]", "[CLS]")
MAKERS = {
    "learned": lambda folder: learn_word_pieces(TEXTS, 310, str(folder / "v.model")),
    "learned from documents": lambda folder: learn_word_pieces(
        TEXTS, 310, str(folder / "v.model"), has_lines=True
    ),
    "sentencepiece bpe": lambda _: WordPieces(train_model(model_type="bpe")),
    "sentencepiece unigram": lambda _: WordPieces(train_model(unk_id=4, bos_id=0, eos_id=1, pad_id=2)),
    "bytes": lambda _: Characters(),
    "characters": lambda _: Characters("".join(TEXTS)),
    "json bytes": lambda _: TokenizerJson(make_json("bytes")),
    "json wordpiece": lambda _: TokenizerJson(make_json("wordpiece", BERT_TOKENS)),
    "json unigram": lambda _: TokenizerJson(make_json("unigram")),
}
LOSSLESS = ("learned", "learned from documents", "bytes", "characters", "json bytes")


@pytest.fixture(scope="module", params=MAKERS)
def tokenizer(request, tmp_path_factory):
    return MAKERS[request.param](tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    return MAKERS["learned"](tmp_path_factory.mktemp("learned"))


class TestEveryTokenizer:
    def test_restores_its_training_texts(self, tokenizer):
        assert [tokenizer.decode(ids) for ids in tokenizer.encode(TEXTS[:8])] == TEXTS[:8]

    @given(text=ANY_TEXT | st.just(SPECIAL_TEXT))
    def test_never_encodes_text_as_a_special_id(self, tokenizer, text):
        (ids,) = tokenizer.encode([text])
        assert all(EOS_ID < i < len(tokenizer) for i in ids)

    def test_can_be_pickled(self, tokenizer):
        again = pickle.loads(pickle.dumps(tokenizer))
        assert (again.fingerprint, again.encode(TEXTS)) == (tokenizer.fingerprint, tokenizer.encode(TEXTS))

    def test_decoding_ends_at_eos_and_skips_padding_and_bos(self, tokenizer):
        (ids,) = tokenizer.encode(["The dog"])
        assert tokenizer.decode([BOS_ID, *ids, PAD_ID, EOS_ID, *ids, PAD_ID]) == "The dog"
        assert tokenizer.decode([]) == ""

    @given(data=st.data())
    def test_decodes_any_ids_to_a_text(self, tokenizer, data):
        ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1)))
        tokenizer.decode(ids).encode("utf-8")

    def test_rejects_half_of_a_character(self, tokenizer):
        with pytest.raises(UserError, match=r"half of a character.*ud800"):
            tokenizer.encode(["fine", "a\ud800"])

    def test_lists_unknown_characters(self, tokenizer, request):
        knows_bytes = request.node.callspec.params["tokenizer"] in ("bytes", "json bytes")
        assert tokenizer.unknown_characters("Td\u96e8") == ([] if knows_bytes else ["\u96e8"])

    def test_numbers_the_words_and_splits_between_them(self, tokenizer):
        if isinstance(tokenizer, Characters):
            pytest.skip("character tokenizers do not split texts into words")
        (ids,) = tokenizer.encode(["The old dog sees"])
        words = number_words(tokenizer, ids)
        of_words = [[i for i, word in zip(ids, words, strict=True) if word == n] for n in range(4)]
        assert [tokenizer.decode(part).strip() for part in of_words] == ["The", "old", "dog", "sees"]
        assert number_words(tokenizer, []) == []
        assert list(map(repr, number_words(tokenizer, ids[:1]))) == ["0"]  # an index, not False
        assert len(tokenizer.pieces(ids)) == len(ids)
        for longest in range(1, len(ids) + 1):
            parts = split_ids(tokenizer, ids, longest)
            assert list(itertools.chain.from_iterable(parts)) == ids
            assert max(map(len, parts)) <= longest


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_tokenizers_restore_any_text(name, tmp_path):
    tokenizer = MAKERS[name](tmp_path)

    @example("a\0b")
    @example("10\u2075 \uff0c  a\u2581b \u2581\u2581 ")  # SentencePiece writes a space as \u2581
    @example("\ue000\u2581")
    @given(ANY_TEXT)
    def check(text):
        assert tokenizer.decode(tokenizer.encode([text])[0]) == text

    check()


def test_texts_are_split_after_sentences_or_words(learned):
    ids = learned.encode(["The dog sees . The cat bites the dog"])[0]
    assert split_ids(learned, ids, len(ids)) == [ids]
    sentence, rest = split_ids(learned, ids, len(ids) - 1)
    assert learned.decode(sentence) == "The dog sees ."
    parts = split_ids(learned, rest, len(rest) - 1)
    assert list(map(learned.decode, parts)) == ["The cat bites the", "dog"]


class Letters:
    """One piece a character, with the blank at the beginning of a word."""

    def pieces(self, ids):
        return list(map(chr, ids))

    def word_starts(self, ids):
        return [number == 0 or chr(i) == " " for number, i in enumerate(ids)]

    def decode(self, ids):
        return "".join(map(chr, ids))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("我喜欢。他不来了", ["我喜欢。", "他不来了"]),
        ("你来吗？他不来了", ["你来吗？", "他不来了"]),
        ("好的！他不来了了", ["好的！", "他不来了了"]),
        ("来！？他不来了了", ["来！？", "他不来了了"]),
        ("ab। cd ef", ["ab।", " cd ef"]),
        ("ab؟ cd ef", ["ab؟", " cd ef"]),
        ("a.b c.d e", ["a.b c.d", " e"]),  # a period within a word ends no sentence
    ],
)
def test_texts_are_split_after_the_sentences_of_any_script(text, expected):
    parts = split_ids(Letters(), list(map(ord, text)), len(text) - 1)
    assert ["".join(map(chr, part)) for part in parts] == expected


def test_texts_of_bytes_are_split_after_wide_sentence_ends():
    tokenizer, sentences = TokenizerJson(make_json("bytes")), ["我喜欢。", "他不来了"]
    (ids,) = tokenizer.encode(["".join(sentences)])
    assert list(map(tokenizer.decode, split_ids(tokenizer, ids, len(ids) - 1))) == sentences


def test_learned_tokenizer_is_deterministic_and_equals_its_file(learned, tmp_path):
    again = learn_word_pieces(TEXTS, 310, str(tmp_path / "v.model"))
    loaded = load_word_pieces(str(tmp_path / "v.model"))
    assert again.fingerprint == loaded.fingerprint == learned.fingerprint
    assert loaded.encode(TEXTS) == learned.encode(TEXTS)
    assert len(learned) == 310
    assert [path.name for path in tmp_path.iterdir()] == ["v.model"]


@pytest.mark.parametrize("size", [1, 4, 20, 260, 5000, 10_000_000])
def test_error_for_an_impossible_size_states_both_bounds(tmp_path, size):
    path = str(tmp_path / "v.model")
    with pytest.raises(UserError, match=r"data\.vocabulary_size") as error:
        learn_word_pieces(iter(TEXTS), size, path, symbols=["<de>"])
    numbers = re.findall(r"\d[\d,]*\d|\d", str(error.value))
    least, most, given_size = (int(number.replace(",", "")) for number in numbers)
    assert given_size == size
    assert not list(tmp_path.iterdir())
    for limit, beyond in ((least, least - 1), (most, most + 1)):
        assert len(learn_word_pieces(TEXTS, limit, path, symbols=["<de>"])) == limit
        with pytest.raises(UserError, match=r"data\.vocabulary_size"):
            learn_word_pieces(TEXTS, beyond, path, symbols=["<de>"])


def test_largest_size_is_stated_as_a_lower_bound_for_long_texts(tmp_path, monkeypatch):
    monkeypatch.setattr("tfm.data.tokenizers.learning.MAX_BOUND_TEXTS", 3)
    with pytest.raises(UserError, match="or more"):
        learn_word_pieces(TEXTS, 20, str(tmp_path / "v.model"))


@pytest.mark.parametrize(
    "texts",
    [
        ["\r\n\r\n".join("the cat sat on the mat " * 10 for _ in range(400)) + "z"],
        ["the cat " * 30_000 + "z"],
        ["the cat" * 30_000 + "z"],
        ["the cat \0 z", "the \u2585 cat"],
    ],
    ids=["paragraphs", "long text", "long word", "characters that SentencePiece skips"],
)
def test_pieces_are_learned_from_every_part_of_long_texts(texts, tmp_path):
    learned = learn_word_pieces(texts, "auto", str(tmp_path / "v.model"), has_lines=True)
    assert not learned.unknown_characters("thecatz")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\u2585")), st.integers(1, 50))
def test_cut_texts_lose_no_character(text, repeats):
    parts = list(cut_text(text * repeats * 1000))
    assert "".join(parts) == text * repeats * 1000
    assert max(map(len, map(str.encode, parts)), default=0) <= MAX_TEXT_BYTES


@pytest.mark.parametrize(
    ("rule", "texts"),
    [
        ("nmt_nfkc", ("10\u2075 \uff0c", " a \u00a0 b ", "\ufb01")),
        pytest.param(
            "nmt_nfkc_quotes",
            ("10\u2075", " a \u00a0 b ", "\u201eit\u2019s\u201d \u2018so\u2014or 1\u20132\u2019 \u2026"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_normalization_changes_texts_and_references_in_the_same_way(rule, texts, tmp_path):
    learned = learn_word_pieces(TEXTS, 310, str(tmp_path / "v.model"), normalization=rule)
    for text in texts:
        assert learned.decode(learned.encode([text])[0]) == make_normalizer(rule)(text) != text
        assert make_normalizer("none")(text) == text


@pytest.mark.long
def test_typographic_quotes_and_dashes_become_those_of_a_keyboard(tmp_path):
    """Phones write curly quotes and apostrophes, which a model of straight ones has never seen."""
    text = "\"it's\" 'so - or' 1-2 x-y"
    typed = "\u201cit\u2019s\u201d \u2018so\u2014or\u2019 1\u20132 x\u2010y"
    learned = learn_word_pieces([text], "auto", str(tmp_path / "v.model"), normalization="nmt_nfkc_quotes")
    assert learned.encode([typed]) == learned.encode([text])
    assert find_unknown(learned, [typed]) == []


@pytest.mark.long
def test_texts_without_typographic_characters_have_the_same_pieces_by_both_rules(tmp_path):
    rules = ("nmt_nfkc", "nmt_nfkc_quotes")
    first, second = (
        learn_word_pieces(TEXTS, 310, str(tmp_path / rule), normalization=rule) for rule in rules
    )
    assert first.pieces(range(310)) == second.pieces(range(310))
    assert first.encode(TEXTS) == second.encode(TEXTS)


@pytest.mark.parametrize("texts", [[], ["", "  "]])
@pytest.mark.parametrize("size", [300, "auto"])
def test_texts_without_pieces_are_an_error(tmp_path, texts, size):
    with pytest.raises(UserError, match="nothing to learn") as error:
        learn_word_pieces(texts, size, str(tmp_path / "v.model"))
    assert "INTERNAL" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_automatic_size_fits_the_texts(tmp_path):
    path = str(tmp_path / "v.model")
    numbers = [f"{i} {i * i}" for i in range(3000)]
    assert len(learn_word_pieces(iter(numbers), "auto", path)) == choose_size(sum(map(len, numbers)))
    assert choose_size(1_200_000_000) == 35_100


def test_automatic_size_is_at_most_the_largest_size_of_the_texts(tmp_path):
    path = str(tmp_path / "v.model")
    repeated = TEXTS * 5
    largest = len(learn_word_pieces(repeated, "auto", path))  # `choose_size` returns more
    with pytest.raises(UserError, match=f"{largest} for this"):
        learn_word_pieces(repeated, largest + 1, path)


def test_automatic_size_has_a_piece_for_each_character(tmp_path):
    alphabet = [chr(0x4E00 + i) for i in range(500)]
    learned = learn_word_pieces(alphabet, "auto", str(tmp_path / "v.model"))
    assert len(learned) > MIN_PIECES + 500  # `choose_size` returns fewer


def test_unknown_characters_are_encoded_as_bytes():
    assert Characters().encode(["aß"]) == [[FIRST_BYTE + byte for byte in "aß".encode()]]
    known = Characters("tu").encode(["tß"])[0]
    assert known == [FIRST_BYTE + BYTES, *(FIRST_BYTE + byte for byte in "ß".encode())]
    assert Characters().decode([FIRST_BYTE + 0xC3]) == "\ufffd"


def test_learned_characters_equal_their_file(tmp_path):
    path = str(tmp_path / "vocabulary.model")
    learned = learn_characters(["ab", "bcä"], path)
    loaded = load_characters(path)
    assert len(learned) == len(loaded) == FIRST_BYTE + BYTES + 4
    assert learned.fingerprint == loaded.fingerprint != Characters("ab").fingerprint


@pytest.mark.parametrize("load", [load_characters, load_word_pieces])
@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 100_000, b'["a"]', b'{"model": {}}', None])
def test_missing_and_invalid_files_are_an_error_with_the_path(tmp_path, load, content):
    path = tmp_path / "vocabulary.model"
    if content is not None:
        path.write_bytes(content)
    if load is load_word_pieces and (content or b"").startswith(b"{"):
        pytest.importorskip("tokenizers", reason="the optional package tokenizers is not installed")
    with pytest.raises(UserError, match=re.escape(str(path))):
        load(str(path))


@pytest.mark.parametrize(
    "options",
    [
        {"pad_id": -1},
        {"bos_id": -1},
        {"eos_id": -1},
        {"pad_piece": "<PAD>", "eos_piece": "[EOS]"},
        {"pad_id": -1, "eos_id": -1, "control_symbols": "<|endoftext|>"},
    ],
)
def test_special_tokens_of_a_model_are_found_or_added(options):
    tokenizer = WordPieces(train_model(**options))
    names = tokenizer.pieces(range(3))
    given_names = (options.get("pad_piece", "<pad>"), "<s>", options.get("eos_piece", "</s>"))
    assert names == [*given_names[:2], options.get("control_symbols", given_names[2])]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(TEXTS)] == TEXTS
    assert len(set(tokenizer.pieces(range(len(tokenizer))))) == len(tokenizer)


class Alphabet(FileTokenizer):
    """A tokenizer of texts of digits. Each digit is an id in the file."""

    def _encode(self, texts):
        return [list(map(int, text)) for text in texts]

    def _decode(self, file_ids):
        return file_ids


def test_special_tokens_swap_ids_with_the_tokens_at_their_places():
    tokenizer = Alphabet(b"", "ABCDEFG", [5, 1, 0])  # the ids of padding, BOS and EOS in the file
    assert tokenizer.pieces(range(7)) == list("FBADECG")
    assert tokenizer.encode(["0123456"]) == [[5, 3, 4, 6]]
    assert tokenizer.decode([5, 3, 4, 6]) == [2, 3, 4, 6]


def test_ids_of_a_json_are_kept_except_for_special_tokens():
    content = make_json("bytes", ("<pad>", "<unk>", "</s>", "<s>"), padding={"strategy": {"Fixed": 9}})
    content = content.replace(b'"strategy": {"Fixed": 9}', b'"strategy": {"Fixed": 9}, "direction": "Right"')
    own = TokenizerJson(content)
    assert own.pieces(range(4)) == ["<pad>", "<s>", "</s>", "<unk>"]
    file_ids = json.loads(content)["model"]["vocab"]
    (ids,) = own.encode(["The dog"])
    assert ids == [file_ids[piece] for piece in own.pieces(ids)]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (("<unk>",), ["<pad>", "<s>", "</s>"]),
        (("<unk>", "<|endoftext|>"), ["<pad>", "<s>", "<|endoftext|>"]),
        (("[UNK]", "<PAD>", "[SEP]", "[CLS]"), ["<PAD>", "[CLS]", "[SEP]"]),
    ],
)
def test_special_tokens_of_a_json_are_found_or_added(tokens, expected):
    tokenizer = TokenizerJson(make_json("unigram", tokens))
    assert tokenizer.pieces(range(3)) == expected
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(TEXTS)] == TEXTS


@pytest.mark.parametrize("kind", ["bytes", "unigram"])
def test_json_without_a_decoder_is_an_error_for_training(kind, tmp_path):
    check_round_trip(TokenizerJson(make_json(kind)), TEXTS)
    with pytest.raises(UserError, match=r"restores only \d+%.*field decoder"):
        check_round_trip(TokenizerJson(make_json(kind, decoder=None)), TEXTS)


def test_tokenizer_of_another_script_is_an_error():
    geez = WordPieces(train_model(["\u1200\u1208 \u1210\u1218"] * 9))
    with pytest.raises(UserError, match=r"restores only 0%"):
        check_round_trip(geez, TEXTS)
    assert geez.unknown_characters("a\u1200") == ["a"]


def test_name_of_a_special_token_in_a_text_stays():
    tokenizer = WordPieces(train_model(pad_id=-1, user_defined_symbols="<PAD>"))
    (ids,) = tokenizer.encode(["The <PAD> dog"])
    assert tokenizer.decode(ids) == "The <PAD> dog"


@pytest.mark.parametrize("kind", ["bytes", "wordpiece", "unigram", "words"])
@pytest.mark.parametrize("text", ["one </s> two", "a <s> b", "a <pad> b", "a <unk> b"])
def test_name_of_a_special_token_in_a_text_stays_in_every_json(kind, text):
    """A vocabulary of words does not know the name as a word, so the name becomes an unknown word."""
    letters = sorted(set("one two ab</s><pad><unk>") - {" "})
    extra = {"pre_tokenizer": {"type": "WhitespaceSplit"}} if kind == "wordpiece" else {}
    texts = [*TEXTS, *letters, " ".join(letters), "one two a b"] * 9
    tokenizer = TokenizerJson(make_json(kind, texts=texts, **extra))
    (ids,) = tokenizer.encode([text])
    known = kind in ("bytes", "unigram")
    assert tokenizer.decode(ids).split() == [
        word if known or word.isalpha() else "<unk>" for word in text.split()
    ]


@pytest.mark.parametrize("part", ["pre_tokenizer", "normalizer"])
def test_panic_of_the_package_is_an_error_for_users(part, capfd, tmp_path):
    """A regular expression takes too long for a text. The package raises a BaseException then."""
    content = json.loads(make_json("bytes"))
    content[part] = {
        "pre_tokenizer": {"type": "Split", "behavior": "Isolated", "invert": False},
        "normalizer": {"type": "Replace", "content": ""},
    }[part] | {"pattern": {"Regex": "(a+)+$"}}
    (tmp_path / "own.json").write_text(json.dumps(content))
    data = PairsConfig(kind="text", directory=str(tmp_path), tokenizer=str(tmp_path / "own.json"))
    for language in data.languages:
        (tmp_path / f"train.{language}").write_text("a dog\n" + "a" * 38 + "b\n")
    with pytest.raises(UserError, match=r"tokenizer\.json cannot encode.*Regex.*Simplify"):
        make_tokenizer(data, str(tmp_path / "v.model"))
    assert "stack backtrace" not in capfd.readouterr().err


def test_interruption_of_the_package_stays():
    with pytest.raises(KeyboardInterrupt), explain_failure("The text cannot be encoded"):
        raise KeyboardInterrupt


SPECIAL_AND_WORDS = ("<pad>", "<eos>", "<bos>", "<unk>")


def test_flags_decide_which_tokens_are_special():
    """The words "<s>" and "</s>" are ordinary words of this vocabulary."""
    content = json.loads(make_json("words", SPECIAL_AND_WORDS, texts=["a b"]))
    content["model"]["unk_token"] = "<unk>"
    content["model"]["vocab"] |= {"<s>": 6, "</s>": 7}
    tokenizer = TokenizerJson(json.dumps(content).encode())
    assert tokenizer.pieces(range(3)) == ["<pad>", "<bos>", "<eos>"]
    (ids,) = tokenizer.encode(["a <s> b"])
    assert tokenizer.decode(ids) == "a <s> b"
    without = TokenizerJson(json.dumps(content | {"added_tokens": []}).encode())
    assert without.pieces(range(3)) == ["<pad>", "<s>", "</s>"]


def test_merges_that_write_the_name_of_a_special_token_are_ignored():
    content = json.loads(make_json("bytes"))
    content["pre_tokenizer"]["use_regex"] = False  # which would separate "</" and "s"
    vocabulary, size = content["model"]["vocab"], len(content["model"]["vocab"])
    content["model"]["vocab"] = vocabulary | {"</": size, "</s": size + 1}
    content["model"]["merges"] += [["<", "/"], ["</", "s"], ["</s", ">"]]
    tokenizer = TokenizerJson(json.dumps(content).encode())
    (ids,) = tokenizer.encode(["one</s>"])
    assert tokenizer.pieces(ids)[-2:] == ["</s", ">"]
    assert tokenizer.decode(ids) == "one</s>"


def test_two_blanks_separate_two_words(learned):
    (ids,) = learned.encode(["The  dog   sees"])
    assert number_words(learned, ids)[-1] == 2


def test_texts_that_a_tokenizer_changes_are_counted(caplog):
    wordpiece = TokenizerJson(make_json("wordpiece", BERT_TOKENS))
    check_round_trip(wordpiece, [*TEXTS[:3], "\u96e8", "  The  dog"])
    assert "changes 2 of the first 5" in caplog.text
    assert repr("\u96e8") in caplog.text


@pytest.mark.parametrize("end", ["\u96e8 end", "  end"], ids=["other character", "missing blank"])
def test_first_difference_of_a_long_text_is_shown(end, caplog):
    wordpiece = TokenizerJson(make_json("wordpiece", BERT_TOKENS))
    check_round_trip(wordpiece, [" ".join(["the dog"] * 40) + f" {end}", *TEXTS[:3]])
    before, after = re.search("For example, (.*) becomes (.*). Scores", caplog.text).groups()
    assert before != after
    assert len(before) < 80


def test_folder_with_a_json_is_a_tokenizer(tmp_path):
    (tmp_path / "own" / "tokenizer.json").parent.mkdir()
    (tmp_path / "own" / "tokenizer.json").write_bytes(make_json("unigram"))
    copy_tokenizer(str(tmp_path / "own"), str(tmp_path / "v.model"))
    own, copied = load_word_pieces(str(tmp_path / "own")), load_word_pieces(str(tmp_path / "v.model"))
    assert own.fingerprint == copied.fingerprint


def test_truncation_and_dropout_of_a_json_are_ignored():
    content = json.loads(make_json("bytes"))
    plain = TokenizerJson(json.dumps(content).encode())
    content["model"]["dropout"] = 0.9
    content["truncation"] = {"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    assert TokenizerJson(json.dumps(content).encode()).encode(TEXTS) == plain.encode(TEXTS)


def test_json_without_an_unknown_token_rejects_unknown_characters():
    content = json.loads(make_json("wordpiece", BERT_TOKENS))
    content["model"]["unk_token"] = "absent"
    own = TokenizerJson(json.dumps(content).encode())
    assert [own.decode(ids) for ids in own.encode(["The dog"])] == ["The dog"]
    with pytest.raises(UserError, match="cannot encode"):
        own.encode(["\u96e8"])


def test_json_requires_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (tmp_path / "own.json").write_text('{"model": {}}')
    with pytest.raises(UserError, match=r"own\.json.*package tokenizers.*pip install"):
        load_word_pieces(str(tmp_path / "own.json"))


@pytest.mark.parametrize("name", ["sentencepiece unigram", "bytes", "json bytes"])
def test_dropout_requires_byte_pair_encoding_of_sentencepiece(name, tmp_path):
    with pytest.raises(UserError, match=r"data\.subword_dropout"):
        SampledWordPieces(MAKERS[name](tmp_path), 0.1, 0)


def test_dropout_works_with_models_from_elsewhere():
    own = WordPieces(train_model(model_type="bpe"))
    assert SampledWordPieces(own, 0.0, 0).encode(TEXTS) == own.encode(TEXTS)
    sampled = SampledWordPieces(own, 0.5, 0).encode(TEXTS)
    assert sampled != own.encode(TEXTS)
    assert list(map(own.decode, sampled)) == TEXTS


def test_copied_tokenizer_equals_the_file(tmp_path):
    (tmp_path / "own.model").write_bytes(train_model())
    copy_tokenizer(str(tmp_path / "own.model"), str(tmp_path / "run.model"))
    assert (tmp_path / "run.model").read_bytes() == (tmp_path / "own.model").read_bytes()


@pytest.mark.parametrize("size", [300, "auto"])
@pytest.mark.parametrize(
    "error", [UserError("damaged"), OSError(116, "stale"), KeyboardInterrupt(), SystemExit(143)]
)
def test_errors_while_texts_are_read_are_raised_unchanged(error, size, tmp_path):
    """SentencePiece would report them as a text from which nothing can be learned."""
    reads = itertools.count()

    def read():
        yield from TEXTS
        if next(reads) == (size == "auto"):  # the first reading with AUTO counts the bytes
            raise error

    with pytest.raises(type(error)) as raised:
        learn_word_pieces(RepeatableTexts(read), size, str(tmp_path / "v.model"))
    assert raised.value is error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [300, "auto"])
def test_half_of_a_character_in_a_training_text_is_an_error(size, tmp_path):
    with pytest.raises(UserError, match=r"half of a character in 'a\\udc80b'"):
        learn_word_pieces([*TEXTS, "a\udc80b"], size, str(tmp_path / "v.model"))


def test_unknown_id_of_a_model_that_has_none_is_ignored():
    """The package ignores it, too. Only a unigram model names its unknown piece by an id."""
    content = make_word_tokenizer({"<unk>": 0, "dog": 1})
    content["model"]["unk_id"] = 5
    tokenizer = TokenizerJson(json.dumps(content).encode())
    assert tokenizer.unknown_characters(["x"]) == ["x"]
