"""Tests of the export to CTranslate2. Those that run a model need the package ctranslate2."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.errors import UserError
from tfm.export.ctranslate2 import check_model, find_problems, write_model
from tfm.models.decoder_lm import DecoderLM, DecoderLMConfig
from tfm.models.transformer import Transformer, TransformerConfig
from tfm.systems.dalle.model import DALLEConfig
from tfm.systems.t_dmca.model import TDMCAConfig
from tfm.systems.universal.model import UniversalConfig
from tfm.systems.vit.model import ViTConfig
from tfm.testing.models import quick_jit
from tfm.workdir.bundle import flatten, unflatten

SIZE = 50
PIECES = ["<pad>", "<s>", "</s>", "<unk>", *(f"t{i}" for i in range(4, SIZE))]
SIZES = {"d_model": 16, "d_ff": 24, "heads": 4}
DEPTHS = {"encoder_layers": 2, "decoder_layers": 2}
MODELS = {
    name: TransformerConfig(**SIZES, **DEPTHS, **fields)
    for name, fields in {
        "paper": {},
        "biases": {"attention_bias": True},
        "pre": {"norm_order": "pre"},
        "rms and gate": {"norm_order": "pre", "norm": "rms_norm", "gated": True, "activation": "swish"},
        "learned": {"positions": "learned", "max_positions": 64},
        "concatenated": {"positions": "concatenated", "first_position": 2},
        "none": {"positions": "none"},
        "rotary": {"positions": "rotary"},
        "interleaved and rotary": {"positions": "interleaved_and_rotary"},
        "relative keys": {"positions": "relative_keys"},
        "untied": {"tied_embeddings": "none"},
        "grouped heads": {"key_value_heads": 2},
        "wide heads": {"key_features": 8, "value_features": 8, "scale_attention": False},
        "embedding norm": {"embedding_norm": True, "logits_bias": True, "scale_embedding": False},
    }.items()
}
LANGUAGE_MODELS = {
    "GPT-2": DecoderLMConfig(**SIZES, layers=2, max_positions=64),
    "both positions": DecoderLMConfig(
        **SIZES, layers=2, positions="interleaved_and_rotary", scale_embedding=True, tied_embeddings=False
    ),
}


def make_model(cls, config, *tokens):
    """Returns a model, its random parameters by name, and its variables."""
    model = cls(config, SIZE)
    like = jax.eval_shape(lambda key: model.init(key, *tokens, train=False), jax.random.key(0))
    rng = np.random.default_rng(0)
    parameters = {
        key: rng.normal(key.endswith("scale"), 0.3, x.shape).astype(np.float32)
        for key, x in flatten(like).items()
    }
    return model, parameters, unflatten(parameters, like)


def log_probabilities(model, variables, *inputs, labels):
    """Returns the log-probabilities of labels [B, L]. Padding and BOS have the probability 0."""
    logits = quick_jit(functools.partial(model.apply, train=False))(variables, *inputs)
    every = jax.nn.log_softmax(logits.at[..., :2].set(-jnp.inf))
    return np.take_along_axis(np.asarray(every), labels[..., None], -1)[..., 0]


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_of_translations_are_equal(name, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="the package ctranslate2 is not installed")
    one = jnp.ones((1, 1), jnp.int32)
    model, parameters, variables = make_model(Transformer, MODELS[name], one, one)
    write_model(MODELS[name], parameters, (PIECES, PIECES), str(tmp_path), "float32")
    sources, targets = np.random.default_rng(1).integers(4, SIZE, (2, 3, 12))
    lengths = (12, 7, 4)
    texts = [[PIECES[i] for i in ids[:count]] for ids, count in zip(sources, lengths, strict=True)]
    translator = ctranslate2.Translator(str(tmp_path), intra_threads=1)
    scored = translator.score_batch(texts, [[PIECES[i] for i in ids] for ids in targets])
    inputs = np.zeros((3, 13), int)
    for row, count in enumerate(lengths):
        inputs[row, : count + 1] = [*sources[row, :count], 2]
    labels = np.insert(targets, 12, 2, axis=1)
    expected = log_probabilities(model, variables, inputs, np.insert(targets, 0, 1, axis=1), labels=labels)
    np.testing.assert_allclose([result.log_probs for result in scored], expected, atol=2e-5)


@pytest.mark.long
def test_unknown_text_becomes_the_unknown_piece_of_an_imported_tokenizer(tmp_path):
    """An imported NLLB has the unused "<s>" of the other project at the id 3, and "<unk>" at the id 4."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="the package ctranslate2 is not installed")
    pieces = ["<pad>", "<s>", "</s>", "<unused 3>", "<unk>", *PIECES[5:]]
    one = jnp.ones((1, 1), jnp.int32)
    _, parameters, _ = make_model(Transformer, MODELS["paper"], one, one)
    write_model(MODELS["paper"], parameters, (pieces, pieces), str(tmp_path), "float32")
    translator = ctranslate2.Translator(str(tmp_path), intra_threads=1)
    scored = translator.score_batch([["t5", "\u2603"], ["t5", "<unk>"]], [["t6"], ["t6"]])
    assert scored[0].log_probs == pytest.approx(scored[1].log_probs, abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_log_probabilities_of_texts_are_equal(name, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="the package ctranslate2 is not installed")
    model, parameters, variables = make_model(DecoderLM, LANGUAGE_MODELS[name], jnp.ones((1, 1), jnp.int32))
    write_model(LANGUAGE_MODELS[name], parameters, (PIECES,), str(tmp_path), "float32")
    tokens = np.insert(np.random.default_rng(1).integers(4, SIZE, (3, 11)), 0, 1, axis=1)
    generator = ctranslate2.Generator(str(tmp_path), intra_threads=1)
    scored = generator.score_batch([[PIECES[i] for i in ids] for ids in tokens])
    expected = log_probabilities(model, variables, tokens[:, :-1], labels=tokens[:, 1:])
    np.testing.assert_allclose([result.log_probs for result in scored], expected, atol=2e-5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("positions", "alibi"),
        ("attention_window", 3),
        ("feed_forward_kernel", 3),
        ("deep_norm", True),
        ("norm_order", "norm_then_add"),
        ("value_features", 2),
    ],
)
def test_models_that_ctranslate2_lacks_are_refused(field, value):
    config = TransformerConfig(**SIZES, **DEPTHS, **{field: value})
    with pytest.raises(UserError, match=f"model.{field} is {value!r}, expected"):
        check_model(config, {})


