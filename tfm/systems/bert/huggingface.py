"""BERT, RoBERTa and DistilBERT in transformers: the fields of their configs, arrays and tokenizers.

BERT is imported and exported, the others are only imported. A class without output layers, such as BertModel,
becomes a model of pretraining whose pooler and transform have new random values, for a warm start.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tfm import tasks
from tfm.data.config import TOKENIZER_JSON, VOCABULARY_FILE
from tfm.data.tokenizers.file_tokenizer import find_special_ids
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID
from tfm.data.tokenizers.tokenizer_json import list_flagged
from tfm.errors import UserError
from tfm.huggingface.arrays import Entry, TokenOrder
from tfm.huggingface.family import (
    PIPELINE,
    Family,
    Target,
    encoder_fields,
    encoder_layer_entries,
    linear_entries,
    norm_entries,
    special_ids,
    to_json,
)
from tfm.huggingface.fields import TWO_LABELS, Fields
from tfm.huggingface.targets import describe_tokenizer, find_tokenizer_problems, read_json_tokenizer
from tfm.huggingface.tokenizer_file import enclose_texts, list_ids, make_special
from tfm.huggingface.vocabulary import (
    Languages,
    Vocabulary,
    read_tokenizer,
    renumber_tokenizer,
    vocabulary_size,
)
from tfm.systems.bert.labelled_texts import LabelledConfig
from tfm.systems.bert.mask import MASK, MaskTokenizer
from tfm.systems.bert.masked_pairs import SentencesConfig
from tfm.systems.bert.model import INITIAL_DEVIATION, BertConfig

# {class in transformers: head in tfm}. The last class of a head is the class of an export.
BERT_HEADS = {
    "BertModel": "pretraining",
    "BertForMaskedLM": "pretraining",
    "BertForPreTraining": "pretraining",
    "BertForSequenceClassification": "classes",
    "BertForTokenClassification": "tags",
}
ROBERTA_HEADS = {
    "RobertaModel": "pretraining",
    "RobertaForMaskedLM": "pretraining",
    "RobertaForSequenceClassification": "classes",
    "RobertaForTokenClassification": "tags",
}
DISTILBERT_HEADS = {
    "DistilBertModel": "pretraining",
    "DistilBertForMaskedLM": "pretraining",
    "DistilBertForSequenceClassification": "classes",
    "DistilBertForTokenClassification": "tags",
}
WITHOUT_HEAD = ("BertModel", "RobertaModel", "DistilBertModel")
PIPELINES = {
    "pretraining": "fill-mask",
    "classes": "text-classification",
    "regression": "text-classification",
    "tags": "token-classification",
}
COPIES = {
    "cls.predictions.decoder.weight": "embedding/table",
    "cls.predictions.decoder.bias": "embedding/bias",
}
ROBERTA_COPIES = {"lm_head.decoder.weight": "embedding/table", "lm_head.decoder.bias": "embedding/bias"}
DISTILBERT_COPIES = {"vocab_projector.weight": "embedding/table"}
POOLERS = re.compile(r"(bert|roberta)\.pooler\.dense\.(weight|bias)")  # of token classifiers
NEW_VALUES_SEED = 0  # of layers that a folder lacks
DISTILBERT_EPSILON = 1e-12  # fixed in its code
# Of a model that predicts a number.
REGRESSION_FIELDS = {
    "problem_type": "regression",
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
}
log = logging.getLogger(__name__)


def _find_head(fields: Fields, heads: Mapping[str, str]) -> str:
    """Returns the head of the class that wrote the folder. A class with a single label predicts a number."""
    architectures = fields.get("architectures", list)
    head = heads.get(str(architectures[0])) if len(architectures) == 1 else None
    if head is None:
        raise UserError(
            f"{fields.path}: expected architectures to be one of {', '.join(heads)}, got {architectures!r}. "
            "Save the model by one of these classes of transformers."
        )
    is_regression = head == "classes" and _count_labels(fields) == 1
    if fields.get("problem_type", str, None) is not None:
        fields.require("problem_type", "regression" if is_regression else "single_label_classification")
    return "regression" if is_regression else head


def _count_labels(fields: Fields) -> int:
    """Returns the number of labels. transformers leaves out the names of two labels."""
    return len(fields.get("id2label", dict, TWO_LABELS))


def _has_no_head(fields: Fields) -> bool:
    """Returns whether the class that wrote the folder has no output layers."""
    return fields.get("architectures", list)[0] in WITHOUT_HEAD


def _label_fields(fields: Fields, heads: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields `head` and `classes` of a model."""
    head = _find_head(fields, heads)
    return {"head": head, "classes": _count_labels(fields) if head in ("classes", "tags") else 2}


