"""Export of a run as the folder of a model of Hugging Face transformers: MarianMT, GPT-2, BERT or ViT.

The entries of `families` map the arrays, as for the import. Tokens keep their ids of tfm.
"""

import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm import __version__
from tfm.data.config import SOURCE_VOCABULARY_FILE, VOCABULARY_FILE
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID, source_tokenizer
from tfm.data.tokenizers.tokenizer_json import TokenizerJson
from tfm.data.tokenizers.word_pieces import WordPieces
from tfm.errors import UserError
from tfm.huggingface.arrays import (
    EXCLUDED_LOGIT,
    Arrays,
    Entry,
    permute_features,
    sines_first,
    to_theirs,
)
from tfm.huggingface.families import (
    ACTIVATIONS,
    BERT_HEADS,
    FAMILIES,
    LAYER_NORM_EPSILON,
    Fields,
)
from tfm.huggingface.folder import CONFIG_FILE, SINGLE_FILE
from tfm.huggingface.tokenizer_file import (
    enclose_texts,
    list_ids,
    make_byte_tokenizer,
    make_special,
    renumber,
)
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.models.transformer import TransformerConfig
from tfm.systems.bert.mask import MASK
from tfm.systems.bert.model import BertConfig
from tfm.workdir.bundle import write_tensors

THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
MAX_POSITIONS = 512  # of a MarianMT model, whose tables of sinusoids have a size
EPSILON_TOLERANCE = 1e-5  # a difference of the epsilon that changes logits by about as much
UNKNOWN_PIECE = "<unk>"
# {field: only value} of the fields of a model that no family has. All other fields are free.
COMMON = {
    "key_features": None,
    "value_features": None,
    "key_value_heads": None,
    "scale_attention": True,
    "attention_window": None,
    "gated": False,
    "norm": "layer_norm",
    "deep_norm": False,
    "embedding_norm": False,
    "first_position": 0,
}


class Target(NamedTuple):
    """A family of transformers that a model of tfm can become.

    Attributes:
      family: key of `FAMILIES`.
      required: {field: only value} of the model, in addition to `COMMON`.
      config: returns the fields of config.json for a run.
      files: returns {file name: JSON value} of the tokenizer or the preprocessor for a run and its folder.
    """

    family: str
    required: Mapping[str, Any]
    config: Callable[[Any], dict[str, Any]]
    files: Callable[[Any, str], dict[str, Any]]


def find_problems(config: Any, tokenizer: Any = None) -> Iterator[str]:
    """Yields why transformers has no equivalent of a run, for the config of the run and its tokenizer."""
    model = config.model
    target = TARGETS.get(model.name)
    if target is None:
        yield f"model.name is {model.name!r}, expected {' or '.join(TARGETS)}"
        return
    for name, expected in {**COMMON, **target.required}.items():
        value = getattr(model, name, expected)
        if value != expected:
            yield f"model.{name} is {value!r}, expected {expected!r}"
    if model.activation not in THEIR_ACTIVATIONS:
        yield f"model.activation is {model.activation!r}, expected {' or '.join(THEIR_ACTIVATIONS)}"
    if isinstance(model, TransformerConfig):
        if abs(model.layer_norm_epsilon - LAYER_NORM_EPSILON) > EPSILON_TOLERANCE:
            yield f"model.layer_norm_epsilon is {model.layer_norm_epsilon}, expected {LAYER_NORM_EPSILON}"
        if model.tied_embeddings == "none":
            yield "model.tied_embeddings is 'none', expected 'three' or 'two'"
        if config.data.target_prefix:
            yield f"data.target_prefix is {config.data.target_prefix!r}, expected ''"
        if tokenizer is not None and not isinstance(tokenizer, WordPieces):
            yield f"data.tokenizer is {config.data.tokenizer!r}, expected word_pieces"
    if isinstance(model, DecoderLMConfig | BertConfig):
        kind = config.data.tokenizer
        if kind != "bytes" and not kind.endswith(".json"):
            yield f"data.tokenizer is {kind!r}, expected bytes or the path of a tokenizer.json"


