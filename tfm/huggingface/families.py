"""The model families of transformers: how the fields of their configs and their arrays map to tfm."""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from tfm.errors import UserError
from tfm.huggingface.arrays import Entry
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.models.transformer import TransformerConfig
from tfm.systems.bert.model import BertConfig
from tfm.systems.vit.model import ViTConfig

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swish": "swish",
    "silu": "swish",
}
LAYER_NORM_EPSILON = 1e-5  # fixed in BART and its relatives
# {array that is a copy in files of transformers: parameter of tfm with the same content}
COPIES = {
    "lm_head.weight": "embedding/table",
    "model.shared.weight": "source_embedding/table",
    "model.encoder.embed_tokens.weight": "embedding/table",
    "model.decoder.embed_tokens.weight": "embedding/table",
    "encoder.embed_tokens.weight": "embedding/table",
    "decoder.embed_tokens.weight": "embedding/table",
    "model.decoder.output_projection.weight": "embedding/table",
    "cls.predictions.decoder.weight": "embedding/table",
    "cls.predictions.decoder.bias": "embedding/bias",
}
# Arrays that no model reads: masks in the files of GPT-2, and a table in the first files of T5.
UNUSED = re.compile(
    r"transformer\.h\.\d+\.attn\.(masked_)?bias"
    r"|decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
    r"|bert\.pooler\.dense\.(weight|bias)"  # of token classifiers
)
SINUSOIDS = re.compile(r"model\.(encoder|decoder)\.embed_positions\.weights?")
TWO_LABELS = {"0": "LABEL_0", "1": "LABEL_1"}  # names that transformers leaves out of config.json
MISSING = object()


class Fields:
    """The fields of a config.json.

    Args:
      values: {name of a field: value}.
      path: path of the file, for messages.
      arrays: names of the arrays of the model.
    """

    def __init__(self, values: Mapping[str, Any], path: str, arrays: Collection[str] = ()):
        self._values = values
        self.path = path
        self.arrays = arrays

    def get(self, name: str, kind: type, default: Any = MISSING) -> Any:
        """Returns the value of a field.

        Raises:
          UserError: if the value is not a `kind`, or is missing and there is no default. An int is accepted
            as a float, and null if the default is None.
        """
        value = self._values.get(name, default)
        if kind is float and type(value) is int:
            value = float(value)
        if value is None and default is None:
            return None
        if type(value) is not kind:
            shown = "it is missing" if value is MISSING else f"got {value!r}"
            raise UserError(f"{self.path}: expected {name} to be of type {kind.__name__}, but {shown}.")
        return value

    def require(self, name: str, expected: Any) -> None:
        """Raises a UserError if the file has a value of the field that differs from `expected`."""
        value = self._values.get(name, expected)
        if value != expected:
            raise UserError(
                f"{self.path}: expected {name} to be {expected!r}, got {value!r}. tfm has no such model."
            )

    def activation(self, name: str, default: Any = MISSING) -> tuple[str, bool]:
        """Returns the name of the activation in tfm, and whether it has a gate ("gated-" in T5)."""
        value = self.get(name, str, default)
        plain = value.removeprefix("gated-")
        gated = plain != value
        if plain not in ACTIVATIONS:
            raise UserError(
                f"{self.path}: expected {name} to be one of {', '.join(ACTIVATIONS)}, got {value!r}. tfm "
                "has no such model."
            )
        return "gelu_tanh" if gated and plain == "gelu" else ACTIVATIONS[plain], gated  # as T5 reads it


@dataclasses.dataclass(frozen=True)
class Family:
    """A model family.

    Attributes:
      architecture: name of the class in transformers.
      task: task in tfm. A head of BERT that classifies has another task, see `find_task`.
      prefix: beginning of the names of most arrays. It is missing in files of a model without its head.
      model: maps the fields of config.json to the config of a model.
      entries: maps the config of a model and the fields to the entries of its parameters.
      sines_first: whether the family has the sinusoids of the paper in the order of `arrays.sines_first`.
    """

    architecture: str
    task: str
    prefix: str
    model: Callable[[Fields], Any]
    entries: Callable[[Any, Fields], Iterator[Entry]]
    sines_first: bool = False

    def find_task(self, model: Any) -> str:
        """Returns the task of a model in tfm."""
        return self.task if getattr(model, "head", "pretraining") == "pretraining" else "text_classification"


# BART and the families with its names


