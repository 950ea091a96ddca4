"""BERT in transformers: the fields of its config, its arrays and its tokenizer, in both directions."""

import os
import re
from collections.abc import Iterator
from typing import Any

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
from tfm.systems.bert.mask import MASK
from tfm.systems.bert.masked_pairs import SentencesConfig
from tfm.systems.bert.model import BertConfig

# {class in transformers: head in tfm}. The last class of a head is the class of an export.
BERT_HEADS = {
    "BertForMaskedLM": "pretraining",
    "BertForPreTraining": "pretraining",
    "BertForSequenceClassification": "classes",
    "BertForTokenClassification": "tags",
}
PIPELINES = {"pretraining": "fill-mask", "classes": "text-classification", "tags": "token-classification"}
COPIES = {
    "cls.predictions.decoder.weight": "embedding/table",
    "cls.predictions.decoder.bias": "embedding/bias",
}
POOLERS = re.compile(r"bert\.pooler\.dense\.(weight|bias)")  # of token classifiers


def bert_model(fields: Fields) -> BertConfig:
    """Returns the config of BERT. The class that wrote the file decides the head."""
    architectures = fields.get("architectures", list)
    head = BERT_HEADS.get(str(architectures[0])) if len(architectures) == 1 else None
    if head is None:
        raise UserError(
            f"{fields.path}: expected architectures to be one of {', '.join(BERT_HEADS)}, got "
            f"{architectures!r}. Save the model by one of these classes of transformers."
        )
    for name, value in {
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        "position_embedding_type": "absolute",
    }.items():
        fields.require(name, value)
    if fields.get("problem_type", str, None) is not None:
        fields.require("problem_type", "single_label_classification")
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
        max_positions=fields.get("max_position_embeddings", int),
        types=fields.get("type_vocab_size", int, 2),
        head=head,
        classes=2 if head == "pretraining" else len(fields.get("id2label", dict, TWO_LABELS)),
    )


def bert_entries(model: BertConfig, fields: Fields) -> Iterator[Entry]:
    """Yields the entries of BERT. BertForMaskedLM has no layers for the next sentence: they become zeros."""
    embeddings = "bert.embeddings"
    yield Entry("embedding/table", f"{embeddings}.word_embeddings.weight", "tokens")
    yield Entry("positions/table", f"{embeddings}.position_embeddings.weight")
    yield Entry("types/table", f"{embeddings}.token_type_embeddings.weight")
    yield from norm_entries("embedding_norm", f"{embeddings}.LayerNorm")
    for i in range(model.encoder_layers):
        norms = "attention.output.LayerNorm", "output.LayerNorm"
        yield from encoder_layer_entries(i, f"bert.encoder.layer.{i}", "self", norms)
    is_pretraining = model.head == "pretraining"
    if model.head != "tags":
        yield from linear_entries("pooler", "bert.pooler.dense", optional=is_pretraining)
    if not is_pretraining:
        yield from linear_entries("head", "classifier")
        return
    yield Entry("embedding/bias", "cls.predictions.bias", "tokens")
    yield from linear_entries("transform", "cls.predictions.transform.dense")
    yield from norm_entries("transform_norm", "cls.predictions.transform.LayerNorm")
    # In transformers, the class 0 means that the second text follows. In tfm, the class 1 means it.
    yield from linear_entries("follows", "cls.seq_relationship", optional=True, reverse=True)


def read_bert(folder: str, fields: Fields, languages: Languages) -> Vocabulary:
    """Returns the tokenizer of BERT: word pieces in a tokenizer.json or a vocab.txt.

    BOS is "[CLS]", and EOS is "[SEP]".
    """
    size = vocabulary_size(fields)
    has_json = os.path.exists(os.path.join(folder, "tokenizer.json"))
    content = read_tokenizer(folder, "tokenizer.json" if has_json else "vocab.txt")
    pieces = [""] * size
    try:
        for text, i in list_ids(content).items():
            pieces[i] = text
        pad, start, end = find_special_ids(pieces, list_flagged(content))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        pad = start = end = -1
    if min(pad, start, end) < 0:
        raise UserError(
            f"Expected the tokenizer of {folder} to have {size:,} ids, and [PAD], [CLS] and [SEP] among "
            "them. Copy the whole folder again."
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
    model = run.task.config.model
    names = getattr(run.task, "label_names", [])
    return {
        "architectures": [{head: name for name, head in BERT_HEADS.items()}[model.head]],
        "vocab_size": len(run.task.tokenizer),
        "max_position_embeddings": model.max_positions,
        "type_vocab_size": model.types,
        **encoder_fields(model, names),
        **special_ids(),
    }


def _bert_files(run: Any, workdir: str) -> dict[str, bytes]:
    """Returns the tokenizer, with the mask and with [CLS] and [SEP] around texts."""
    content = read_json_tokenizer(run, workdir)
    pieces = {i: text for text, i in list_ids(content).items()}
    mask_id = run.task.tokenizer.mask_id
    if mask_id not in pieces:
        content["added_tokens"].append(make_special(MASK, mask_id))
    content["post_processor"] = enclose_texts(pieces[BOS_ID], pieces[EOS_ID])
    roles = {"pad_token": PAD_ID, "cls_token": BOS_ID, "sep_token": EOS_ID, "mask_token": mask_id}
    details = describe_tokenizer(content, roles)
    details["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return {"tokenizer.json": to_json(content), "tokenizer_config.json": to_json(details)}


FAMILIES = {
    "bert": Family(
        architecture="BertForPreTraining",
        prefix="bert.",
        model=bert_model,
        entries=bert_entries,
        make_config=make_config,
        read_vocabulary=read_bert,
        has_labels=lambda model: model.head != "pretraining",
        copies=COPIES,
        unused=POOLERS,
    )
}
TARGETS = {
    "bert": Target(
        model_type="bert",
        family=FAMILIES["bert"],
        required={"norm_order": "post", "positions": "learned", "embedding_norm": True},
        config=_bert_config,
        files=_bert_files,
        example=lambda model: PIPELINE.format(PIPELINES[model.head]),
        find_problems=find_tokenizer_problems,
    )
}