def write_model(run: Any, params: Arrays, workdir: str, folder: str) -> None:
    """Writes config.json, model.safetensors and the tokenizer into a folder that exists.

    Args:
      run: the run.
      params: {name in an export: array} of all parameters.
      workdir: folder of the run with its assets.
      folder: the folder.

    Raises:
      UserError: if transformers has no equivalent of the model. The message has all problems.
    """
    model = run.task.config.model
    tokenizer = getattr(run.task, "tokenizer", None)
    if problems := list(find_problems(run.task.config, tokenizer)):
        raise UserError(
            f"transformers has no such model: {'; '.join(problems)}. Train with the expected values, or use "
            "--format=tfm."
        )
    target = TARGETS[model.name]
    family = FAMILIES[target.family]
    values = {
        "model_type": target.family,
        "architectures": [family.architecture],
        "dtype": "float32",
        "tfm_version": __version__,
        **target.config(run),
    }
    entries = list(family.entries(model, Fields(values, folder)))
    arrays = to_arrays(model, params, entries, is_sines_first=family.sines_first)
    for name, content in {CONFIG_FILE: values, **target.files(run, workdir)}.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, ensure_ascii=False)
    write_tensors(os.path.join(folder, SINGLE_FILE), arrays, {"format": "pt"})
    if target.family == "marian":
        source = os.path.join(workdir, SOURCE_VOCABULARY_FILE)
        vocabulary = os.path.join(workdir, VOCABULARY_FILE)
        shutil.copyfile(source if os.path.exists(source) else vocabulary, os.path.join(folder, "source.spm"))
        shutil.copyfile(vocabulary, os.path.join(folder, "target.spm"))


def to_arrays(
    model: Any, params: Arrays, entries: Sequence[Entry], *, is_sines_first: bool
) -> dict[str, np.ndarray]:
    """Converts the parameters of a model of tfm to the arrays of its equivalent in transformers.

    If the equivalent has a bias of the logits, the biases of padding and BOS become `EXCLUDED_LOGIT`.
    Otherwise, padding gets the embedding of EOS if tfm excludes padding from outputs.

    Args:
      model: the config of the model of tfm.
      params: {name in an export: array} of its parameters.
      entries: the arrays of transformers and the parameters with the same content.
      is_sines_first: see `Family.sines_first`.

    Returns:
      {name in transformers: array}. Parameters that only transformers has, such as biases, are zeros.

    Raises:
      UserError: if the bias of our logits is not 0 and the model of transformers has none.
    """
    ours = {name: np.array(x, np.float32) for name, x in params.items()}
    if "embedding/bias" in ours and not any(entry.ours == "embedding/bias" for entry in entries):
        excluded = ours["embedding/bias"] == EXCLUDED_LOGIT
        if ours["embedding/bias"][~excluded].any():
            raise UserError(
                "transformers has no such model: the bias of the logits, embedding/bias, is not 0. Train "
                "with --config.training.freeze=embedding/bias, or use --format=tfm."
            )
        if excluded[PAD_ID]:  # its row of zeros would have the logit 0, and 0 can be the largest
            ours["embedding/table"][PAD_ID] = ours["embedding/table"][EOS_ID]
    for entry in entries:
        if entry.ours not in ours:
            ours[entry.ours] = _zeros(entry.ours, ours)
    if any(entry.layout == "token_row" for entry in entries):
        ours["embedding/bias"][[PAD_ID, BOS_ID]] = EXCLUDED_LOGIT
    if is_sines_first:
        order = sines_first(model.d_model)
        ours = {name: permute_features(name, x, order) for name, x in ours.items()}
    parts: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for entry in entries:
        x = ours[entry.ours]
        if entry.layout == "token_row":
            x = x.reshape(1, -1)
        elif entry.layout != "tokens":
            x = to_theirs(entry, x, getattr(model, "patch_size", 0))
        parts[entry.theirs][entry.part or 0] = x
    joined = {name: np.concatenate([x for _, x in sorted(of.items())], -1) for name, of in parts.items()}
    return {name: np.ascontiguousarray(x) for name, x in joined.items()}


def _zeros(name: str, params: Arrays) -> np.ndarray:
    """Returns the zeros that replace a bias that the model does not have."""
    if name == "embedding/bias":
        return np.zeros(len(params["embedding/table"]), np.float32)
    kernel = params[name.removesuffix("bias") + "kernel"]
    return np.zeros(kernel.shape[-1:] if "/output/" in name else kernel.shape[1:], np.float32)


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
        **_special_ids(),
    }


