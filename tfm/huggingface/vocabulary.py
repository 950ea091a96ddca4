"""Tokenizers of Hugging Face folders, rewritten so that padding, BOS and EOS have the ids 0, 1 and 2.

The result is an ordinary file of a tfm tokenizer: a SentencePiece model or a tokenizer.json whose ids are the
rows of the imported tables, in the order of `arrays.TokenOrder`.
"""

import dataclasses
import json
import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tfm.data.config import SOURCE_VOCABULARY_FILE, VOCABULARY_FILE
from tfm.data.tokenizers.files import MAX_FILE_BYTES
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID, UNKNOWN_PIECE
from tfm.data.tokenizers.sentencepiece_file import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    read_pieces,
    write_pieces,
)
from tfm.data.tokenizers.word_pieces import WORD_START
from tfm.errors import UserError
from tfm.huggingface.arrays import TokenOrder
from tfm.huggingface.fields import Fields
from tfm.huggingface.folder import read_json, read_json_if_present
from tfm.huggingface.tokenizer_file import (
    BOS,
    EOS,
    MASK,
    PAD,
    list_enclosing_ids,
    list_ids,
    make_byte_pair_tokenizer,
    make_special,
    make_word_piece_tokenizer,
    make_word_tokenizer,
    renumber,
)
from tfm.io.files import read_limited

MAX_ID = 1 << 24
MAX_SHOWN_TAGS = 8
FAIRSEQ_OFFSET = 1  # ids of the pieces in NLLB and mBART-50 are the ids of SentencePiece plus 1
FAIRSEQ_IDS = {BOS: 0, PAD: 1, EOS: 2, UNKNOWN_PIECE: 3}
NLLB_FILE = "sentencepiece.bpe.model"  # also of mBART-50 and M2M-100
T5_FILE = "spiece.model"
JSON_FILE = "tokenizer.json"
# {value of language_codes: languages} of M2M-100, in the order of their ids. transformers 5 writes no list of
# them into the files of a tokenizer.
M2M_100_LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he "
        "hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no "
        "ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo "
        "zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}