@pytest.mark.parametrize(
    "config",
    [
        ViTConfig(),
        UniversalConfig(),
        TDMCAConfig(),
        DALLEConfig(),
        TransformerConfig(name="mine:Mine"),
    ],
    ids=lambda config: config.name,
)
def test_other_models_are_refused_even_if_their_config_is_that_of_a_transformer(config):
    (problem,) = find_problems(config, {})
    assert f"model.name is {config.name!r}, expected transformer or decoder_lm" in problem


@pytest.fixture
def relative():
    """Returns a config with relative positions and random parameters, which differ between the layers."""
    config = TransformerConfig(**SIZES, **DEPTHS, positions="relative_bias")
    one = jnp.ones((1, 1), jnp.int32)
    _, parameters, _ = make_model(Transformer, config, one, one)
    return config, parameters


def share_tables(parameters, stack):
    """Gives both layers of a stack the same table of relative positions."""
    name = f"{stack}/layers_{{}}/self_attention/position_bias/biases"
    parameters[name.format(1)] = parameters[name.format(0)]


@pytest.mark.parametrize("shared", [(), ("encoder",), ("decoder",)])
def test_different_tables_of_relative_positions_are_refused(shared, relative):
    config, parameters = relative
    for stack in shared:
        share_tables(parameters, stack)
    message = "model.positions is 'relative_bias' with other tables in each layer of the "
    different = [stack for stack in ("encoder", "decoder") if stack not in shared]
    assert list(find_problems(config, parameters)) == [message + stack for stack in different]


def test_equal_tables_of_relative_positions_are_accepted(relative):
    config, parameters = relative
    for stack in ("encoder", "decoder"):
        share_tables(parameters, stack)
    assert list(find_problems(config, parameters)) == []