def bert_model(fields: Fields) -> BertConfig:
    """Returns the config of BERT. The class that wrote the file decides the head."""
    return _make_model(fields, BERT_HEADS, first_position=0)


def roberta_model(fields: Fields) -> BertConfig:
    """Returns the config of RoBERTa, whose positions begin after the id of padding."""
    return _make_model(fields, ROBERTA_HEADS, first_position=_first_position(fields))


def _first_position(fields: Fields) -> int:
    """Returns the row of the table of positions for the first token of a text in RoBERTa."""
    return fields.get("pad_token_id", int, 1) + 1


def _make_model(fields: Fields, heads: Mapping[str, str], first_position: int) -> BertConfig:
    """Returns the config of BERT or RoBERTa.

    Args:
      fields: fields of config.json.
      heads: {class in transformers: head in tfm}.
      first_position: number of rows at the beginning of the table of positions that no text has.
    """
    labels = _label_fields(fields, heads)
    for name, value in {
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        "position_embedding_type": "absolute",
    }.items():
        fields.require(name, value)
    activation, _ = fields.activation("hidden_act", "gelu")
    return BertConfig(
        encoder_layers=fields.get("num_hidden_layers", int),
        d_model=fields.get("hidden_size", int),
        d_ff=fields.get("intermediate_size", int),
        heads=fields.get("num_attention_heads", int),
        activation=activation,
        layer_norm_epsilon=fields.get("layer_norm_eps", float, 1e-12),
        dropout=fields.get("hidden_dropout_prob", float, 0.1),
        attention_dropout=fields.get("attention_probs_dropout_prob", float, 0.1),
        max_positions=fields.get("max_position_embeddings", int) - first_position,
        types=fields.get("type_vocab_size", int, 2),
        **labels,
    )


def distilbert_model(fields: Fields) -> BertConfig:
    """Returns the config of DistilBERT. It has no types, and a ReLU before the classes."""
    labels = _label_fields(fields, DISTILBERT_HEADS)
    fields.require("tie_word_embeddings", True)
    activation, _ = fields.activation("activation", "gelu")
    return BertConfig(
        encoder_layers=fields.get("n_layers", int, 6),
        d_model=fields.get("dim", int, 768),
        d_ff=fields.get("hidden_dim", int, 3072),
        heads=fields.get("n_heads", int, 12),
        activation=activation,
        layer_norm_epsilon=DISTILBERT_EPSILON,
        dropout=fields.get("dropout", float, 0.1),
        attention_dropout=fields.get("attention_dropout", float, 0.1),
        max_positions=fields.get("max_position_embeddings", int, 512),
        types=0,
        pooler_activation="relu",
        **labels,
    )