def _bart_model(fields: Fields, **more: Any) -> TransformerConfig:
    """Returns the config of BART, Marian, mBART or M2M-100. They differ only in `more`."""
    heads = fields.get("encoder_attention_heads", int)
    fields.require("decoder_attention_heads", heads)
    hidden = fields.get("encoder_ffn_dim", int)
    fields.require("decoder_ffn_dim", hidden)
    activation, _ = fields.activation("activation_function")
    return TransformerConfig(
        d_model=fields.get("d_model", int),
        d_ff=hidden,
        heads=heads,
        attention_bias=True,
        activation=activation,
        layer_norm_epsilon=LAYER_NORM_EPSILON,
        encoder_layers=fields.get("encoder_layers", int),
        decoder_layers=fields.get("decoder_layers", int),
        scale_embedding=fields.get("scale_embedding", bool, False),
        dropout=fields.get("dropout", float, 0.1),
        attention_dropout=fields.get("attention_dropout", float, 0.0),
        feed_forward_dropout=fields.get("activation_dropout", float, 0.0),
        max_positions=fields.get("max_position_embeddings", int),
        logits_bias=True,
        **more,
    )


def marian_model(fields: Fields) -> TransformerConfig:
    """Returns the config of MarianMT (OPUS-MT)."""
    shared = fields.get("share_encoder_decoder_embeddings", bool, True)
    fields.require("tie_word_embeddings", True)
    fields.require("normalize_before", False)
    fields.require("normalize_embedding", False)
    fields.require("add_final_layer_norm", False)
    fields.require("static_position_embeddings", True)
    return _bart_model(fields, positions="interleaved", tied_embeddings="three" if shared else "two")


def bart_model(fields: Fields) -> TransformerConfig:
    """Returns the config of BART."""
    return _bart_model(fields, positions="learned", embedding_norm=True)


def mbart_model(fields: Fields) -> TransformerConfig:
    """Returns the config of mBART."""
    return _bart_model(fields, positions="learned", embedding_norm=True, norm_order="pre")


def m2m_100_model(fields: Fields) -> TransformerConfig:
    """Returns the config of M2M-100 and NLLB."""
    return _bart_model(fields, positions="concatenated", first_position=2, norm_order="pre")


def _linear(ours: str, theirs: str, layout: str = "linear", **more: Any) -> Iterator[Entry]:
    yield Entry(f"{ours}/kernel", f"{theirs}.weight", layout, **more)
    yield Entry(f"{ours}/bias", f"{theirs}.bias", **more)


def _norm(ours: str, theirs: str) -> Iterator[Entry]:
    yield Entry(f"{ours}/scale", f"{theirs}.weight")
    yield Entry(f"{ours}/bias", f"{theirs}.bias")


def _encoder_layer(i: int, theirs: str, queries: str, norms: tuple[str, str]) -> Iterator[Entry]:
    """Yields the entries of layer i of BERT or ViT. They differ in the names of queries and norms."""
    ours = f"encoder/layers_{i}"
    for name in ("query", "key", "value"):
        yield from _linear(f"{ours}/self_attention/{name}", f"{theirs}.attention.{queries}.{name}")
    yield from _linear(f"{ours}/self_attention/output", f"{theirs}.attention.output.dense")
    yield from _linear(f"{ours}/feed_forward/hidden", f"{theirs}.intermediate.dense")
    yield from _linear(f"{ours}/feed_forward/output", f"{theirs}.output.dense")
    for residual, norm in zip(("self_attention_residual", "feed_forward_residual"), norms, strict=True):
        yield from _norm(f"{ours}/{residual}/norm", f"{theirs}.{norm}")


def bart_entries(
    model: TransformerConfig, fields: Fields, bias: str = "final_logits_bias"
) -> Iterator[Entry]:
    """Yields the entries of BART, Marian, mBART and M2M-100."""
    if model.tied_embeddings == "three":
        yield Entry("embedding/table", "model.shared.weight", "tokens")
    else:
        yield Entry("source_embedding/table", "model.encoder.embed_tokens.weight", "tokens")
        yield Entry("embedding/table", "model.decoder.embed_tokens.weight", "tokens")
    if bias:
        yield Entry("embedding/bias", bias, "token_row", optional=True)
    for stack, depth in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        if model.positions == "learned":
            yield Entry(f"{stack}_positions/table", f"model.{stack}.embed_positions.weight", skip=2)
        if model.embedding_norm:
            yield from _norm(f"{stack}_embedding_norm", f"model.{stack}.layernorm_embedding")
        if model.norm_order == "pre":
            yield from _norm(f"{stack}/norm", f"model.{stack}.layer_norm")
        for i in range(depth):
            ours, theirs = f"{stack}/layers_{i}", f"model.{stack}.layers.{i}"
            attentions = {"self_attention": "self_attn"}
            if stack == "decoder":
                attentions["cross_attention"] = "encoder_attn"
            for attention, their_attention in attentions.items():
                module = f"{theirs}.{their_attention}"
                for name, short in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out")):
                    yield from _linear(f"{ours}/{attention}/{name}", f"{module}.{short}_proj")
                yield from _norm(f"{ours}/{attention}_residual/norm", f"{module}_layer_norm")
            yield from _linear(f"{ours}/feed_forward/hidden", f"{theirs}.fc1")
            yield from _linear(f"{ours}/feed_forward/output", f"{theirs}.fc2")
            yield from _norm(f"{ours}/feed_forward_residual/norm", f"{theirs}.final_layer_norm")


