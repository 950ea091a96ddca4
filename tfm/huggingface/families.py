"""The model families of the core: how the fields of their configs and their arrays map to tfm."""

import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any

from tfm import tasks
from tfm.data.config import TOKENIZER_JSON, DocumentsConfig
from tfm.huggingface.arrays import Entry
from tfm.huggingface.family import Family, linear_entries, norm_entries
from tfm.huggingface.fields import Fields
from tfm.huggingface.vocabulary import (
    Vocabulary,
    read_bart,
    read_gpt2,
    read_m2m_100,
    read_marian,
    read_mbart,
    read_t5,
)
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.models.transformer import TransformerConfig
from tfm.training.config import TrainingConfig

LAYER_NORM_EPSILON = 1e-5  # fixed in BART and its relatives
MAX_STRIDE = 512  # tokens of context that a window of a long document adds
COPIES = {
    "lm_head.weight": "embedding/table",
    "model.shared.weight": "source_embedding/table",
    "model.encoder.embed_tokens.weight": "embedding/table",
    "model.decoder.embed_tokens.weight": "embedding/table",
    "encoder.embed_tokens.weight": "embedding/table",
    "decoder.embed_tokens.weight": "embedding/table",
    "model.decoder.output_projection.weight": "embedding/table",
}
MASKS = re.compile(r"transformer\.h\.\d+\.attn\.(masked_)?bias")  # of GPT-2
# A table in the first files of T5.
UNUSED_BIASES = re.compile(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight")
SINUSOIDS = re.compile(r"model\.(encoder|decoder)\.embed_positions\.weights?")

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
            yield from norm_entries(f"{stack}_embedding_norm", f"model.{stack}.layernorm_embedding")
        if model.norm_order == "pre":
            yield from norm_entries(f"{stack}/norm", f"model.{stack}.layer_norm")
        for i in range(depth):
            ours, theirs = f"{stack}/layers_{i}", f"model.{stack}.layers.{i}"
            attentions = {"self_attention": "self_attn"}
            if stack == "decoder":
                attentions["cross_attention"] = "encoder_attn"
            for attention, their_attention in attentions.items():
                module = f"{theirs}.{their_attention}"
                for name, short in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out")):
                    yield from linear_entries(f"{ours}/{attention}/{name}", f"{module}.{short}_proj")
                yield from norm_entries(f"{ours}/{attention}_residual/norm", f"{module}_layer_norm")
            yield from linear_entries(f"{ours}/feed_forward/hidden", f"{theirs}.fc1")
            yield from linear_entries(f"{ours}/feed_forward/output", f"{theirs}.fc2")
            yield from norm_entries(f"{ours}/feed_forward_residual/norm", f"{theirs}.final_layer_norm")


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
    activation, _ = fields.activation("activation_function", "gelu_new")
    return DecoderLMConfig(
        d_model=d_model,
        d_ff=fields.get("n_inner", int, None) or 4 * d_model,
        heads=fields.get("n_head", int),
        layers=fields.get("n_layer", int),
        activation=activation,
        layer_norm_epsilon=fields.get("layer_norm_epsilon", float, 1e-5),
        max_positions=fields.get("n_positions", int),
        dropout=fields.get("resid_pdrop", float, 0.1),
        attention_dropout=fields.get("attn_pdrop", float, 0.1),
        logits_bias=True,
    )


def gpt2_entries(model: DecoderLMConfig, fields: Fields) -> Iterator[Entry]:
    """Yields the entries of GPT-2."""
    yield Entry("embedding/table", "transformer.wte.weight", "tokens")
    yield Entry("positions/table", "transformer.wpe.weight")
    yield from norm_entries("decoder/norm", "transformer.ln_f")
    for i in range(model.layers):
        ours, theirs = f"decoder/layers_{i}", f"transformer.h.{i}"
        for part, name in enumerate(("query", "key", "value")):
            projection = f"{ours}/self_attention/{name}"
            yield from linear_entries(projection, f"{theirs}.attn.c_attn", "conv1d", part=part)
        yield from linear_entries(f"{ours}/self_attention/output", f"{theirs}.attn.c_proj", "conv1d")
        yield from norm_entries(f"{ours}/self_attention_residual/norm", f"{theirs}.ln_1")
        yield from linear_entries(f"{ours}/feed_forward/hidden", f"{theirs}.mlp.c_fc", "conv1d")
        yield from linear_entries(f"{ours}/feed_forward/output", f"{theirs}.mlp.c_proj", "conv1d")
        yield from norm_entries(f"{ours}/feed_forward_residual/norm", f"{theirs}.ln_2")


# Configs of exports


def make_translation_config(model: TransformerConfig, vocabulary: Vocabulary | None) -> Any:
    """Returns the config of a translation model with the languages and prefixes of its tokenizer."""
    assert vocabulary is not None
    config_class = tasks.find("translation").Config
    defaults = config_class()
    decoding = defaults.decoding
    longest = model.max_length or decoding.max_input + decoding.max_extra_tokens
    extra = min(decoding.max_extra_tokens, longest // 2)
    data = dataclasses.replace(
        defaults.data,
        kind="text",
        source_language=vocabulary.languages.source or "source",
        target_language=vocabulary.languages.target or "target",
        source_prefix=vocabulary.source_prefix,
        target_prefix=vocabulary.target_prefix,
        max_length=min(defaults.data.max_length, longest),
    )
    decoding = dataclasses.replace(
        decoding, max_extra_tokens=extra, max_input=min(decoding.max_input, longest - extra)
    )
    # Smoothing would give probability to the tokens that the other model lacks, and the loss would be large.
    return config_class(model=model, data=data, decoding=decoding, label_smoothing=0.0)


def make_gpt2_config(model: DecoderLMConfig, vocabulary: Vocabulary | None) -> Any:
    """Returns the config of a language model."""
    del vocabulary
    data = DocumentsConfig(tokenizer=TOKENIZER_JSON, row_length=model.max_positions)
    stride = min(model.max_positions, MAX_STRIDE)
    training = TrainingConfig(freeze=("embedding/bias",))  # GPT-2 has no bias of the logits
    return tasks.find("language_modeling").Config(model=model, data=data, training=training, stride=stride)


translation_family = functools.partial(
    Family, make_config=make_translation_config, translates=True, copies=COPIES
)
FAMILIES = {
    "marian": translation_family(
        architecture="MarianMTModel",
        prefix="model.",
        model=marian_model,
        entries=bart_entries,
        read_vocabulary=read_marian,
        sines_first=True,
    ),
    "bart": translation_family(
        architecture="BartForConditionalGeneration",
        prefix="model.",
        model=bart_model,
        entries=bart_entries,
        read_vocabulary=read_bart,
    ),
    "mbart": translation_family(
        architecture="MBartForConditionalGeneration",
        prefix="model.",
        model=mbart_model,
        entries=bart_entries,
        read_vocabulary=read_mbart,
    ),
    "m2m_100": translation_family(
        architecture="M2M100ForConditionalGeneration",
        prefix="model.",
        model=m2m_100_model,
        entries=m2m_100_entries,
        read_vocabulary=read_m2m_100,
    ),
    "t5": translation_family(
        architecture="T5ForConditionalGeneration",
        prefix="",
        model=t5_model,
        entries=t5_entries,
        read_vocabulary=read_t5,
        unused=UNUSED_BIASES,
    ),
    "gpt2": Family(
        architecture="GPT2LMHeadModel",
        prefix="transformer.",
        model=gpt2_model,
        entries=gpt2_entries,
        make_config=make_gpt2_config,
        read_vocabulary=read_gpt2,
        copies=COPIES,
        unused=MASKS,
    ),
}
