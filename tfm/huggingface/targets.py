"""The families that models of the core can become: MarianMT and GPT-2. Tokens keep their ids of tfm."""

import json
import os
import re
from collections.abc import Iterator
from typing import Any

from tfm.data.config import SOURCE_VOCABULARY_FILE, VOCABULARY_FILE
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID, UNKNOWN_PIECE, Tokenizer, source_tokenizer
from tfm.data.tokenizers.tokenizer_json import TokenizerJson
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.huggingface.families import FAMILIES, LAYER_NORM_EPSILON
from tfm.huggingface.family import PIPELINE, THEIR_ACTIVATIONS, Target, special_ids, to_json
from tfm.huggingface.tokenizer_file import list_ids, make_byte_tokenizer, renumber

MAX_POSITIONS = 512  # of a MarianMT model, whose tables of sinusoids have a size
EPSILON_TOLERANCE = 1e-5  # a difference of the epsilon that changes logits by about as much
TRANSLATE = """\
import transformers

tokenizer = transformers.AutoTokenizer.from_pretrained("FOLDER")
model = transformers.AutoModelForSeq2SeqLM.from_pretrained("FOLDER")
outputs = model.generate(**tokenizer(["..."], return_tensors="pt"), length_penalty=0.0)
print(tokenizer.batch_decode(outputs, skip_special_tokens=True))"""


def find_marian_problems(config: Any, tokenizer: Tokenizer) -> Iterator[str]:
    """Yields what a translation run has that MarianMT lacks."""
    model = config.model
    if abs(model.layer_norm_epsilon - LAYER_NORM_EPSILON) > EPSILON_TOLERANCE:
        yield f"model.layer_norm_epsilon is {model.layer_norm_epsilon}, expected {LAYER_NORM_EPSILON}"
    if model.tied_embeddings == "none":
        yield "model.tied_embeddings is 'none', expected 'three' or 'two'"
    if config.data.target_prefix:
        yield f"data.target_prefix is {config.data.target_prefix!r}, expected ''"
    if not isinstance(tokenizer, WordPieces):
        yield f"data.tokenizer is {config.data.tokenizer!r}, expected word_pieces"


def find_tokenizer_problems(config: Any, tokenizer: Tokenizer) -> Iterator[str]:
    """Yields why transformers has no class for the tokenizer of a run."""
    kind = config.data.tokenizer
    if kind != "bytes" and not isinstance(tokenizer, TokenizerJson):
        yield f"data.tokenizer is {kind!r}, expected bytes or the path of a tokenizer.json or of its folder"


def read_json_tokenizer(run: Any, workdir: str) -> dict[str, Any]:
    """Returns the tokenizer.json of the run in the order of its ids, or one for the bytes of texts."""
    if run.task.config.data.tokenizer == "bytes":
        return make_byte_tokenizer()
    serialized = _read(workdir, VOCABULARY_FILE)
    return renumber(json.loads(serialized), TokenizerJson(serialized).file_ids)


def describe_tokenizer(content: dict[str, Any], roles: dict[str, int]) -> dict[str, Any]:
    """Returns the tokenizer_config.json of a tokenizer.json.

    Args:
      content: content of the tokenizer.json.
      roles: {name of a special token in transformers: its id}.
    """
    pieces = {i: text for text, i in list_ids(content).items()}
    details = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": content["model"].get("unk_token")}
    return details | {role: pieces[i] for role, i in roles.items()}


def _marian_config(run: Any) -> dict[str, Any]:
    model = run.task.config.model
    hidden_dropout = model.feed_forward_dropout
    return {
        "vocab_size": len(run.task.tokenizer),
        "decoder_vocab_size": len(run.task.tokenizer),
        "share_encoder_decoder_embeddings": model.tied_embeddings == "three",
        "tie_word_embeddings": True,
        "d_model": model.d_model,
        **{f"{stack}_layers": getattr(model, f"{stack}_layers") for stack in ("encoder", "decoder")},
        **{f"{stack}_attention_heads": model.heads for stack in ("encoder", "decoder")},
        **{f"{stack}_ffn_dim": model.d_ff for stack in ("encoder", "decoder")},
        "activation_function": THEIR_ACTIVATIONS[model.activation],
        "scale_embedding": model.scale_embedding,
        "is_encoder_decoder": True,
        "max_position_embeddings": MAX_POSITIONS,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.dropout if hidden_dropout is None else hidden_dropout,
        "decoder_start_token_id": BOS_ID,
        **special_ids(),
    }