def m2m_100_entries(model: TransformerConfig, fields: Fields) -> Iterator[Entry]:
    """Yields the entries of M2M-100 and NLLB."""
    return bart_entries(model, fields, bias="")


# T5


def t5_model(fields: Fields) -> TransformerConfig:
    """Returns the config of T5 and T5 v1.1."""
    fields.require("relative_attention_num_buckets", 32)
    fields.require("relative_attention_max_distance", 128)
    activation, gated = fields.activation("feed_forward_proj", "relu")
    depth = fields.get("num_layers", int)
    return TransformerConfig(
        d_model=fields.get("d_model", int),
        d_ff=fields.get("d_ff", int),
        heads=fields.get("num_heads", int),
        key_features=fields.get("d_kv", int),
        value_features=fields.get("d_kv", int),
        scale_attention=False,
        activation=activation,
        gated=gated,
        norm="rms_norm",
        norm_order="pre",
        layer_norm_epsilon=fields.get("layer_norm_epsilon", float, 1e-6),
        encoder_layers=depth,
        decoder_layers=fields.get("num_decoder_layers", int, depth),
        scale_embedding=False,
        dropout=fields.get("dropout_rate", float, 0.1),
        positions="relative_bias",
        logits_bias=True,
        tied_embeddings="none" if "lm_head.weight" in fields.arrays else "three",
    )


def t5_entries(model: TransformerConfig, fields: Fields) -> Iterator[Entry]:
    """Yields the entries of T5."""
    yield Entry("embedding/table", "shared.weight", "tokens")
    scales = fields.get("scale_decoder_outputs", bool, fields.get("tie_word_embeddings", bool, True))
    if model.tied_embeddings == "none":
        yield Entry("source_embedding/table", "shared.weight", "tokens")
        yield Entry("embedding/output", "lm_head.weight", "tokens")
    for stack, depth in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        factor = model.d_model**-0.5 if scales and stack == "decoder" else 1.0
        yield Entry(f"{stack}/norm/scale", f"{stack}.final_layer_norm.weight", factor=factor)
        for i in range(depth):
            ours, theirs = f"{stack}/layers_{i}", f"{stack}.block.{i}.layer"
            first = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            yield Entry(f"{ours}/self_attention/position_bias/biases", first)
            attentions = {"self_attention": "SelfAttention"}
            if stack == "decoder":
                attentions["cross_attention"] = "EncDecAttention"
            for j, (attention, their_attention) in enumerate(attentions.items()):
                for name in ("query", "key", "value", "output"):
                    kernel = f"{theirs}.{j}.{their_attention}.{name[0]}.weight"
                    yield Entry(f"{ours}/{attention}/{name}/kernel", kernel, "linear")
                yield Entry(f"{ours}/{attention}_residual/norm/scale", f"{theirs}.{j}.layer_norm.weight")
            last = f"{theirs}.{len(attentions)}"
            names = {"hidden": "wi_0", "gate": "wi_1"} if model.gated else {"hidden": "wi"}
            for name, short in {**names, "output": "wo"}.items():
                kernel = f"{last}.DenseReluDense.{short}.weight"
                yield Entry(f"{ours}/feed_forward/{name}/kernel", kernel, "linear")
                yield Entry(f"{ours}/feed_forward/{name}/bias", "")
            yield Entry(f"{ours}/feed_forward_residual/norm/scale", f"{last}.layer_norm.weight")


# GPT-2


def gpt2_model(fields: Fields) -> DecoderLMConfig:
    """Returns the config of GPT-2."""
    for name, value in {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    }.items():
        fields.require(name, value)
    d_model = fields.get("n_embd", int)
    activation, _ = fields.activation("activation_function")
    return DecoderLMConfig(
        d_model=d_model,
        d_ff=fields.get("n_inner", int, None) or 4 * d_model,
        heads=fields.get("n_head", int),
        layers=fields.get("n_layer", int),
        activation=activation,
        layer_norm_epsilon=fields.get("layer_norm_epsilon", float),
        max_positions=fields.get("n_positions", int),
        dropout=fields.get("resid_pdrop", float, 0.1),
        attention_dropout=fields.get("attn_pdrop", float, 0.1),
        logits_bias=True,
    )