def bert_entries(model: BertConfig, fields: Fields) -> Iterator[Entry]:
    """Yields the entries of BERT.

    BertForMaskedLM has no pooler and no layer for the next sentence, and BertModel has no output layers. The
    entries make them zeros, which `fill_missing_layers` replaces except in the layer for the next sentence.
    """
    yield from _embedding_entries(model, "bert.embeddings")
    for i in range(model.encoder_layers):
        norms = "attention.output.LayerNorm", "output.LayerNorm"
        yield from encoder_layer_entries(i, f"bert.encoder.layer.{i}", "self", norms)
    is_pretraining = model.head == "pretraining"
    if model.head != "tags":
        yield from linear_entries("pooler", "bert.pooler.dense", optional=is_pretraining)
    if not is_pretraining:
        yield from linear_entries("head", "classifier")
        return
    names = "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"
    yield from _transform_entries(*names, optional=_has_no_head(fields))
    # In transformers, the class 0 means that the second text follows. In tfm, the class 1 means it.
    yield from linear_entries("follows", "cls.seq_relationship", optional=True, reverse=True)


def _embedding_entries(model: BertConfig, theirs: str, first_position: int = 0) -> Iterator[Entry]:
    """Yields the entries of the embeddings and of their norm."""
    yield Entry("embedding/table", f"{theirs}.word_embeddings.weight", "tokens")
    yield Entry("positions/table", f"{theirs}.position_embeddings.weight", skip=first_position)
    if model.types:
        yield Entry("types/table", f"{theirs}.token_type_embeddings.weight")
    yield from norm_entries("embedding_norm", f"{theirs}.LayerNorm")


def _transform_entries(dense: str, norm: str, bias: str, *, optional: bool) -> Iterator[Entry]:
    """Yields the entries of the layers that predict hidden tokens.

    Args:
      dense, norm, bias: names of the layers and of the bias of the logits in transformers.
      optional: whether the folder may lack them.
    """
    yield Entry("embedding/bias", bias, "tokens", optional=optional)
    yield from linear_entries("transform", dense, optional=optional)
    for entry in norm_entries("transform_norm", norm):
        yield entry._replace(optional=optional)


def roberta_entries(model: BertConfig, fields: Fields) -> Iterator[Entry]:
    """Yields the entries of RoBERTa. It has no layer for the next sentence. For zeros see `bert_entries`."""
    yield from _embedding_entries(model, "roberta.embeddings", _first_position(fields))
    for i in range(model.encoder_layers):
        norms = "attention.output.LayerNorm", "output.LayerNorm"
        yield from encoder_layer_entries(i, f"roberta.encoder.layer.{i}", "self", norms)
    if model.head == "tags":
        yield from linear_entries("head", "classifier")
    elif model.head != "pretraining":
        yield from linear_entries("pooler", "classifier.dense")
        yield from linear_entries("head", "classifier.out_proj")
    else:
        yield from linear_entries("pooler", "roberta.pooler.dense", optional=True)
        names = "lm_head.dense", "lm_head.layer_norm", "lm_head.bias"
        yield from _transform_entries(*names, optional=_has_no_head(fields))
        yield from _zero_entries("follows")


def distilbert_entries(model: BertConfig, fields: Fields) -> Iterator[Entry]:
    """Yields the entries of DistilBERT. It has no pooler and no layer for the next sentence.

    For zeros see `bert_entries`.
    """
    yield from _embedding_entries(model, "distilbert.embeddings")
    for i in range(model.encoder_layers):
        ours, theirs = f"encoder/layers_{i}", f"distilbert.transformer.layer.{i}"
        for name, short in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out")):
            yield from linear_entries(f"{ours}/self_attention/{name}", f"{theirs}.attention.{short}_lin")
        yield from norm_entries(f"{ours}/self_attention_residual/norm", f"{theirs}.sa_layer_norm")
        yield from linear_entries(f"{ours}/feed_forward/hidden", f"{theirs}.ffn.lin1")
        yield from linear_entries(f"{ours}/feed_forward/output", f"{theirs}.ffn.lin2")
        yield from norm_entries(f"{ours}/feed_forward_residual/norm", f"{theirs}.output_layer_norm")
    if model.head == "pretraining":
        names = "vocab_transform", "vocab_layer_norm", "vocab_projector.bias"
        yield from _transform_entries(*names, optional=_has_no_head(fields))
        yield from _zero_entries("pooler")
        yield from _zero_entries("follows")
        return
    if model.head != "tags":
        yield from linear_entries("pooler", "pre_classifier")
    yield from linear_entries("head", "classifier")