def _marian_files(run: Any, workdir: str) -> dict[str, bytes]:
    """Returns the vocabularies and how to search. An output never contains padding or BOS."""
    config, tokenizer = run.task.config, run.task.tokenizer
    source, target = (_marian_ids(side) for side in (source_tokenizer(tokenizer), tokenizer))
    special = {"pad_token": list(target)[PAD_ID], "eos_token": list(target)[EOS_ID]}
    details = {
        "tokenizer_class": "MarianTokenizer",
        "model_max_length": MAX_POSITIONS,
        "source_lang": config.data.source_language,
        "target_lang": config.data.target_language,
        "separate_vocabs": source != target,
        "unk_token": UNKNOWN_PIECE,
    }
    generation = {
        "decoder_start_token_id": BOS_ID,
        "num_beams": config.decoding.beam_size,
        "max_length": MAX_POSITIONS,
        "bad_words_ids": [[PAD_ID], [BOS_ID]],
    }
    files = {
        "vocab.json": source,
        "tokenizer_config.json": details | special,
        "generation_config.json": generation | special_ids(),
        **({"target_vocab.json": target} if source != target else {}),
    }
    vocabulary = _read(workdir, VOCABULARY_FILE)
    has_source = os.path.exists(os.path.join(workdir, SOURCE_VOCABULARY_FILE))
    pieces = {
        "source.spm": _read(workdir, SOURCE_VOCABULARY_FILE) if has_source else vocabulary,
        "target.spm": vocabulary,
    }
    return {name: to_json(values) for name, values in files.items()} | pieces


def _marian_ids(tokenizer: Any) -> dict[str, int]:
    """Returns {piece: id}. MarianTokenizer reads a tag such as >>deu<< without the space before it."""
    pieces = tokenizer.pieces(range(len(tokenizer)))
    return {re.sub("^\u2581(>>.*<<)$", r"\1", piece): i for i, piece in enumerate(pieces)}


def _gpt2_config(run: Any) -> dict[str, Any]:
    model = run.task.config.model
    return {
        "vocab_size": len(run.task.tokenizer),
        "n_positions": model.max_positions,
        "n_embd": model.d_model,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_inner": model.d_ff,
        "activation_function": THEIR_ACTIVATIONS[model.activation],
        "layer_norm_epsilon": model.layer_norm_epsilon,
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": model.attention_dropout,
        "tie_word_embeddings": True,
        **special_ids(),
    }


def _gpt2_files(run: Any, workdir: str) -> dict[str, bytes]:
    """Returns the tokenizer and how to generate. An output never contains padding or BOS."""
    content = read_json_tokenizer(run, workdir)
    roles = {"pad_token": PAD_ID, "bos_token": BOS_ID, "eos_token": EOS_ID}
    files = {
        "tokenizer.json": content,
        "tokenizer_config.json": describe_tokenizer(content, roles),
        "generation_config.json": {"suppress_tokens": [PAD_ID, BOS_ID], **special_ids()},
    }
    return {name: to_json(values) for name, values in files.items()}


def _read(workdir: str, name: str) -> bytes:
    with open(os.path.join(workdir, name), "rb") as file:
        return file.read()


TARGETS = {
    "transformer": Target(
        model_type="marian",
        family=FAMILIES["marian"],
        required={"norm_order": "post", "positions": "interleaved", "scale_embedding": True},
        config=_marian_config,
        files=_marian_files,
        example=lambda model: TRANSLATE,
        find_problems=find_marian_problems,
    ),
    "decoder_lm": Target(
        model_type="gpt2",
        family=FAMILIES["gpt2"],
        required={
            "norm_order": "pre",
            "positions": "learned",
            "scale_embedding": False,
            "tied_embeddings": True,
        },
        config=_gpt2_config,
        files=_gpt2_files,
        example=lambda model: PIPELINE.format("text-generation"),
        find_problems=find_tokenizer_problems,
    ),
}
