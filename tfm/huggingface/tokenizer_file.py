"""The content of a tokenizer.json: made for bytes or word pieces, and rewritten with other ids."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfm.data.tokenizers.characters import BYTES, FIRST_BYTE
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID, UNKNOWN_PIECE

PAD, BOS, EOS = "<pad>", "<s>", "</s>"  # with `UNKNOWN_PIECE`, names of the special pieces
TEXT_START = "<text>"  # name in tfm of "<s>" of BART
WORD_PIECE_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MASK = "<mask>"
BYTE_PAIR_TOKENS = (BOS, PAD, EOS, UNKNOWN_PIECE, MASK, "<|endoftext|>")
MAX_WORD_CHARACTERS = 100  # of BERT; a longer word is unknown


def make_byte_tokenizer() -> dict[str, Any]:
    """Returns the content of a tokenizer.json whose ids are the bytes of a text, after the special ids.

    Files write bytes as characters: printable ones as themselves, and all others from U+0100 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(BYTES) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(BYTES + i) for i, byte in enumerate(others)}
    special = {PAD: PAD_ID, BOS: BOS_ID, EOS: EOS_ID}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": special | {characters[byte]: FIRST_BYTE + byte for byte in range(BYTES)},
        "merges": [],
    }
    return _make_file(model, special, pre_tokenizer=level, decoder=level)


def make_word_piece_tokenizer(pieces: Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of a tokenizer.json of BERT.

    Args:
      pieces: the lines of a vocab.txt.
      options: the fields of a tokenizer_config.json.
    """
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    special = {name: vocabulary[name] for name in WORD_PIECE_TOKENS if name in vocabulary}
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": options.get("tokenize_chinese_chars", True),
        "strip_accents": options.get("strip_accents"),
        "lowercase": options.get("do_lower_case", True),
    }
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": MAX_WORD_CHARACTERS,
        "vocab": vocabulary,
    }
    splitter = {"type": "BertPreTokenizer"}
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    return _make_file(model, special, normalizer=normalizer, pre_tokenizer=splitter, decoder=decoder)


def make_byte_pair_tokenizer(
    vocabulary: Mapping[str, int], merges: Iterable[str], add_prefix_space: bool
) -> dict[str, Any]:
    """Returns the content of a tokenizer.json of GPT-2, BART or RoBERTa.

    Args:
      vocabulary: {piece: id}, the content of a vocab.json.
      merges: the lines of a merges.txt.
      add_prefix_space: whether a text gets a space at its beginning.
    """
    special = {name: vocabulary[name] for name in BYTE_PAIR_TOKENS if name in vocabulary}
    level = {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "vocab": vocabulary,
        "merges": [line for line in merges if line and not line.startswith("#version")],
    }
    return _make_file(model, special, pre_tokenizer=level | {"use_regex": True}, decoder=level)


def make_word_tokenizer(vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """Returns the content of a tokenizer.json whose tokens are the words between blanks."""
    model = {"type": "WordLevel", "unk_token": UNKNOWN_PIECE, "vocab": vocabulary}
    return _make_file(model, {}, pre_tokenizer={"type": "WhitespaceSplit"}, decoder=None)


def _make_file(model: Mapping[str, Any], special: Mapping[str, int], **parts: Any) -> dict[str, Any]:
    tokens = [make_special(name, i) for name, i in special.items()]
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"))
    return {"version": "1.0", **empty, "added_tokens": tokens, "model": model, **parts}


def make_special(name: str, i: int) -> dict[str, Any]:
    """Returns the entry of a special token in a tokenizer.json."""
    options = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": i, "content": name, "special": True} | options


def list_ids(content: Mapping[str, Any]) -> dict[str, int]:
    """Returns {text: id} of all tokens of a tokenizer.json.

    Raises:
      KeyError, TypeError, AttributeError: if the content is no tokenizer.json.
    """
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, list):  # of [text, score]
        vocabulary = {text: i for i, (text, _) in enumerate(vocabulary)}
    return vocabulary | {token["content"]: token["id"] for token in content.get("added_tokens", [])}


def renumber(content: Mapping[str, Any], ids: Sequence[int]) -> dict[str, Any]:
    """Returns a tokenizer.json whose ids are the ids of tfm. Adds tokens for padding, BOS and EOS if needed.

    Args:
      content: the content of a tokenizer.json.
      ids: for each id of tfm the id in the file, or an id that the file lacks.

    Raises:
      ValueError, KeyError, TypeError, AttributeError: if the content is no tokenizer.json.
    """
    new_ids = {old: i for i, old in enumerate(ids) if old >= 0 and i != BOS_ID}
    new_ids.setdefault(ids[BOS_ID], BOS_ID)  # unless the row of BOS is a copy
    added = [token | {"id": new_ids[token["id"]]} for token in content.get("added_tokens", [])]
    tokens = {text: new_ids[i] for text, i in list_ids(content).items()}
    for token in added:
        if token["content"] == BOS and token["id"] != BOS_ID:  # an ordinary token of BART
            token |= {"content": TEXT_START, "rstrip": True, "special": False}
            tokens[TEXT_START] = tokens.pop(BOS)
    missing = set(range(len(ids))) - set(tokens.values())
    for i, name in enumerate((PAD, BOS, EOS)):
        if i in missing:
            added.append(make_special(name, i))
    names = {token["id"]: token["content"] for token in added}
    tokens |= {names.get(i, f"<unused {i}>"): i for i in missing}
    model = dict(content["model"])
    if isinstance(model["vocab"], list):
        scores = dict(model["vocab"])
        model["vocab"] = [[text, scores.get(text, 0.0)] for text in sorted(tokens, key=tokens.__getitem__)]
        model["unk_id"] = new_ids.get(model["unk_id"])
    else:
        model["vocab"] = tokens
    # The post-processor adds special tokens by their old ids.
    parts = {"model": model, "post_processor": None, "padding": None, "truncation": None}
    return {**content, **parts, "added_tokens": sorted(added, key=lambda token: token["id"])}


def enclose_texts(start: str, end: str) -> dict[str, Any]:
    """Returns the post-processor that writes [BOS, a text, EOS], or [BOS, a text, EOS, another text, EOS]."""
    first, second = ({"Sequence": {"id": "AB"[kind], "type_id": kind}} for kind in range(2))
    tokens = {
        name: [{"SpecialToken": {"id": name, "type_id": kind}} for kind in range(2)] for name in (start, end)
    }
    single = [tokens[start][0], first, tokens[end][0]]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, second, tokens[end][1]],
        "special_tokens": {
            name: {"id": name, "ids": [i], "tokens": [name]} for name, i in ((start, BOS_ID), (end, EOS_ID))
        },
    }