def _zero_entries(ours: str) -> Iterator[Entry]:
    """Yields the entries of a linear layer that transformers lacks."""
    yield Entry(f"{ours}/kernel", "")
    yield Entry(f"{ours}/bias", "")


def fill_missing_layers(folder: str, model: BertConfig, parameters: dict[str, np.ndarray]) -> None:
    """Gives new random values to the pooler and the transform if a folder lacks them, as transformers does.

    Such a layer is zero before, and would learn slowly after a warm start. The layer of the next sentence
    stays zero: it predicts 0.5, and its gradient is not zero.

    Args:
      folder: the folder, for the message.
      model: config of the model.
      parameters: {name in an export: array}, changed in place.
    """
    layers = ["pooler", "transform"] if model.head == "pretraining" else []
    missing = [layer for layer in layers if not parameters[f"{layer}/kernel"].any()]
    rng = np.random.default_rng(NEW_VALUES_SEED)
    for layer in missing:
        kernel = rng.normal(0, INITIAL_DEVIATION, parameters[f"{layer}/kernel"].shape)
        parameters[f"{layer}/kernel"] = kernel.astype(np.float32)
    if "transform" in missing:
        parameters["transform_norm/scale"] = np.ones_like(parameters["transform_norm/scale"])
    if missing:
        log.warning(
            "%s lacks the layers %s of pretraining. They get new random values: train them before you use "
            "their predictions.",
            folder,
            " and ".join(missing),
        )


def read_bert(folder: str, fields: Fields, languages: Languages) -> Vocabulary:
    """Returns the tokenizer of BERT or DistilBERT: word pieces in a tokenizer.json or a vocab.txt.

    BOS is "[CLS]", and EOS is "[SEP]".
    """
    has_json = os.path.exists(os.path.join(folder, "tokenizer.json"))
    content = read_tokenizer(folder, "tokenizer.json" if has_json else "vocab.txt")
    return _make_vocabulary(folder, fields, content, languages)


def read_roberta(folder: str, fields: Fields, languages: Languages) -> Vocabulary:
    """Returns the tokenizer of RoBERTa: bytes in a tokenizer.json. BOS is "<s>", and EOS is "</s>"."""
    return _make_vocabulary(folder, fields, read_tokenizer(folder), languages)


def _make_vocabulary(
    folder: str, fields: Fields, content: dict[str, Any], languages: Languages
) -> Vocabulary:
    """Returns a tokenizer in the order of the ids of tfm.

    Args:
      folder: the folder, for messages.
      fields: fields of config.json.
      content: content of the tokenizer.json.
      languages: the languages that the user named.

    Raises:
      UserError: if the tokenizer lacks a special token, or has an id above `vocab_size`.
    """
    size = vocabulary_size(fields)
    pieces = [""] * size
    try:
        for text, i in list_ids(content).items():
            pieces[i] = text
        pad, start, end = find_special_ids(pieces, list_flagged(content))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        pad = start = end = -1
    if min(pad, start, end) < 0:
        raise UserError(
            f"Expected the tokenizer of {folder} to have {size:,} ids, and among them [PAD], [CLS] and "
            "[SEP] or <pad>, <s> and </s>. Copy the whole folder again."
        )
    order = TokenOrder(size, pad=pad, start=start, end=end)
    return Vocabulary(order, {VOCABULARY_FILE: renumber_tokenizer(folder, content, order)}, languages)