def gpt2_entries(model: DecoderLMConfig, fields: Fields) -> Iterator[Entry]:
    """Yields the entries of GPT-2."""
    yield Entry("embedding/table", "transformer.wte.weight", "tokens")
    yield Entry("positions/table", "transformer.wpe.weight")
    yield from _norm("decoder/norm", "transformer.ln_f")
    for i in range(model.layers):
        ours, theirs = f"decoder/layers_{i}", f"transformer.h.{i}"
        for part, name in enumerate(("query", "key", "value")):
            yield from _linear(f"{ours}/self_attention/{name}", f"{theirs}.attn.c_attn", "conv1d", part=part)
        yield from _linear(f"{ours}/self_attention/output", f"{theirs}.attn.c_proj", "conv1d")
        yield from _norm(f"{ours}/self_attention_residual/norm", f"{theirs}.ln_1")
        yield from _linear(f"{ours}/feed_forward/hidden", f"{theirs}.mlp.c_fc", "conv1d")
        yield from _linear(f"{ours}/feed_forward/output", f"{theirs}.mlp.c_proj", "conv1d")
        yield from _norm(f"{ours}/feed_forward_residual/norm", f"{theirs}.ln_2")


# ViT


def vit_model(fields: Fields) -> ViTConfig:
    """Returns the config of ViT."""
    labels = fields.get("id2label", dict, TWO_LABELS)
    fields.require("qkv_bias", True)
    activation, _ = fields.activation("hidden_act")
    return ViTConfig(
        image_size=fields.get("image_size", int),
        patch_size=fields.get("patch_size", int),
        channels=fields.get("num_channels", int, 3),
        classes=len(labels),
        encoder_layers=fields.get("num_hidden_layers", int),
        d_model=fields.get("hidden_size", int),
        d_ff=fields.get("intermediate_size", int),
        heads=fields.get("num_attention_heads", int),
        activation=activation,
        attention_bias=True,
        layer_norm_epsilon=fields.get("layer_norm_eps", float),
        dropout=fields.get("hidden_dropout_prob", float, 0.0),
        attention_dropout=fields.get("attention_probs_dropout_prob", float, 0.0),
    )


def vit_entries(model: ViTConfig, fields: Fields) -> Iterator[Entry]:
    """Yields the entries of ViT."""
    yield Entry("class_token", "vit.embeddings.cls_token", "one_row")
    yield Entry("positions/table", "vit.embeddings.position_embeddings", "one_row")
    yield Entry("embedding/kernel", "vit.embeddings.patch_embeddings.projection.weight", "patches")
    yield Entry("embedding/bias", "vit.embeddings.patch_embeddings.projection.bias")
    yield from _norm("encoder/norm", "vit.layernorm")
    yield from _linear("head", "classifier")
    for i in range(model.encoder_layers):
        norms = "layernorm_before", "layernorm_after"
        yield from _encoder_layer(i, f"vit.encoder.layer.{i}", "attention", norms)


# BERT

# {class in transformers: head in tfm}. The last class of a head is the class of an export.
BERT_HEADS = {
    "BertForMaskedLM": "pretraining",
    "BertForPreTraining": "pretraining",
    "BertForSequenceClassification": "classes",
    "BertForTokenClassification": "tags",
}


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
    yield from _norm("embedding_norm", f"{embeddings}.LayerNorm")
    for i in range(model.encoder_layers):
        norms = "attention.output.LayerNorm", "output.LayerNorm"
        yield from _encoder_layer(i, f"bert.encoder.layer.{i}", "self", norms)
    is_pretraining = model.head == "pretraining"
    if model.head != "tags":
        yield from _linear("pooler", "bert.pooler.dense", optional=is_pretraining)
    if not is_pretraining:
        yield from _linear("head", "classifier")
        return
    yield Entry("embedding/bias", "cls.predictions.bias", "tokens")
    yield from _linear("transform", "cls.predictions.transform.dense")
    yield from _norm("transform_norm", "cls.predictions.transform.LayerNorm")
    # In transformers, the class 0 means that the second text follows. In tfm, the class 1 means it.
    yield from _linear("follows", "cls.seq_relationship", optional=True, reverse=True)


FAMILIES = {
    "marian": Family("MarianMTModel", "translation", "model.", marian_model, bart_entries, sines_first=True),
    "bart": Family("BartForConditionalGeneration", "translation", "model.", bart_model, bart_entries),
    "mbart": Family("MBartForConditionalGeneration", "translation", "model.", mbart_model, bart_entries),
    "m2m_100": Family(
        "M2M100ForConditionalGeneration", "translation", "model.", m2m_100_model, m2m_100_entries
    ),
    "t5": Family("T5ForConditionalGeneration", "translation", "", t5_model, t5_entries),
    "gpt2": Family("GPT2LMHeadModel", "language_modeling", "transformer.", gpt2_model, gpt2_entries),
    "bert": Family("BertForPreTraining", "masked_language_modeling", "bert.", bert_model, bert_entries),
    "vit": Family("ViTForImageClassification", "classification", "vit.", vit_model, vit_entries),
}
