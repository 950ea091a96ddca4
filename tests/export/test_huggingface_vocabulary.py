"""Tests of tokenizers that are rewritten in the order of the ids of tfm."""

import json
import pathlib
import re

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.hostile_values import JSON, in_folder
from tests.support.pairs import TEXTS
from tests.support.tokenizers import make_json, train_model
from tfm.data.config import begin_with
from tfm.data.tokenizers.files import load_word_pieces
from tfm.data.tokenizers.tokenizer_json import TokenizerJson
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.errors import UserError
from tfm.huggingface.arrays import TokenOrder
from tfm.huggingface.fields import Fields
from tfm.huggingface.lookup import find_families
from tfm.huggingface.tokenizer_file import (
    enclose_texts,
    make_byte_tokenizer,
    make_special,
    make_word_tokenizer,
    renumber,
)
from tfm.huggingface.vocabulary import (
    Languages,
    read_bart,
    read_fairseq,
    read_m2m_100,
    read_marian,
    read_mbart,
    read_t5,
)
from tfm.systems.bert.huggingface import read_bert

ODD_TEXTS = ["a", "Žluťoučký 猫 5 €", "  two  spaces ", "</s>", "<unk> x", "don't", ""]
MODEL = train_model(model_type="unigram")
PROCESSOR = sentencepiece.SentencePieceProcessor(model_proto=MODEL)
PIECES = [PROCESSOR.id_to_piece(i) for i in range(len(PROCESSOR))]


def new_id(order, i):
    """Returns the id of tfm for an id of the other model that is not special."""
    return order.ids.tolist().index(i, 3)


@pytest.fixture
def marian(tmp_path):
    """Returns a folder with the tokenizer of MarianMT, and {piece: id}."""
    ids = {text: i for i, text in enumerate(["</s>", "<unk>", ">>deu<<", *PIECES[4:], "<pad>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(MODEL)
    (tmp_path / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}')
    return tmp_path, ids


def marian_fields(size):
    special = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1, "eos_token_id": 0}
    return Fields({"vocab_size": size, **special}, "config.json")


@pytest.mark.parametrize("text", [*TEXTS[:5], *ODD_TEXTS])
@pytest.mark.parametrize("tag", ["", ">>deu<< "])
def test_ids_of_marian_are_the_ids_of_its_vocabulary(marian, text, tag):
    folder, ids = marian
    vocabulary = read_marian(str(folder), marian_fields(len(ids)), Languages(target="deu"))
    (found,) = WordPieces(vocabulary.files["source_vocabulary.model"]).encode([f"{tag}{text}"])
    pieces = [">>deu<<"] * bool(tag) + PROCESSOR.encode(text, out_type=str)
    assert found == [new_id(vocabulary.order, ids.get(piece, ids["<unk>"])) for piece in pieces]


def test_language_of_marian_becomes_the_prefix_of_sources(marian):
    folder, ids = marian
    vocabulary = read_marian(str(folder), marian_fields(len(ids)), Languages(target="deu"))
    assert vocabulary.source_prefix == ">>deu<<"
    assert vocabulary.languages == Languages("en", "deu")


def test_language_that_marian_lacks_is_an_error(marian):
    folder, ids = marian
    with pytest.raises(UserError, match=r"--target_language.*>>deu<<.*'de'"):
        read_marian(str(folder), marian_fields(len(ids)), Languages(target="de"))


def test_marian_with_tags_but_without_a_language_is_a_warning(marian, caplog):
    folder, ids = marian
    assert read_marian(str(folder), marian_fields(len(ids)), Languages()).source_prefix == ""
    assert "tag such as >>deu<<" in caplog.text


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"vocab.json": b"[1]"}, r"vocab\.json"),
        ({"vocab.json": b'{"a": -1}'}, r"vocab\.json"),
        ({"vocab.json": b'{"a": 999}'}, "999"),
        ({"source.spm": MODEL[:-3]}, "SentencePiece"),
        ({"source.spm": None}, r"source\.spm"),
        ({"tokenizer_config.json": b"{"}, r"tokenizer_config\.json"),
    ],
)
def test_damaged_files_are_one_kind_of_error(marian, change, named):
    folder, ids = marian
    for name, content in change.items():
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=named):
        read_marian(str(folder), marian_fields(len(ids)), Languages())