def _special_ids() -> dict[str, int]:
    return {"pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID}


def _marian_files(run: Any, workdir: str) -> dict[str, Any]:
    """Returns the vocabularies and how to search. An output never contains padding or BOS."""
    del workdir
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
    files: dict[str, Any] = {
        "vocab.json": source,
        "tokenizer_config.json": details | special,
        "generation_config.json": generation | _special_ids(),
    }
    return files | ({"target_vocab.json": target} if source != target else {})


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
        **_special_ids(),
    }


def _json_files(run: Any, workdir: str) -> dict[str, Any]:
    """Returns the tokenizer.json of the run in the order of its ids, or one for the bytes of texts."""
    if run.task.config.data.tokenizer == "bytes":
        content = make_byte_tokenizer()
    else:
        with open(os.path.join(workdir, VOCABULARY_FILE), "rb") as file:
            serialized = file.read()
        content = renumber(json.loads(serialized), TokenizerJson(serialized).file_ids)
    details = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": content["model"].get("unk_token")}
    roles = {"pad_token": PAD_ID, "bos_token": BOS_ID, "eos_token": EOS_ID}
    pieces = {i: text for text, i in list_ids(content).items()}
    if isinstance(run.task.config.model, BertConfig):
        mask_id = run.task.tokenizer.mask_id
        if mask_id not in pieces:
            pieces[mask_id] = MASK
            content["added_tokens"].append(make_special(MASK, mask_id))
        content["post_processor"] = enclose_texts(pieces[BOS_ID], pieces[EOS_ID])
        roles = {"pad_token": PAD_ID, "cls_token": BOS_ID, "sep_token": EOS_ID, "mask_token": mask_id}
        details["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    details |= {role: pieces[i] for role, i in roles.items()}
    files = {"tokenizer.json": content, "tokenizer_config.json": details}
    if isinstance(run.task.config.model, DecoderLMConfig):
        files["generation_config.json"] = {"suppress_tokens": [PAD_ID, BOS_ID], **_special_ids()}
    return files


def _bert_config(run: Any) -> dict[str, Any]:
    model = run.task.config.model
    names = getattr(run.task, "label_names", [])
    return {
        "architectures": [{head: name for name, head in BERT_HEADS.items()}[model.head]],
        "vocab_size": len(run.task.tokenizer),
        "max_position_embeddings": model.max_positions,
        "type_vocab_size": model.types,
        **_encoder_config(model, names),
        **_special_ids(),
    }


def _vit_config(run: Any) -> dict[str, Any]:
    model = run.task.config.model
    return {
        "image_size": model.image_size,
        "patch_size": model.patch_size,
        "num_channels": model.channels,
        "qkv_bias": True,
        **_encoder_config(model, run.task.label_names),
    }


def _encoder_config(model: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns the fields that BERT and ViT share. `names` are the names of the classes, if there are any."""
    labels = {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    return {
        "hidden_size": model.d_model,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": model.encoder_layers,
        "num_attention_heads": model.heads,
        "hidden_act": THEIR_ACTIVATIONS[model.activation],
        "layer_norm_eps": model.layer_norm_epsilon,
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
        **(labels if names else {}),
    }


def _vit_files(run: Any, workdir: str) -> dict[str, Any]:
    """Returns the preprocessing of images: pixels from -1 to 1, as tfm reads them."""
    del workdir
    size, channels = run.task.config.model.image_size, run.task.config.model.channels
    return {
        "preprocessor_config.json": {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": size, "width": size},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [0.5] * channels,
            "image_std": [0.5] * channels,
        }
    }


TARGETS: dict[str, Target] = {  # by model.name, because the config of another model may have the same class
    "transformer": Target(
        "marian",
        {"norm_order": "post", "positions": "interleaved", "scale_embedding": True},
        _marian_config,
        _marian_files,
    ),
    "decoder_lm": Target(
        "gpt2",
        {"norm_order": "pre", "positions": "learned", "scale_embedding": False, "tied_embeddings": True},
        _gpt2_config,
        _json_files,
    ),
    "bert": Target(
        "bert",
        {"norm_order": "post", "positions": "learned", "embedding_norm": True},
        _bert_config,
        _json_files,
    ),
    "vit": Target("vit", {"norm_order": "pre", "positions": "learned"}, _vit_config, _vit_files),
}
