"""Tiny models that cover every choice of every config field, and examples of custom parts."""

import dataclasses
import functools
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tests.support.paths import ROOT
from tfm import layers
from tfm.models import Transformer, TransformerConfig
from tfm.models.decoder_lm import DecoderLM, DecoderLMConfig
from tfm.systems.bert.model import Bert, BertConfig
from tfm.systems.conv_s2s.model import ConvS2S, ConvS2SConfig
from tfm.systems.dalle.dvae import DiscreteVAE, DVAEConfig
from tfm.systems.dalle.model import DALLE, DALLEConfig
from tfm.systems.detr.model import DETR, DETRConfig
from tfm.systems.detr.resnet import ResNetClassifier, ResNetConfig
from tfm.systems.feed_forward_lm.model import FeedForwardLM, FeedForwardLMConfig
from tfm.systems.lstm_lm.model import LSTMConfig, LSTMLanguageModel
from tfm.systems.memory_network.model import MemoryNetwork, MemoryNetworkConfig
from tfm.systems.rnn_seq2seq.config import RNNConfig
from tfm.systems.rnn_seq2seq.luong import LuongConfig
from tfm.systems.rnn_seq2seq.model import RNNSeq2Seq
from tfm.systems.sagan.model import SelfAttentionGAN, SelfAttentionGANConfig
from tfm.systems.t_dmca.model import TDMCA, TDMCAConfig
from tfm.systems.universal.model import UniversalConfig, UniversalTransformer
from tfm.systems.vit.model import VisionTransformer, ViTConfig
from tfm.systems.word2vec.model import Word2Vec, Word2VecConfig
from tfm.testing.models import VOCABULARY

SIZES = {"d_model": 16, "d_ff": 24, "heads": 4, "dropout": 0.0}
BASE = TransformerConfig(encoder_layers=1, decoder_layers=1, **SIZES, max_positions=16)
GPT = DecoderLMConfig(layers=2, **SIZES, attention_dropout=0.0, max_positions=12)
VIT = ViTConfig(image_size=6, channels=2, patch_size=3, classes=5, encoder_layers=2, **SIZES | {"d_model": 8})
RNN_SIZES = {"embedding_features": 6, "hidden_features": 5, "attention_features": 4, "output_features": 7}
RNN_SIZES |= {"dropout": 0.0}


def transformer(config=BASE, cls=Transformer, **fields):
    return cls(dataclasses.replace(config, **fields), vocabulary_size=VOCABULARY)


def decoder_lm(**fields):
    return DecoderLM(dataclasses.replace(GPT, **fields), vocabulary_size=VOCABULARY)