def make_config(model: BertConfig, vocabulary: Vocabulary | None) -> Any:
    """Returns the config of an export. The head of the model decides the task."""
    del vocabulary
    if model.head == "pretraining":
        length = min(model.max_positions, SentencesConfig.row_length)
        data: Any = SentencesConfig(tokenizer=TOKENIZER_JSON, row_length=length)
        return tasks.find("masked_language_modeling").Config(model=model, data=data)
    length = min(model.max_positions, LabelledConfig.max_length)
    data = LabelledConfig(tokenizer=TOKENIZER_JSON, max_length=length)
    return tasks.find("text_classification").Config(model=model, data=data)


def _bert_config(run: Any) -> dict[str, Any]:
    """Returns the fields of config.json for a run."""
    model = run.task.config.model
    names = run.task.label_names if _has_labels(model) else []
    return {
        "architectures": [_architecture(model.head)],
        "vocab_size": len(run.task.tokenizer),
        "max_position_embeddings": model.max_positions,
        "type_vocab_size": model.types,
        **encoder_fields(model, names),
        **special_ids(),
        **(REGRESSION_FIELDS if model.head == "regression" else {}),
    }


def _architecture(head: str) -> str:
    """Returns the class of an export. transformers has one class for classes and for a number."""
    return {head: name for name, head in BERT_HEADS.items()}["classes" if head == "regression" else head]


def _find_problems(config: Any, tokenizer: MaskTokenizer) -> Iterator[str]:
    """Yields what a run has that BERT lacks in transformers."""
    if not config.model.types:
        yield "model.types is 0, expected at least 1"
    yield from find_tokenizer_problems(config, tokenizer.unmasked)


def _bert_files(run: Any, workdir: str) -> dict[str, bytes]:
    """Returns the tokenizer, with the mask and with [CLS] and [SEP] around texts."""
    content = read_json_tokenizer(run, workdir)
    pieces = {i: text for text, i in list_ids(content).items()}
    mask_id = run.task.tokenizer.mask_id
    if mask_id not in pieces:
        content["added_tokens"].append(make_special(MASK, mask_id))
    content["post_processor"] = enclose_texts(pieces[BOS_ID], BOS_ID, pieces[EOS_ID], EOS_ID)
    roles = {"pad_token": PAD_ID, "cls_token": BOS_ID, "sep_token": EOS_ID, "mask_token": mask_id}
    details = describe_tokenizer(content, roles)
    details["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return {"tokenizer.json": to_json(content), "tokenizer_config.json": to_json(details)}


def _has_labels(model: BertConfig) -> bool:
    """Returns whether the classes of a model have names."""
    return model.head in ("classes", "tags")


FAMILIES = {
    "bert": Family(
        architecture="BertForPreTraining",
        prefix="bert.",
        model=bert_model,
        entries=bert_entries,
        make_config=make_config,
        read_vocabulary=read_bert,
        has_labels=_has_labels,
        finish=fill_missing_layers,
        copies=COPIES,
        unused=POOLERS,
    ),
    "roberta": Family(
        architecture="RobertaForMaskedLM",
        prefix="roberta.",
        model=roberta_model,
        entries=roberta_entries,
        make_config=make_config,
        read_vocabulary=read_roberta,
        has_labels=_has_labels,
        finish=fill_missing_layers,
        copies=ROBERTA_COPIES,
        unused=POOLERS,
    ),
    "distilbert": Family(
        architecture="DistilBertForMaskedLM",
        prefix="distilbert.",
        model=distilbert_model,
        entries=distilbert_entries,
        make_config=make_config,
        read_vocabulary=read_bert,
        has_labels=_has_labels,
        finish=fill_missing_layers,
        copies=DISTILBERT_COPIES,
    ),
}
TARGETS = {
    "bert": Target(
        model_type="bert",
        family=FAMILIES["bert"],
        required={
            "norm_order": "post",
            "positions": "learned",
            "embedding_norm": True,
            "pooler_activation": "tanh",
        },
        config=_bert_config,
        files=_bert_files,
        example=lambda model: PIPELINE.format(PIPELINES[model.head]),
        find_problems=_find_problems,
    )
}