def test_ids_of_special_tokens_must_be_in_the_vocabulary(marian):
    folder, _ = marian
    fields = Fields({"vocab_size": 5, "pad_token_id": 9, "decoder_start_token_id": 0, "eos_token_id": 0}, "c")
    with pytest.raises(UserError, match=r"pad_token_id.*9"):
        read_marian(str(folder), fields, Languages())


FAIRSEQ = {"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2}
NLLB_SIZE = len(PIECES) + 4


@pytest.fixture
def nllb(tmp_path):
    """Returns a folder with the tokenizer of NLLB."""
    tags = {"deu_Latn": len(PIECES) + 1, "eng_Latn": len(PIECES) + 2, "<mask>": len(PIECES) + 3}
    added = {str(i): {"content": tag} for tag, i in tags.items()}
    (tmp_path / "sentencepiece.bpe.model").write_bytes(train_model(model_type="unigram", pad_id=-1))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    return tmp_path


def test_ids_of_nllb_are_shifted_and_begin_with_the_language(nllb):
    content = (nllb / "sentencepiece.bpe.model").read_bytes()
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    fields = Fields({"vocab_size": NLLB_SIZE, **FAIRSEQ}, "config.json")
    vocabulary = read_m2m_100(str(nllb), fields, Languages("eng_Latn", "deu_Latn"))
    tokenizer = WordPieces(vocabulary.files["vocabulary.model"])
    for text in [*TEXTS[:5], *ODD_TEXTS]:
        theirs = [len(PIECES) + 2, *(i + 1 if i > 2 else 3 for i in processor.encode(text))]
        expected = [new_id(vocabulary.order, i) for i in theirs]
        assert tokenizer.encode([f"{vocabulary.source_prefix} {text}".strip()]) == [expected]
    assert vocabulary.target_prefix == "deu_Latn"


@pytest.mark.parametrize("listed", [[], ["eng_Latn", "deu_Latn"]])
def test_tags_of_nllb_have_the_ids_in_its_tokenizer_json(nllb, listed):
    added = json.loads((nllb / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    tokens = [token | {"id": int(i)} for i, token in added.items()]
    (nllb / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    (nllb / "tokenizer_config.json").write_text(json.dumps({"additional_special_tokens": listed}))
    fields = Fields({"vocab_size": NLLB_SIZE, **FAIRSEQ}, "config.json")
    vocabulary = read_m2m_100(str(nllb), fields, Languages("eng_Latn", "deu_Latn"))
    tokenizer = WordPieces(vocabulary.files["vocabulary.model"])
    (ids,) = tokenizer.encode(["eng_Latn deu_Latn"])
    assert vocabulary.order.ids[ids].tolist() == [len(PIECES) + 2, len(PIECES) + 1]


@pytest.mark.parametrize("languages", [Languages(), Languages("eng_Latn", "German")])
def test_unknown_languages_are_refused(nllb, languages):
    fields = Fields({"vocab_size": NLLB_SIZE, **FAIRSEQ}, "config.json")
    with pytest.raises(UserError, match=r"--(source|target)_language.*deu_Latn"):
        read_m2m_100(str(nllb), fields, languages)


def test_languages_of_m2m_100_that_its_files_do_not_list_follow_the_pieces(tmp_path):
    """transformers 5 leaves them out."""
    ids = {text: i for i, text in enumerate(["<s>", "<pad>", "</s>", "<unk>", *PIECES[4:]])}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "sentencepiece.bpe.model").write_bytes(MODEL)
    fields = Fields({"vocab_size": len(ids) + 108, **FAIRSEQ}, "config.json")
    vocabulary = read_m2m_100(str(tmp_path), fields, Languages("am", "af"))
    (tags,) = WordPieces(vocabulary.files["vocabulary.model"]).encode(["__af__ __am__ __zu__"])
    assert vocabulary.order.ids[tags].tolist() == [len(ids), len(ids) + 1, len(ids) + 99]
    assert (vocabulary.source_prefix, vocabulary.target_prefix) == ("__am__", "__af__")


def test_nllb_without_tags_is_an_error(tmp_path):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(train_model(model_type="unigram", pad_id=-1))
    fields = Fields({"vocab_size": NLLB_SIZE, **FAIRSEQ}, "config.json")
    with pytest.raises(UserError, match="no tags of languages"):
        read_m2m_100(str(tmp_path), fields, Languages("eng_Latn", "deu_Latn"))


JSON_TAGS = ["deu_Latn", "eng_Latn", "<mask>"]


def write_json(folder):
    """Writes the only file of NLLB's tokenizer in transformers 5. Returns its content and its size."""
    content = json.loads(make_json("unigram", tokens=["<unk>", "<s>", "<pad>", "</s>"]))
    first = len(content["model"]["vocab"])
    content["added_tokens"] += [make_special(tag, first + i) for i, tag in enumerate(JSON_TAGS)]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "MBart50Tokenizer"}')
    return content, first + len(JSON_TAGS)


@pytest.mark.parametrize("read", [read_m2m_100, read_mbart, read_t5])
def test_tokenizer_of_transformers_5_has_only_a_tokenizer_json(read, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    content, size = write_json(tmp_path)
    special = {"pad_token_id": 2, "decoder_start_token_id": 3, "eos_token_id": 3}
    fields = Fields({"vocab_size": size, **special}, "config.json")
    vocabulary = read(str(tmp_path), fields, Languages("eng_Latn", "deu_Latn"))
    tokenizer = TokenizerJson(vocabulary.files["vocabulary.model"])
    original = tokenizers.Tokenizer.from_str(json.dumps(content))
    assert len(tokenizer) == len(vocabulary.order)
    for text in [*TEXTS[:3], "two  spaces", "a.deu_Latn"]:
        (ids,) = tokenizer.encode([begin_with("eng_Latn", text)])
        expected = original.encode(f"eng_Latn {text}").ids
        assert vocabulary.order.ids[ids].tolist() == expected
        assert tokenizer.decode(ids) == original.decode(expected, skip_special_tokens=False)
    prefixes = ("", "") if read is read_t5 else ("eng_Latn", "deu_Latn")
    assert (vocabulary.source_prefix, vocabulary.target_prefix) == prefixes


def test_unknown_language_of_a_tokenizer_json_is_refused(tmp_path):
    _, size = write_json(tmp_path)
    fields = Fields({"vocab_size": size, **FAIRSEQ}, "config.json")
    with pytest.raises(UserError, match=r"--target_language.*2 languages.*deu_Latn, eng_Latn.*'<mask>'"):
        read_m2m_100(str(tmp_path), fields, Languages("eng_Latn", "<mask>"))


def test_first_mbart_is_refused(nllb):
    fields = Fields({"vocab_size": NLLB_SIZE, **FAIRSEQ}, "config.json")
    with pytest.raises(UserError, match=r"tokenizer_class.*MBart50"):
        read_mbart(str(nllb), fields, Languages())


@pytest.mark.parametrize("text", [*TEXTS[:3], *ODD_TEXTS])
@pytest.mark.parametrize("kind", ["bytes", "unigram"])
def test_rewritten_json_has_the_same_tokens(kind, text):
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    content = make_json(kind, tokens=["<unk>", "<|endoftext|>"])
    original = tokenizers.Tokenizer.from_str(content.decode())
    original.encode_special_tokens = True
    order = TokenOrder(original.get_vocab_size(), pad=None, start=1, end=1)
    rewritten = json.dumps(renumber(json.loads(content), order.ids.tolist())).encode()
    (ids,) = TokenizerJson(rewritten).encode([text])
    assert ids == [new_id(order, i) for i in original.encode(text, add_special_tokens=False).ids]


ADDED = {"content": "<sep>"}
ADDED_FILES = {
    "added_tokens.json": {"<sep>": len(PIECES)},
    "tokenizer_config.json": {"added_tokens_decoder": {str(len(PIECES)): ADDED}},
    "tokenizer.json": {"added_tokens": [ADDED | {"id": len(PIECES)}]},
}


@pytest.mark.parametrize("file", ADDED_FILES)
def test_token_added_to_t5_keeps_its_id(file, tmp_path):
    (tmp_path / "spiece.model").write_bytes(MODEL)
    (tmp_path / file).write_text(json.dumps(ADDED_FILES[file]))
    special = {"pad_token_id": 3, "decoder_start_token_id": 3, "eos_token_id": 2}
    fields = Fields({"vocab_size": len(PIECES) + 8, **special}, "config.json")
    vocabulary = read_t5(str(tmp_path), fields, Languages())
    tokenizer = WordPieces(vocabulary.files["vocabulary.model"])
    (ids,) = tokenizer.encode([f"{TEXTS[0]} <sep> {TEXTS[1]}"])
    first, second = (PROCESSOR.encode(text) for text in TEXTS[:2])
    assert vocabulary.order.ids[ids].tolist() == [*first, len(PIECES), *second]
    assert tokenizer.decode(ids) == f"{TEXTS[0]} <sep> {TEXTS[1]}"


@pytest.mark.parametrize("text", [*TEXTS[:2], "two  spaces, don't 5 €", "<s> x"])
def test_byte_pairs_without_a_tokenizer_json_have_the_same_ids(text, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    content = json.loads(make_json("bytes", tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))
    model = content["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    ids = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    fields = Fields({"vocab_size": len(model["vocab"])} | ids, "config.json")
    vocabulary = read_bart(str(tmp_path), fields, Languages())
    (found,) = TokenizerJson(vocabulary.files["vocabulary.model"]).encode([text])
    original = tokenizers.Tokenizer.from_str(json.dumps(content))
    original.encode_special_tokens = True
    assert vocabulary.order.ids[found].tolist() == original.encode(text).ids


BART_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
BART_POST_PROCESSOR = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}
BART_POST_PROCESSOR |= {"trim_offsets": True, "add_prefix_space": False}
START, TEXT, END = enclose_texts("<s>", 0, "</s>", 2)["single"]


def write_bart(folder, start=2, post_processor=BART_POST_PROCESSOR):
    """Writes the tokenizer.json of a BART of whole words. Returns the fields of its config.json."""
    ids = {text: i for i, text in enumerate([*BART_TOKENS, "a", "dog", "[CLS]"])}
    content = make_word_tokenizer(ids)
    content["added_tokens"] = [make_special(text, ids[text]) for text in [*BART_TOKENS, "[CLS]"]]
    content["post_processor"] = post_processor
    (folder / "tokenizer.json").write_text(json.dumps(content))
    special = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": start}
    return Fields(special | {"vocab_size": len(ids)}, "config.json")


@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize(
    "post_processor",
    [
        BART_POST_PROCESSOR,
        enclose_texts("<s>", 0, "</s>", 2),
        {"type": "Sequence", "processors": [{"type": "ByteLevel"}, enclose_texts("<s>", 0, "</s>", 2)]},
    ],
    ids=["pair", "template", "sequence"],
)
def test_texts_of_bart_begin_with_its_first_token_whatever_the_decoder_begins_with(
    start, post_processor, tmp_path, caplog
):
    vocabulary = read_bart(str(tmp_path), write_bart(tmp_path, start, post_processor), Languages())
    order, tokenizer = vocabulary.order, TokenizerJson(vocabulary.files["vocabulary.model"])
    (ids,) = tokenizer.encode([f"{vocabulary.source_prefix}a dog"])
    assert order.ids[ids].tolist() == [0, 4, 5]
    assert not order.excluded[ids].any()
    assert order.ids[1] == start
    assert order.excluded[1]
    assert len(tokenizer) == len(order)
    assert not caplog.text


@pytest.mark.parametrize(
    ("post_processor", "is_warned"),
    [
        (None, True),
        (BART_POST_PROCESSOR | {"cls": ["[CLS]", 6]}, False),
        (enclose_texts("<s>", 0, "</s>", 2) | {"single": [TEXT, END]}, False),
        (enclose_texts("<s>", 0, "</s>", 2) | {"single": [START, TEXT]}, True),
    ],
    ids=["none", "another token", "end only", "start only"],
)
def test_post_processor_decides_what_texts_of_bart_begin_with(post_processor, is_warned, tmp_path, caplog):
    """The first KoBART has a file without a post-processor, and a BART of Chinese begins with "[CLS]"."""
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    fields = write_bart(tmp_path, post_processor=post_processor)
    vocabulary = read_bart(str(tmp_path), fields, Languages())
    tokenizer = TokenizerJson(vocabulary.files["vocabulary.model"])
    text = begin_with(vocabulary.source_prefix, "dog a")
    original = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    expected = [i for i in original.encode("dog a").ids if i != 2]
    assert vocabulary.order.ids[tokenizer.encode([text])[0]].tolist() == expected
    assert vocabulary.target_prefix == vocabulary.source_prefix
    assert ("does not end a text with eos_token_id" in caplog.text) == is_warned


def test_two_tokens_before_the_texts_of_bart_are_an_error(tmp_path):
    two = enclose_texts("<s>", 0, "</s>", 2) | {"single": [START, START, TEXT, END]}
    with pytest.raises(UserError, match=r"post_processor.*at most one token.*\[0, 0\]"):
        read_bart(str(tmp_path), write_bart(tmp_path, post_processor=two), Languages())


BERT_SPECIAL = ["[unused0]", "[UNK]", "[SEP]", "[PAD]", "[MASK]", "[CLS]"]
BERT_PIECES = [*BERT_SPECIAL, *"abcdeghlmoprstuw.", "the", "##g", "##s", "do", "##t"]


def test_vocabulary_of_bert_may_begin_with_a_byte_order_mark(tmp_path):
    """Editors on Windows write the mark."""
    pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8-sig")
    vocabulary = read_bert(str(tmp_path), Fields({"vocab_size": len(pieces)}, "config.json"), Languages())
    assert TokenizerJson(vocabulary.files["vocabulary.model"]).pieces([0, 3]) == ["[PAD]", "[UNK]"]


def test_dictionary_of_fairseq_may_begin_with_a_byte_order_mark(tmp_path):
    pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    (tmp_path / "dict.de.txt").write_text("der 7\nHund 2\n", encoding="utf-8-sig")
    fields = Fields({"source_lang": "de", "target_lang": "de"}, "model.pt")
    tokenizer = TokenizerJson(read_fairseq(str(tmp_path), fields).files["vocabulary.model"])
    (ids,) = tokenizer.encode(["der Hund"])
    assert tokenizer.pieces(ids) == ["der", "Hund"]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("extra", [0, 3])
def test_ids_of_bert_are_the_ids_of_its_vocabulary(lowercase, extra, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    (tmp_path / "vocab.txt").write_text("\n".join(BERT_PIECES) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    fields = Fields({"vocab_size": len(BERT_PIECES) + extra}, "config.json")
    vocabulary = read_bert(str(tmp_path), fields, Languages())
    tokenizer = TokenizerJson(vocabulary.files["vocabulary.model"])
    assert len(tokenizer) == len(BERT_PIECES) + extra
    assert tokenizer.pieces(range(3)) == ["[PAD]", "[CLS]", "[SEP]"]
    ids = {text: index for index, text in enumerate((tmp_path / "vocab.txt").read_text().splitlines())}
    theirs = tokenizers.BertWordPieceTokenizer(ids, lowercase=lowercase)
    texts = ["a cat.", "The DOGS g", "[MASKED", "Žluť 猫 é", *ODD_TEXTS[:3]]
    expected = [theirs.encode(text, add_special_tokens=False).ids for text in texts]
    assert tokenizer.encode(texts) == [[new_id(vocabulary.order, i) for i in ids] for ids in expected]


@pytest.mark.parametrize(
    ("content", "size"),
    [(b"[PAD]\n[CLS]\na", 3), (b"[PAD]\n[CLS]\n[SEP]\na", 3), (b"\xff\xfe", 3), (b"", 1)],
)
def test_vocabulary_that_does_not_fit_bert_is_an_error(content, size, tmp_path):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(UserError, match=re.escape(str(tmp_path))):
        read_bert(str(tmp_path), Fields({"vocab_size": size}, "config.json"), Languages())


@pytest.mark.parametrize("lowercase", [True, False])
def test_token_added_to_bert_keeps_its_id(lowercase, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(BERT_PIECES))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[E1]": len(BERT_PIECES)}))
    fields = Fields({"vocab_size": len(BERT_PIECES) + 1}, "config.json")
    vocabulary = read_bert(str(tmp_path), fields, Languages())
    (ids,) = TokenizerJson(vocabulary.files["vocabulary.model"]).encode(["the [E1] dogs"])
    expected = [BERT_PIECES.index("the"), len(BERT_PIECES), *map(BERT_PIECES.index, ("do", "##g", "##s"))]
    assert vocabulary.order.ids[ids].tolist() == expected


def test_byte_order_mark_of_windows_is_no_part_of_the_first_piece(tmp_path):
    fields = Fields({"vocab_size": 5, "source_lang": "de", "target_lang": "de"}, "config.json")
    texts = {"vocab.txt": "the\r\n[UNK]\r\n[PAD]\r\n[CLS]\r\n[SEP]\r\n", "dict.de.txt": "the 4\r\na 3\r\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8-sig", newline="")
    bert = read_bert(str(tmp_path), fields, Languages())
    for vocabulary in (bert, read_fairseq(str(tmp_path), fields)):
        tokenizer = TokenizerJson(vocabulary.files["vocabulary.model"])
        assert tokenizer.decode(tokenizer.encode(["the"])[0]) == "the"
        assert "the" in tokenizer.pieces(range(len(tokenizer)))


SIZE = len(PIECES) + 4
SPECIAL = {"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2, "vocab_size": SIZE}
TAGS = json.dumps({"additional_special_tokens": ["a_A"], "tokenizer_class": "MBart50"}).encode()
FILES = {  # the files of the tokenizer of each family
    "marian": {"vocab.json": b'{"a": 3}', "source.spm": MODEL, "target.spm": MODEL},
    "m2m_100": {"vocab.json": b'{"a": 3}', "sentencepiece.bpe.model": MODEL, "tokenizer_config.json": TAGS},
    "mbart": {"sentencepiece.bpe.model": MODEL, "tokenizer_config.json": TAGS},
    "t5": {"spiece.model": MODEL},
    "bart": {"tokenizer.json": b"{}"},
    "gpt2": {"tokenizer.json": b"{}"},
    "bert": {"tokenizer.json": b"{}"},
    "roberta": {"tokenizer.json": b"{}"},
    "bert with a text": {"vocab.txt": b"[PAD]\n[CLS]\n[SEP]", "tokenizer_config.json": b"{}"},
}
TOKENS = st.fixed_dictionaries({"id": JSON, "content": JSON})
MODELS = st.fixed_dictionaries({"vocab": JSON, "type": st.just("BPE")})
VALUES = st.one_of(
    JSON,
    st.dictionaries(st.text(max_size=3), st.integers(-1, SIZE) | JSON, max_size=3),
    st.fixed_dictionaries({"model": MODELS, "added_tokens": st.lists(TOKENS, max_size=2)}),
)


def read_tokenizer(folder, name, file, content):
    """Reads the tokenizer of a family with other content in a file, and opens the result."""
    for each, valid in FILES[name].items():
        (pathlib.Path(folder) / each).write_bytes(content if each == file else valid)
    reader = find_families()[name.split()[0]].read_vocabulary
    vocabulary = reader(folder, Fields(SPECIAL, "config.json"), Languages("a_A", "a_A"))
    for each, rewritten in vocabulary.files.items():
        (pathlib.Path(folder) / each).write_bytes(rewritten)
        load_word_pieces(f"{folder}/{each}")


@pytest.mark.long
@pytest.mark.parametrize(("name", "file"), [(name, file) for name, files in FILES.items() for file in files])
@given(content=st.binary(max_size=60) | VALUES.map(lambda x: json.dumps(x).encode()))
@example(content=b"[" * 100_000)
@example(content=MODEL[:-3])
@example(content=MODEL[:40])
@settings(max_examples=60)
def test_any_file_of_a_tokenizer_is_either_read_or_one_kind_of_error(name, file, content):
    in_folder(read_tokenizer, name, file, content)


LINES = st.lists(st.text(st.characters(codec="utf-8"), max_size=9).map("{} 1".format))


def read_dictionary(folder, content):
    """Reads the tokenizer of a folder of fairseq and opens it."""
    (pathlib.Path(folder) / "dict.de.txt").write_bytes(content)
    fields = Fields({"source_lang": "de", "target_lang": "de"}, "model.pt")
    for name, rewritten in read_fairseq(folder, fields).files.items():
        (pathlib.Path(folder) / name).write_bytes(rewritten)
        load_word_pieces(f"{folder}/{name}")


@pytest.mark.long
@given(
    st.binary(max_size=60) | st.lists(st.text(max_size=9).map("{} 1".format)).map("\n".join).map(str.encode)
)
@example(b"<pad> 3\n</s> 2\n#fairseq:overwrite 1\na 1 #fairseq:overwrite\n")
def test_any_dictionary_is_either_read_or_one_kind_of_error(content):
    in_folder(read_dictionary, content)


@pytest.mark.parametrize("text", ["The old dog", *ODD_TEXTS, "\x00\n\x7f\xad"])
def test_tokenizer_of_bytes_gives_the_bytes(text):
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(make_byte_tokenizer()))
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text).ids
    assert ids == [3 + byte for byte in text.encode()]
    assert tokenizer.decode(ids) == text


def renumber_words(tokens, special, *, pad=None, start, end):
    """Returns the tokenizer of a file of whole words in the order of tfm, and the order.

    Args:
      tokens: texts of the file in the order of their ids.
      special: the texts that the file flags as special.
      pad, start, end: texts of the special tokens of the model.
    """
    content = make_word_tokenizer({text: i for i, text in enumerate(tokens)})
    content["added_tokens"] = [make_special(text, tokens.index(text)) for text in special]
    pad_id = None if pad is None else tokens.index(pad)
    order = TokenOrder(len(tokens), pad=pad_id, start=tokens.index(start), end=tokens.index(end))
    return TokenizerJson(json.dumps(renumber(content, order.ids.tolist())).encode()), order


@pytest.mark.parametrize("end", ["<|im_end|>", "<end>", "END"])
def test_end_of_text_with_an_unusual_name_has_the_id_of_eos(end):
    """Chat models such as GPT-2 with ChatML have "<|im_end|>"."""
    tokenizer, order = renumber_words(["<unk>", end, "dog"], ["<unk>", end], start=end, end=end)
    assert len(tokenizer) == len(order)
    assert tokenizer.pieces(range(3)) == ["<pad>", "<s>", "</s>"]
    assert order.ids[tokenizer.encode(["dog"])[0]].tolist() == [2]


def test_end_of_text_stays_although_another_special_token_has_a_more_usual_name():
    tokens = ["<|endoftext|>", "</s>", "<unk>", "dog"]
    tokenizer, order = renumber_words(tokens, tokens[:3], start=tokens[0], end=tokens[0])
    assert len(tokenizer) == len(order)
    assert tokenizer.pieces([2]) == ["<|endoftext|>"]


@pytest.mark.parametrize("name", ["<s>", "<pad>"])
def test_ordinary_token_with_the_name_of_a_special_token_keeps_its_id(name):
    """A tokenizer that is trained without special tokens can have such words."""
    tokens = ["</s>", "<unk>", name, "dog"]
    tokenizer, order = renumber_words(tokens, tokens[:2], start="</s>", end="</s>")
    (ids,) = tokenizer.encode([f"dog {name} dog"])
    assert order.ids[ids].tolist() == [3, 2, 3]
    assert len(set(tokenizer.pieces(range(len(order))))) == len(order)


def test_word_text_is_no_token_of_gpt2():
    """Only BART has `<text>` in place of its token `<s>`."""
    tokens = ["<|endoftext|>", "<s>", "<unk>", "dog"]
    tokenizer, order = renumber_words(tokens, tokens[:3], start=tokens[0], end=tokens[0])
    assert order.ids[tokenizer.encode(["<text> dog"])[0]].tolist() == [2, 3]


def test_integer_that_no_float_can_hold_is_an_error():
    assert Fields({"dropout": 0}, "c").get("dropout", float) == 0.0
    with pytest.raises(UserError, match="expected dropout to be of type float"):
        Fields({"dropout": 10**400}, "c").get("dropout", float)