M2M_100_TAG = "__{}__"
MARIAN_TAG = ">>{}<<"
TEXT_START = "<text>"  # name in tfm of "<s>" of BART
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Languages:
    """The languages that the user named, "" if none, in the words of the model, such as eng_Latn."""

    source: str = ""
    target: str = ""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokenizer of a folder.

    Attributes:
      order: order of the tokens.
      files: {name of an asset: content}.
      languages: the languages of the model, "" if unknown.
      source_prefix, target_prefix: texts that sources and targets begin with, see `tfm.data.config`.
    """

    order: TokenOrder
    files: Mapping[str, bytes]
    languages: Languages
    source_prefix: str = ""
    target_prefix: str = ""


def read_marian(folder: str, fields: Fields, languages: Languages) -> Vocabulary:
    """Returns the tokenizer of MarianMT: a SentencePiece model for each side, and the ids of all pieces."""
    size = vocabulary_size(fields)
    source_ids = _read_ids(folder, "vocab.json")
    separate = os.path.exists(os.path.join(folder, "target_vocab.json"))
    target_ids = _read_ids(folder, "target_vocab.json") if separate else source_ids
    order = _order(fields, size)
    order.excluded |= order.ids >= (fields.get("decoder_vocab_size", int, None) or size)
    tags = {text for text in source_ids if text.startswith(">>") and text.endswith("<<")}
    prefix = _choose_tag(folder, languages.target, tags)
    files = {
        SOURCE_VOCABULARY_FILE: _rewrite_file(folder, "source.spm", source_ids, order, tags),
        VOCABULARY_FILE: _rewrite_file(folder, "target.spm", target_ids, order, tags),
    }
    details = read_json_if_present(os.path.join(folder, "tokenizer_config.json"))
    known = Languages(
        languages.source or str(details.get("source_lang") or ""),
        languages.target or str(details.get("target_lang") or ""),
    )
    return Vocabulary(order, files, known, source_prefix=prefix)


def _choose_tag(folder: str, language: str, tags: Collection[str]) -> str:
    """Returns the tag of the target language of MarianMT, "" for a model of one language.

    Warns if the user named none of several languages, because then each source must begin with a tag.

    Raises:
      UserError: if the model has tags, but none for the language.
    """
    if not tags:
        return ""
    if not language:
        log.warning(
            "%s translates into %s languages. Begin each source with a tag such as %s, or import the model "
            "with --target_language",
            folder,
            f"{len(tags):,}",
            min(tags),
        )
        return ""
    _check_language(folder, "target", language, tags, MARIAN_TAG)
    return MARIAN_TAG.format(language)


def read_nllb(folder: str, fields: Fields, languages: Languages) -> Vocabulary:
    """Returns the tokenizer of NLLB or mBART-50: SentencePiece with tags of languages after its pieces."""
    if _has_only_json(folder, NLLB_FILE):
        _check_languages(folder, languages, _read_tags(folder, len(FAIRSEQ_IDS)), "{}")
        vocabulary = _read_tagged_json(folder, fields, languages)
        return dataclasses.replace(vocabulary, source_prefix=languages.source, target_prefix=languages.target)
    content = _read(folder, NLLB_FILE)
    pieces = _read_pieces(folder, NLLB_FILE, content)
    ids = {piece.text: i + FAIRSEQ_OFFSET for i, piece in enumerate(pieces) if i >= len(FAIRSEQ_IDS) - 1}
    tags = _read_tags(folder, len(pieces) + FAIRSEQ_OFFSET)
    _check_languages(folder, languages, tags, "{}")
    order = _order(fields, vocabulary_size(fields))
    rewritten = _rewrite(folder, content, ids | FAIRSEQ_IDS | tags, order, tags)
    return Vocabulary(order, {VOCABULARY_FILE: rewritten}, languages, languages.source, languages.target)


def read_m2m_100(folder: str, fields: Fields, languages: Languages) -> Vocabulary:
    """Returns the tokenizer of M2M-100, whose vocab.json has the ids, or of NLLB without a vocab.json."""
    if not os.path.exists(os.path.join(folder, "vocab.json")):
        return read_nllb(folder, fields, languages)
    ids = _read_ids(folder, "vocab.json")
    tags = _read_tags(folder, len(ids)) or _number_m2m_100_tags(folder, len(ids))
    _check_languages(folder, languages, tags, M2M_100_TAG)
    order = _order(fields, vocabulary_size(fields))
    rewritten = _rewrite_file(folder, NLLB_FILE, ids | tags, order, tags)
    prefixes = M2M_100_TAG.format(languages.source), M2M_100_TAG.format(languages.target)
    return Vocabulary(order, {VOCABULARY_FILE: rewritten}, languages, *prefixes)


def _number_m2m_100_tags(folder: str, first_id: int) -> dict[str, int]:
    """Returns {tag of a language: id} of a M2M-100 whose files do not list the tags."""
    details = read_json_if_present(os.path.join(folder, "tokenizer_config.json"))
    languages = M2M_100_LANGUAGES.get(str(details.get("language_codes", "m2m100")), "").split()
    return {M2M_100_TAG.format(language): i for i, language in enumerate(languages, first_id)}


def read_mbart(folder: str, fields: Fields, languages: Languages) -> Vocabulary:
    """Returns the tokenizer of mBART-50.

    Raises:
      UserError: also for the first mBART. It reads the tag of the language after EOS.
    """
    details = read_json_if_present(os.path.join(folder, "tokenizer_config.json"))
    kind = str(details.get("tokenizer_class", ""))
    if not kind.startswith("MBart50"):
        raise UserError(
            f"{folder}: expected tokenizer_class MBart50Tokenizer in tokenizer_config.json, got {kind!r}. "
            "Import mBART-50, because tfm has no tokenizer with the language after the text."
        )
    return read_nllb(folder, fields, languages)


def read_t5(folder: str, fields: Fields, languages: Languages) -> Vocabulary:
    """Returns the tokenizer of T5, whose ids are the ids of SentencePiece."""
    if _has_only_json(folder, T5_FILE):
        return _read_tagged_json(folder, fields, languages)
    content = _read(folder, T5_FILE)
    ids = {piece.text: i for i, piece in enumerate(_read_pieces(folder, T5_FILE, content))}
    order = _order(fields, vocabulary_size(fields))
    return Vocabulary(order, {VOCABULARY_FILE: _rewrite(folder, content, ids, order)}, languages)


def _has_only_json(folder: str, name: str) -> bool:
    """Returns whether a folder lacks a SentencePiece file, but has a tokenizer.json, as of transformers 5."""
    has_pieces, has_json = (os.path.exists(os.path.join(folder, each)) for each in (name, JSON_FILE))
    return has_json and not has_pieces


def _read_tagged_json(folder: str, fields: Fields, languages: Languages) -> Vocabulary:
    """Returns a tokenizer.json in whose texts the added tokens are tokens, except the mask.

    Examples are the tags of languages, and "<extra_id_0>" of T5. Special tokens would be ordinary text.
    """
    content = read_tokenizer(folder)
    order = _order(fields, vocabulary_size(fields))
    try:
        added = [token | {"special": token["content"] == MASK} for token in content["added_tokens"]]
    except (KeyError, TypeError):
        raise _damaged_tokenizer(folder, order.size) from None
    serialized = renumber_tokenizer(folder, content | {"added_tokens": added}, order)
    return Vocabulary(order, {VOCABULARY_FILE: serialized}, languages)


def read_bart(folder: str, fields: Fields, languages: Languages) -> Vocabulary:
    """Returns the tokenizer of BART. In most files, the post-processor adds "<s>" before each text.

    This token follows the start of the decoder, which is BOS of tfm. Therefore it becomes `TEXT_START`, the
    prefix of all texts. EOS ends all texts in tfm.

    Raises:
      UserError: also if several tokens are added before a text.
    """
    content = read_tokenizer(folder)
    size = vocabulary_size(fields)
    try:
        before, after = list_enclosing_ids(content.get("post_processor"))
        added = _name_text_start(content.get("added_tokens") or (), before)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged_tokenizer(folder, size) from None
    if len(before) > 1:
        raise UserError(
            f"Expected the post_processor of {folder}/tokenizer.json to add at most one token before a text, "
            f"got the ids {before}. tfm has no such model."
        )
    if _check_id(fields, "eos_token_id", size) not in after:
        log.warning(
            "The post_processor of %s/tokenizer.json does not end a text with eos_token_id, but tfm does.",
            folder,
        )
    order = _order(fields, size, text_start=before[0] if before else None)
    prefix = TEXT_START if before else ""
    files = {VOCABULARY_FILE: renumber_tokenizer(folder, content | {"added_tokens": added}, order)}
    return Vocabulary(order, files, languages, source_prefix=prefix, target_prefix=prefix)


def _name_text_start(added: Sequence[dict[str, Any]], ids: Sequence[int]) -> list[dict[str, Any]]:
    """Returns the added tokens of a tokenizer.json, in which texts may contain the tokens of the ids.

    A text contains such a token by the name `TEXT_START`.
    """
    starts = [make_special(TEXT_START, i) | {"rstrip": True, "special": False} for i in ids]
    return [*(token for token in added if token["id"] not in ids), *starts]


def read_gpt2(folder: str, fields: Fields, languages: Languages) -> Vocabulary:
    """Returns the tokenizer of GPT-2. In most files, the only special token begins and ends a text.

    Padding and BOS get no probability, because no text has them.
    """
    size = vocabulary_size(fields)
    end = _check_id(fields, "eos_token_id", size)
    start, pad = (_check_id(fields, f"{role}_token_id", size, default=end) for role in ("bos", "pad"))
    order = TokenOrder(size, pad=None if pad in (start, end) else pad, start=start, end=end)
    order.excluded[[PAD_ID, BOS_ID]] = True
    return Vocabulary(
        order, {VOCABULARY_FILE: renumber_tokenizer(folder, read_tokenizer(folder), order)}, languages
    )


def read_fairseq(folder: str, fields: Fields) -> Vocabulary:
    """Returns the tokenizer of a folder of fairseq, whose dictionaries have the pieces or words.

    Without a SentencePiece model, texts are tokens between blanks, such as "th@@ e dog".
    """
    languages = Languages(fields.get("source_lang", str), fields.get("target_lang", str))
    sides = [_read_dictionary(folder, fields, language) for language in dataclasses.astuple(languages)]
    pad, end = FAIRSEQ_IDS[PAD], FAIRSEQ_IDS[EOS]
    order = TokenOrder(max(map(len, sides)), pad=pad, start=end, end=end)
    order.excluded |= order.ids >= len(sides[1])
    files = {}
    for name, ids in zip((SOURCE_VOCABULARY_FILE, VOCABULARY_FILE), sides, strict=True):
        if os.path.exists(os.path.join(folder, "sentencepiece.bpe.model")):
            files[name] = _rewrite_file(folder, "sentencepiece.bpe.model", ids, order, ())
        else:
            files[name] = renumber_tokenizer(folder, make_word_tokenizer(ids), order)
    return Vocabulary(order, files, languages)


def _read_dictionary(folder: str, fields: Fields, language: str) -> dict[str, int]:
    """Returns {text: id} of a dict.LANGUAGE.txt. Each line has a text and its frequency."""
    if not re.fullmatch("[A-Za-z0-9_-]+", language):
        raise UserError(f"{fields.path}: expected the name of a language, got {language!r}.")
    name = f"dict.{language}.txt"
    content = _read(folder, name)
    try:
        lines = content.decode("utf-8-sig").split("\n")
        texts = [line.removesuffix(" #fairseq:overwrite").rsplit(" ", 1) for line in lines if line]
        return FAIRSEQ_IDS | {text: i for i, (text, _) in enumerate(texts, len(FAIRSEQ_IDS))}
    except ValueError:
        raise UserError(f"Expected a text and its frequency in each line of {folder}/{name}.") from None


def rewrite_sentencepiece(
    content: bytes, ids: Mapping[str, int], order: TokenOrder, tags: Collection[str] = ()
) -> bytes:
    """Returns a SentencePiece model whose ids are the ids of tfm.

    Args:
      content: the model of one side.
      ids: {piece: id of the other model} of both sides. Pieces that `content` lacks become unused: no text is
        encoded to them, but they can be decoded.
      order: order of the tokens.
      tags: pieces for whole words, such as ">>deu<<", "deu_Latn" or the added token "<sep>".

    Raises:
      ValueError: if the content is damaged.
    """
    pieces, others = read_pieces(content)
    encoded = {piece.text: piece for piece in pieces if piece.kind in (NORMAL, USER_DEFINED, BYTE)}
    texts = {i: text for text, i in ids.items()}
    rewritten = [Piece(name, 0.0, CONTROL) for name in (PAD, BOS, EOS)]
    for i in order.ids[len(rewritten) :].tolist():
        text = texts.get(i, "")
        if text == UNKNOWN_PIECE:
            rewritten.append(Piece(UNKNOWN_PIECE, 0.0, UNKNOWN))
        elif text in tags:
            rewritten.append(Piece(WORD_START + text, 0.0, USER_DEFINED))
        elif not text or text in (PAD, BOS, EOS):
            rewritten.append(Piece(f"<unused {i}>", 0.0, UNUSED))
        else:
            rewritten.append(encoded.get(text, Piece(text, 0.0, UNUSED)))
    return write_pieces(rewritten, others)


def _order(fields: Fields, size: int, text_start: int | None = None) -> TokenOrder:
    """Returns the order of the tokens of a model that translates.

    Args:
      fields: fields of config.json.
      size: number of ids.
      text_start: id of the token with which all texts begin, or None.
    """
    names = ("pad_token_id", "decoder_start_token_id", "eos_token_id")
    pad, start, end = (_check_id(fields, name, size) for name in names)
    return TokenOrder(size, pad=pad, start=start, end=end, is_start_in_texts=start == text_start)


def _check_id(fields: Fields, name: str, size: int, default: int | None = None) -> int:
    """Returns a field. Raises a UserError if its value is no id of the vocabulary."""
    value: Any = fields.get(name, int) if default is None else fields.get(name, int, None)
    value = default if value is None else value
    if not 0 <= value < size:
        raise UserError(f"{fields.path}: expected {name} to be an id below {size:,}, got {value:,}.")
    return int(value)


def vocabulary_size(fields: Fields) -> int:
    """Returns the larger size of both sides."""
    size = max(fields.get("vocab_size", int), fields.get("decoder_vocab_size", int, None) or 0)
    if not 0 < size <= MAX_ID:
        raise UserError(f"{fields.path}: expected vocab_size to be 1 to {MAX_ID:,}, got {size:,}.")
    return size


def _check_languages(folder: str, languages: Languages, tags: Collection[str], form: str) -> None:
    """Raises a UserError if a language is missing or the model has no tag for it."""
    for side, language in dataclasses.asdict(languages).items():
        _check_language(folder, side, language, tags, form)


def _check_language(folder: str, side: str, language: str, tags: Collection[str], form: str) -> None:
    """Raises a UserError if the model has no tag for the language of a side, "source" or "target"."""
    if not tags:
        raise UserError(
            f"The files of the tokenizer in {folder} list no tags of languages. Copy the whole folder again."
        )
    if form.format(language) not in tags:
        shown = ", ".join(sorted(tags)[:MAX_SHOWN_TAGS])
        raise UserError(
            f"Expected --{side}_language to be one of the {len(tags):,} languages of {folder} (tags such as "
            f"{shown}), got {language!r}."
        )


def _read_tags(folder: str, first_id: int) -> dict[str, int]:
    """Returns {tag of a language: id}. Files without ids list the tags in the order of their ids."""
    details = read_json_if_present(os.path.join(folder, "tokenizer_config.json"))
    special = read_json_if_present(os.path.join(folder, "special_tokens_map.json"))
    tags = {text: i for text, i in _read_added(folder).items() if i >= first_id}
    try:
        names = (details | special).get("additional_special_tokens") or ()
        texts = [name if isinstance(name, str) else name["content"] for name in names]
        if tags.keys().isdisjoint(texts):
            tags = {text: first_id + i for i, text in enumerate(texts)} | tags
    except (TypeError, KeyError):
        raise UserError(f"Expected the tags of languages in {folder}/tokenizer_config.json.") from None
    tags.pop(MASK, None)
    return tags


def _read_added(folder: str) -> dict[str, int]:
    """Returns {text: id} of the tokens that the files list apart from the vocabulary, such as "<sep>".

    Versions of transformers write them into different files, the newest of which is tokenizer_config.json.
    """
    listed = read_json_if_present(os.path.join(folder, JSON_FILE)).get("added_tokens") or ()
    plain = read_json_if_present(os.path.join(folder, "added_tokens.json"))
    details = read_json_if_present(os.path.join(folder, "tokenizer_config.json"))
    try:
        decoder = details.get("added_tokens_decoder") or {}
        tokens = {token["content"]: token["id"] for token in listed} | plain
        tokens |= {token["content"]: int(i) for i, token in decoder.items()}
        valid = all(type(text) is str and type(i) is int and 0 <= i < MAX_ID for text, i in tokens.items())
    except (TypeError, KeyError, ValueError, AttributeError):
        valid = False
    if not valid:
        raise UserError(
            "Expected texts and ids of added tokens in tokenizer.json, added_tokens.json and "
            f"tokenizer_config.json of {folder}. Copy the whole folder again."
        )
    return tokens


def _rewrite_file(
    folder: str, name: str, ids: Mapping[str, int], order: TokenOrder, tags: Collection[str]
) -> bytes:
    return _rewrite(folder, _read(folder, name), ids, order, tags)


def _rewrite(
    folder: str, content: bytes, ids: Mapping[str, int], order: TokenOrder, tags: Collection[str] = ()
) -> bytes:
    """Calls `rewrite_sentencepiece` with the tokens that were added to the vocabulary of the file, too.

    Raises:
      UserError: if the file or an id does not fit.
    """
    used = {*ids.values(), *order.ids[: EOS_ID + 1].tolist()}
    special = {PAD, BOS, EOS, UNKNOWN_PIECE, MASK}
    added = {text: i for text, i in _read_added(folder).items() if i not in used and text not in special}
    added = {text: i for text, i in added.items() if text not in ids}
    ids, tags = {**ids, **added}, {*tags, *added}
    largest = max(ids.values(), default=0)
    if largest >= order.size:
        raise UserError(
            f"The tokenizer of {folder} has the id {largest:,}, but vocab_size in config.json is "
            f"{order.size:,}. Copy the whole folder again."
        )
    try:
        return rewrite_sentencepiece(content, ids, order, tags)
    except ValueError:
        raise UserError(f"A SentencePiece file of {folder} is damaged. Copy it again.") from None


def read_tokenizer(folder: str, name: str = JSON_FILE) -> dict[str, Any]:
    """Returns the content of a tokenizer.json.

    If `name` is vocab.txt, or the folder has only vocab.json and merges.txt, these files and the added tokens
    are converted.
    """
    path = os.path.join(folder, name)
    has_merges = os.path.exists(os.path.join(folder, "merges.txt"))
    if name == JSON_FILE and (os.path.exists(path) or not has_merges):
        return read_json(path)
    options = read_json_if_present(os.path.join(folder, "tokenizer_config.json"))
    if name == JSON_FILE:
        prefix_space = options.get("add_prefix_space") is True
        ids, merges = _read_ids(folder, "vocab.json"), _read_lines(folder, "merges.txt")
        made = make_byte_pair_tokenizer(ids, merges, add_prefix_space=prefix_space)
    else:
        made = make_word_piece_tokenizer(_read_lines(folder, name), options)
    known = list_ids(made)
    added = [(text, i) for text, i in _read_added(folder).items() if text not in known]
    made["added_tokens"] += [make_special(text, i) | {"special": False} for text, i in added]
    return made


def _read_lines(folder: str, name: str) -> list[str]:
    """Returns the lines of a text in UTF-8."""
    try:
        content = _read(folder, name).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        path = os.path.join(folder, name)
        raise UserError(f"Expected {path} to be a text in UTF-8, but it has other content.") from None
    return content.removesuffix("\n").split("\n")


def renumber_tokenizer(folder: str, content: dict[str, Any], order: TokenOrder) -> bytes:
    """Calls `renumber`, and raises a UserError if the file has other content."""
    try:
        return json.dumps(renumber(content, order.ids.tolist()), ensure_ascii=False).encode("utf-8")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged_tokenizer(folder, order.size) from None


def _damaged_tokenizer(folder: str, size: int) -> UserError:
    """Returns the error of a folder whose tokenizer does not have `size` ids or is no tokenizer."""
    return UserError(
        f"Expected the tokenizer of {folder} to be a tokenizer.json with {size:,} ids. Copy the whole folder "
        "again."
    )


def _read_pieces(folder: str, name: str, content: bytes) -> list[Piece]:
    try:
        return read_pieces(content)[0]
    except ValueError:
        raise UserError(f"{folder}/{name} is no SentencePiece model. Copy it again.") from None


def _read(folder: str, name: str) -> bytes:
    """Returns the content of a file of the folder."""
    try:
        return read_limited(os.path.join(folder, name), MAX_FILE_BYTES)
    except FileNotFoundError:
        raise UserError(
            f"Expected the tokenizer {name} in {folder}, but there is none. Copy the whole folder."
        ) from None


def _read_ids(folder: str, name: str) -> dict[str, int]:
    """Returns {piece: id} of a vocab.json."""
    path = os.path.join(folder, name)
    value = read_json(path)
    if not all(type(i) is int and 0 <= i < MAX_ID for i in value.values()):
        raise UserError(f"Expected the ids of pieces in {path}, but it has other content. Copy it again.")
    return value