TRANSFORMERS = {
    "two layers": transformer(encoder_layers=2, decoder_layers=2),
    "pre-norm": transformer(norm_order="pre"),
    **{
        f"positions {name}": transformer(positions=name) for name in layers.POSITIONS if name != "interleaved"
    },
    "unscaled": transformer(scale_attention=False),
    "BART": transformer(
        positions="learned", embedding_norm=True, logits_bias=True, scale_embedding=False, attention_bias=True
    ),
    "M2M-100": transformer(positions="concatenated", first_position=2, norm_order="pre"),
    "window": transformer(attention_window=3),
    "DeepNorm": transformer(deep_norm=True),
    "convolutions": transformer(feed_forward_kernel=3, encoder_layers=2, decoder_layers=2),
    "even convolutions, GLU": transformer(
        feed_forward_kernel=2, gated=True, activation="sigmoid", norm_order="pre"
    ),
    "T5": transformer(key_features=16, value_features=16, positions="relative_bias"),
    "grouped keys, RMSNorm, SwiGLU": transformer(
        key_value_heads=2,
        norm="rms_norm",
        norm_order="pre",
        gated=True,
        activation="swish",
        tied_embeddings="two",
    ),
    "one key head, rotary, GLU": transformer(
        key_value_heads=1, positions="rotary", gated=True, activation="sigmoid", tied_embeddings="none"
    ),
}
LANGUAGE_MODELS = {
    "GPT-2": decoder_lm(),
    "sinusoids": decoder_lm(
        positions="interleaved", norm_order="post", scale_embedding=True, attention_bias=False
    ),
    "scan": decoder_lm(scan=True),
    "rotary": decoder_lm(positions="rotary", key_value_heads=1, norm="rms_norm", gated=True),
    "relative keys": decoder_lm(positions="relative_keys", attention_window=4, scale_attention=False),
    "relative bias": decoder_lm(positions="relative_bias", tied_embeddings=False),
    "ALiBi": decoder_lm(positions="alibi", norm_order="post", deep_norm=True),
    "narrow keys": decoder_lm(key_features=3, value_features=5),
    "norm and bias": decoder_lm(embedding_norm=True, logits_bias=True),
    "convolutions": decoder_lm(feed_forward_kernel=3),
    "scanned convolutions, GLU": decoder_lm(feed_forward_kernel=4, scan=True, gated=True),
}
RNNS = {
    name: RNNSeq2Seq(config, VOCABULARY)
    for name, config in {
        "Bahdanau": RNNConfig(**RNN_SIZES),
        "Luong": LuongConfig(**RNN_SIZES | {"layers": 2}),
        "dot": LuongConfig(**RNN_SIZES, layers=1, attention="dot", forget_bias=1.0),
        "mixed": RNNConfig(
            **RNN_SIZES | {"output_features": 6, "share_embeddings": True, "tie_output": True, "layers": 2},
            cell="lstm",
            query="current",
            output="linear",
            output_state="current",
        ),
        "fed": RNNConfig(**RNN_SIZES, input_feeding=True, initial_state="copied", attention="general"),
        "no attention": RNNConfig(**RNN_SIZES, attention="none"),
        "no attention, LSTM": RNNConfig(**RNN_SIZES, attention="none", cell="lstm", layers=2),
        "no attention, forwards": RNNConfig(**RNN_SIZES, attention="none", bidirectional=False),
        "no attention, fed": LuongConfig(**RNN_SIZES, layers=1, attention="none"),
    }.items()
}
UNIVERSAL = UniversalConfig(encoder_layers=2, decoder_layers=3, **SIZES, max_positions=16)
UNIVERSALS = {
    name: transformer(UNIVERSAL, UniversalTransformer, **fields)
    for name, fields in {
        "sinusoids": {},
        "learned": {"step_signal": "learned", "positions": "learned"},
        "halting": {"halting": True, "halting_epsilon": 0.1},
        "scan": {"halting": True, "halting_epsilon": 0.1, "scan": True},
        "rotary": {"positions": "rotary", "norm_order": "pre"},
        "convolutions": {"feed_forward_kernel": 3},
    }.items()
}
CONVOLUTIONAL = {
    name: ConvS2S(ConvS2SConfig(**fields, embedding_features=6, max_positions=12, dropout=0.0), VOCABULARY)
    for name, fields in {
        "two widths": {"encoder": "1x8/3,1x5/2", "decoder": "2x8/3,1x7/1"},
        "one width": {"encoder": "2x6/5", "decoder": "2x6/2"},
    }.items()
}
COMPRESSED_LM = TDMCAConfig(
    layers=3, **SIZES, attention_dropout=0.0, max_positions=12, local_block=4, compression=2
)
COMPRESSED = {
    name: TDMCA(dataclasses.replace(COMPRESSED_LM, **fields), VOCABULARY)
    for name, fields in {
        "local and compressed": {},
        "compressed": {"pattern": "M", "compression": 3, "layers": 2},
        "local": {"pattern": "L", "local_block": 3, "layers": 2},
        "learned positions, grouped keys": {"positions": "learned", "key_value_heads": 2, "compression": 3},
        "relative bias": {"positions": "relative_bias", "compression": 1},
    }.items()
}
LSTMS = {
    name: LSTMLanguageModel(LSTMConfig(features=6, dropout=0.0, **fields), VOCABULARY)
    for name, fields in {
        "Zaremba": {},
        "tied": {"tied_embeddings": True, "layers": 1, "forget_bias": 1.0},
    }.items()
}
FEED_FORWARD = {
    name: FeedForwardLM(
        FeedForwardLMConfig(context=context, embedding_features=5, hidden_features=7, direct=direct),
        VOCABULARY,
    )
    for name, context, direct in (("direct", 3, True), ("hidden only", 2, False), ("one token", 1, True))
}
WORD_VECTORS = {"word2vec": Word2Vec(Word2VecConfig(features=6), VOCABULARY)}
MEMORY_NETWORKS = {
    name: MemoryNetwork(MemoryNetworkConfig(features=6, **fields), VOCABULARY)
    for name, fields in {
        "three hops": {"memories": 4},
        "bag of words": {"hops": 1, "position_encoding": False, "temporal_encoding": False},
    }.items()
}
GANS = {
    "GAN": SelfAttentionGAN(
        SelfAttentionGANConfig(
            image_size=8, channels=2, classes=5, noise=4, width=8, smallest_map=2, attention_map=4
        )
    )
}
TEXT_TO_IMAGE = {
    "DALL-E": DALLE(
        DALLEConfig(
            text_vocabulary=11,
            codes=VOCABULARY - 11,
            text_length=3,
            side=3,
            kernel=3,
            **SIZES | {"layers": 3, "attention_dropout": 0.0},
        ),
        vocabulary_size=VOCABULARY,
    )
}
AUTOENCODERS = {
    "dVAE": DiscreteVAE(
        DVAEConfig(image_size=8, channels=2, codes=6, width=32, code_width=5, groups=3, blocks=1)
    )
}
DETECTORS = {
    "DETR": DETR(
        DETRConfig(
            channels=2,
            classes=5,
            queries=3,
            encoder_layers=1,
            decoder_layers=2,
            backbone_depths=(2, 1),
            backbone_width=4,
            backbone_stem="small",
            **SIZES,
        )
    )
}
RESNET = ResNetConfig(image_size=6, channels=2, classes=5, depths=(1, 1), width=4)
RESNETS = {"ResNet": ResNetClassifier(RESNET)}
CLASSIFIERS = {"ViT": VisionTransformer(VIT)}
BERT = BertConfig(encoder_layers=2, **SIZES, attention_dropout=0.0, max_positions=12, classes=3)
ENCODERS = {
    f"BERT, {head}": Bert(dataclasses.replace(BERT, head=head), VOCABULARY)
    for head in ("pretraining", "classes", "tags")
}

