"""The content of a tokenizer.json: made for bytes or word pieces, and rewritten with other ids."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tfm.data.tokenizers.characters import BYTES, FIRST_BYTE
from tfm.data.tokenizers.file_tokenizer import SPECIAL_NAMES, name_in_brackets
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID, UNKNOWN_PIECE

PAD, BOS, EOS = "<pad>", "<s>", "</s>"  # with `UNKNOWN_PIECE`, names of the special pieces
SPECIAL_IDS = (PAD_ID, BOS_ID, EOS_ID)  # in the order of `SPECIAL_NAMES`
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
    made = _make_file(model, special, pre_tokenizer=level | {"use_regex": True}, decoder=level)
    if BOS in special and EOS in special:  # of BART and RoBERTa
        made["post_processor"] = enclose_texts(BOS, special[BOS], EOS, special[EOS])
    return made


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
    """Returns a tokenizer.json whose ids are the ids of tfm.

    Padding, BOS and EOS are special tokens in the result, with names that `find_special_ids` finds. Ids that
    no token of the file has get unused names.

    Args:
      content: the content of a tokenizer.json.
      ids: for each id of tfm the id in the file, or an id that the file lacks.

    Raises:
      ValueError, KeyError, TypeError, AttributeError: if the content is no tokenizer.json.
    """
    new_ids = _invert(ids)
    texts = {new_ids[i]: text for text, i in list_ids(content).items()}
    names = texts | _name_special_tokens(texts)
    taken = set(names.values())
    names |= {i: find_free_name(f"<unused {i}>", taken) for i in range(len(ids)) if i not in names}
    tokens = {new_ids[token["id"]]: token for token in content.get("added_tokens") or ()}
    for i in SPECIAL_IDS:
        tokens[i] = make_special(names[i], i) | tokens.get(i, {}) | {"special": True}
    return {
        **content,
        "added_tokens": [tokens[i] | {"id": i, "content": names[i]} for i in sorted(tokens)],
        "model": _renumber_model(content["model"], new_ids, names),
        # The post-processor adds special tokens by their old ids.
        **dict.fromkeys(("post_processor", "padding", "truncation")),
    }


def _invert(ids: Sequence[int]) -> dict[int, int]:
    """Returns {id in the file: id of tfm}.

    A token of the file that is both BOS and another token of tfm, whose row in tfm is a copy, gets the id of
    the other token.
    """
    new_ids = {old: i for i, old in enumerate(ids) if old >= 0 and i != BOS_ID}
    new_ids.setdefault(ids[BOS_ID], BOS_ID)
    return new_ids


def _name_special_tokens(texts: Mapping[int, str]) -> dict[int, str]:
    """Returns {id: name} of padding, BOS and EOS.

    A token keeps its name if the name shows its role. Otherwise it gets the first usual name that no other
    token has, because texts may contain the other token.

    Args:
      texts: {id of tfm: text} of the tokens of a file.
    """
    taken = set(texts.values())
    names = {}
    for i, role in zip(SPECIAL_IDS, SPECIAL_NAMES, strict=True):
        if name_in_brackets(texts.get(i, "")) in role:
            names[i] = texts[i]
        else:
            names[i] = next(name for name in (f"<{word}>" for word in role) if name not in taken)
    return names


def find_free_name(name: str, taken: Collection[str]) -> str:
    """Returns a name that is not taken: the name itself, or the name between angle brackets."""
    while name in taken:
        name = f"<{name}>"
    return name


def _renumber_model(
    model: Mapping[str, Any], new_ids: Mapping[int, int], names: Mapping[int, str]
) -> dict[str, Any]:
    """Returns the field `model` of a tokenizer.json with other ids.

    Args:
      model: the field.
      new_ids: {id in the file: id of tfm}.
      names: {id of tfm: text} of all tokens.
    """
    if isinstance(model["vocab"], list):  # of [text, score]
        scores = {new_ids[i]: score for i, (_, score) in enumerate(model["vocab"])}
        vocabulary = [[names[i], scores.get(i, 0.0)] for i in sorted(names)]
        return {**model, "vocab": vocabulary, "unk_id": new_ids.get(model["unk_id"])}
    renumbered = {**model, "vocab": {names[i]: i for i in sorted(names)}}
    if model.get("unk_token") in model["vocab"]:
        renumbered["unk_token"] = names[new_ids[model["vocab"][model["unk_token"]]]]
    return renumbered


def enclose_texts(start: str, start_id: int, end: str, end_id: int) -> dict[str, Any]:
    """Returns the post-processor of the rows [start, text, end] and [start, text, end, second text, end].

    Args:
      start, end: texts of two tokens.
      start_id, end_id: ids of the tokens.
    """
    first, second = ({"Sequence": {"id": "AB"[kind], "type_id": kind}} for kind in range(2))
    ids = {start: start_id, end: end_id}
    tokens = {name: [{"SpecialToken": {"id": name, "type_id": kind}} for kind in range(2)] for name in ids}
    single = [tokens[start][0], first, tokens[end][0]]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, second, tokens[end][1]],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in ids.items()},
    }


def list_enclosing_ids(post_processor: Mapping[str, Any] | None) -> tuple[list[int], list[int]]:
    """Returns the ids that the post-processor of a tokenizer.json adds before and after a text.

    Raises:
      ValueError, KeyError, TypeError, AttributeError: if the content is no post-processor.
    """
    if post_processor is None:
        return [], []
    kind = post_processor["type"]
    if kind == "Sequence":
        parts = map(list_enclosing_ids, post_processor["processors"])
        return next((part for part in parts if any(part)), ([], []))
    if kind in ("BertProcessing", "RobertaProcessing"):
        return [post_processor["cls"][1]], [post_processor["sep"][1]]
    if kind != "TemplateProcessing":  # such as ByteLevel, which adds no tokens
        return [], []
    items = post_processor["single"]
    text = ["Sequence" in item for item in items].index(True)
    before, after = (
        [i for item in side for i in post_processor["special_tokens"][item["SpecialToken"]["id"]]["ids"]]
        for side in (items[:text], items[text + 1 :])
    )
    return before, after