# Custom parts, as a user would write them.


def sigmoid_attention(query, key, value, *, mask):
    logits = jnp.einsum("blhk,bmhk->bhlm", query, key) * query.shape[-1] ** -0.5
    return jnp.einsum("bhlm,bmhv->blhv", jnp.where(mask, jax.nn.sigmoid(logits), 0.0), value)


class SwiGLU(nn.Module):
    features: int
    hidden: int

    @nn.compact
    def __call__(self, x, *, train):
        gate, value = nn.Dense(self.hidden)(x), nn.Dense(self.hidden)(x)
        return nn.Dense(self.features)(nn.swish(gate) * value)


def rotate(x, positions):
    first, second = jnp.split(x, 2, axis=-1)
    frequencies = 10_000.0 ** -(jnp.arange(first.shape[-1]) / first.shape[-1])
    angles = positions[..., None, None] * frequencies  # [L, 1, K / 2] or with a batch axis
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)


class AllAtOnce(Transformer):
    """A Transformer with a custom attention function, feed-forward network, norm and positions."""

    def make_attention(self):
        return super().make_attention().clone(attention=sigmoid_attention)

    def make_feed_forward(self):
        return SwiGLU(self.config.d_model, self.config.d_ff)

    def make_norm(self, name=None):
        return nn.RMSNorm(name=name)

    def make_positions(self):
        return None

    def make_self_attention(self):
        return super().make_self_attention().clone(encode_positions=rotate)


class Stretched(Transformer):
    """A Transformer whose queries and keys grow with their absolute position in every attention."""

    def make_attention(self):
        return super().make_attention().clone(encode_positions=lambda x, at: x * (1 + at[..., None, None]))


class Nearness(nn.Module):
    """An attention without parameters and keys, whose weights fall with the distance of the positions."""

    def __call__(self, x, keys, *, mask, positions, key_positions, **_):
        distance = jnp.abs(positions[..., :, None] - key_positions[..., None, :])
        weights = jnp.where(mask[:, 0], jnp.exp(-1.0 * distance), 0.0)
        return weights @ keys / jnp.maximum(weights.sum(-1, keepdims=True), 1e-9)

    def keys_values(self, keys, positions):
        return jnp.zeros((*keys.shape[:2], 1, 0)), keys[:, :, None]

    def attend_cached(self, x, key, value, **where):
        return self(x, value[:, 0], **where)


class NearnessAttention(Transformer):
    def make_self_attention(self):
        return Nearness()


class OwnOutput(layers.Embedding):
    def setup(self):
        super().setup()
        self.output_table = self.param("output", nn.initializers.normal(0.1), self.table.shape)


class Untied(Transformer):
    def make_embedding(self):
        return OwnOutput(self.vocabulary_size, self.config.d_model)


DOCUMENT = (ROOT / "docs" / "replace_a_part.md").read_text(encoding="utf-8")
PACKAGE, *PARTS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)


@functools.cache
def documented() -> dict[str, Any]:
    """Returns the names that the code of docs/replace_a_part.md defines."""
    names: dict[str, Any] = {}
    for block in PARTS:
        exec(compile(block, "docs/replace_a_part.md", "exec"), names)
    return names


DOCUMENTED = ("Gated", "Differential", "Retention", "EndsOnly", "OneHotPositions")
USERS = {cls.__name__: transformer(cls=cls) for cls in (AllAtOnce, Stretched, NearnessAttention, Untied)}
USERS |= {name: transformer(cls=documented()[name]) for name in DOCUMENTED}
