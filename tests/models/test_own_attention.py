"""Tests of attentions of the user: gate, differential attention and retention of docs/replace_a_part.md.

test_contracts.py runs the contract of sequence-to-sequence models on the same classes: cached decoding equals
the forward pass, and packed sentences equal separate ones.
"""

import functools
import re
import shlex
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import DOCUMENT, PARTS, decoder_lm, documented, transformer
from tests.references import numpy_transformer as numpy64
from tests.references.numpy_transformer import wide
from tests.support.commands import run_command
from tests.support.comparison import assert_trees_equal
from tests.support.layer_cases import B, D, L, attention, noisy, random
from tests.support.tiny import make_config, write_config_file
from tfm import config, interpret
from tfm.attention import dot_product_attention
from tfm.errors import EXIT_CODE
from tfm.interpret.observation import observe
from tfm.masks import causal_mask
from tfm.positions import rotary_encoding
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters
from tfm.workdir import runs

POSITIONS = np.array([[0, 1, 2, 3, 4], [0, 1, 2, 0, 1]])  # the second row contains two sentences
SEGMENTS = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 2, 2]])
SAME_SENTENCE = SEGMENTS[:, None, :, None] == SEGMENTS[:, None, None]
MASK = np.asarray(causal_mask(np.arange(L), np.arange(L))) & SAME_SENTENCE
WHERE = {"mask": MASK, "positions": POSITIONS, "key_positions": POSITIONS}
X = random(B, L, D)
TOKENS = np.array([[5, 6, 7, 8], [9, 10, 11, 2]])


def call(module, variables, *arguments, **keywords):
    return quick_jit(functools.partial(module.apply, **keywords))(variables, *arguments)


def rotate_itself(query, key, value, *, mask, positions, key_positions):
    query, key = rotary_encoding(query, positions), rotary_encoding(key, key_positions)
    return dot_product_attention(query, key, value, mask=mask)


def unexpected(*_):
    raise AssertionError("encode_positions is not ignored")


def test_attention_that_encodes_positions_gets_the_positions_of_its_rows():
    rotary = attention(encode_positions=rotary_encoding)
    own = attention(attention=rotate_itself, attention_encodes_positions=True, encode_positions=unexpected)
    variables = {"params": noisy(rotary.init(jax.random.key(0), X, X, **WHERE, train=False))}
    expected = call(rotary, variables, X, X, **WHERE, train=False)
    np.testing.assert_allclose(call(own, variables, X, X, **WHERE, train=False), expected, atol=1e-5)


@pytest.mark.long
def test_attention_that_encodes_positions_gets_the_positions_of_cached_keys():
    """The slots of a cache are in another order than the positions of their keys."""
    rotary = attention(encode_positions=rotary_encoding)
    own = attention(attention=rotate_itself, attention_encodes_positions=True)
    variables = {"params": noisy(rotary.init(jax.random.key(0), X, X, **WHERE, train=False))}
    slots, at = np.array([[2, 0, 1, 4, 3]] * B), np.array([4])
    keys = np.take_along_axis(X, slots[..., None], axis=1)
    where = {"mask": np.ones((1, 1, 1, L), bool), "positions": at, "key_positions": slots}

    @quick_jit
    def decode(variables):
        outputs = []
        for module in (rotary, own):
            key, value = module.apply(variables, keys, slots, method="keys_values")
            cached = key.transpose(0, 2, 3, 1), value.swapaxes(1, 2)
            outputs.append(module.apply(variables, X[:, 4:], *cached, **where, method="attend_cached"))
        return outputs

    expected, found = decode(variables)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def project(params, name, x):
    return numpy64.project(params[name], x, "bld,dhk->blhk")


def project_and_rotate(params, name):
    """Returns queries or keys [B, L, H, K] of `X` whose pairs of features turn by their position."""
    x = project(params, name, X)
    frequencies = 10_000.0 ** -(np.arange(0, x.shape[-1], 2) / x.shape[-1])
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * POSITIONS[..., None, None] * frequencies)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def output_of(params, heads):
    return numpy64.project(params["output"], heads, "blhv,hvd->bld")


def softmax(logits, mask):
    exponentials = np.where(mask, np.exp(logits), 0)
    return exponentials / exponentials.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@functools.cache
def part_of_page(name, positions="none"):
    """Returns the self-attention of a model of the page, its parameters, and its output for `X`."""
    model = transformer(cls=documented()[name], d_model=D, heads=4, positions=positions, attention=None)
    module = model.make_self_attention()
    params = noisy(module.init(jax.random.key(0), X, X, **WHERE, train=False))
    return module, params, call(module, {"params": params}, X, X, **WHERE, train=False)


def test_gate_of_the_page_multiplies_the_heads_before_the_output_projection():
    _, params, found = part_of_page("Gated")
    query, key, value = (project(params, name, X) for name in ("query", "key", "value"))
    logits = np.einsum("blhk,bmhk->bhlm", query, key) / np.sqrt(query.shape[-1])
    heads = np.einsum("bhlm,bmhv->blhv", softmax(logits, MASK), value)
    gates = sigmoid(project(params["transform_heads"], "gate", X))
    np.testing.assert_allclose(found, output_of(params, heads * gates), atol=1e-5)


@pytest.mark.long
def test_differential_attention_of_the_page_equals_the_paper():
    """Equations 1 to 3 of Ye et al. 2024 with rotary positions in each of the two maps."""
    _, params, found = part_of_page("Differential", "rotary")
    query, key = (project_and_rotate(params, name) for name in ("query", "key"))
    value, vectors = project(params, "value", X), jax.tree.map(wide, params["attention"])
    factor = np.exp(vectors["query_1"] @ vectors["key_1"]) + 0.8
    factor -= np.exp(vectors["query_2"] @ vectors["key_2"])
    heads = []
    for i in range(0, 4, 2):  # the two heads of the paper
        maps = [
            softmax(np.einsum("blk,bmk->blm", query[:, :, j], key[:, :, j]) / np.sqrt(D // 4), MASK[:, 0])
            for j in (i, i + 1)
        ]
        wide_value = np.concatenate([value[:, :, i], value[:, :, i + 1]], axis=-1)
        head = (maps[0] - factor * maps[1]) @ wide_value
        scale = wide(params["transform_heads"]["norm"]["scale"])
        heads.append((1 - 0.8) * head / np.sqrt((head**2).mean(-1, keepdims=True) + 1e-5) * scale)
    kernel = wide(params["output"]["kernel"]).reshape(D, D)
    np.testing.assert_allclose(found, np.concatenate(heads, axis=-1) @ kernel, atol=1e-5)


@pytest.mark.long
def test_retention_of_the_page_equals_its_recurrence():
    """In the recurrent form of Sun et al. 2023 (equation 6), the state decays and gets the next token."""
    _, params, found = part_of_page("Retention", "rotary")
    query, key = (project_and_rotate(params, name) for name in ("query", "key"))
    value = project(params, "value", X)
    heads = np.zeros_like(value)
    for b, h in np.ndindex(B, 4):
        state = np.zeros((key.shape[-1], value.shape[-1]))
        for i in range(L):
            is_first = POSITIONS[b, i] == 0
            state = np.zeros_like(state) if is_first else (1 - 2.0 ** (-5 - h)) * state
            state += np.outer(key[b, i, h], value[b, i, h])
            heads[b, i, h] = query[b, i, h] @ state / np.sqrt(key.shape[-1])
    centred = heads - heads.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    gates = project(params["transform_heads"], "gate", X)
    np.testing.assert_allclose(found, output_of(params, normed * gates * sigmoid(gates)), atol=1e-4)


@pytest.mark.long
def test_weights_of_differential_attention_are_the_differences_of_the_maps():
    module, params, _ = part_of_page("Differential")
    _, reads = interpret.run(module, params, X, X, **WHERE, read=["weights", "head_outputs", "value"])
    weights = np.asarray(reads["weights"])
    np.testing.assert_array_equal(weights[:, 0::2], weights[:, 1::2])
    assert weights.min() < -0.05
    np.testing.assert_array_equal(weights[~np.broadcast_to(MASK, weights.shape)], 0)


def test_weighted_values_can_be_edited_before_the_gate():
    module, params, _ = part_of_page("Gated")
    read = ["weighted_values", "head_outputs"]
    _, reads = interpret.run(module, params, X, X, **WHERE, read=read)
    _, halved = interpret.run(module, params, X, X, **WHERE, read=read, edit={read[0]: interpret.scale(0.5)})
    np.testing.assert_allclose(halved["head_outputs"], reads["head_outputs"] / 2, atol=1e-6)
    assert not np.allclose(reads["head_outputs"], reads["weighted_values"])


@pytest.mark.long
@pytest.mark.parametrize(("name", "has_norms"), [("Transformer", True), ("Gated", False)])
def test_norms_of_weighted_values_are_left_out_if_a_gate_changes_them(name, has_norms):
    model = transformer(cls=documented()[name])
    params = random_parameters(model, TOKENS, TOKENS)
    _, attentions = observe(model, {"params": params}, TOKENS[:1], TOKENS[:1], labels=TOKENS[:1])
    assert [each.norms is not None for each in attentions.values()] == 3 * [has_norms]


@pytest.mark.long
@pytest.mark.parametrize("fields", [{}, {"scan": True}, {"key_value_heads": 2}], ids=str)
def test_language_model_with_both_hooks_decodes_as_it_reads(fields):
    """The contract runs on the classes of the page, which translate. Prefixes have caches with padding."""
    page = documented()

    class Retaining(type(decoder_lm())):
        def make_self_attention(self):
            hooks = {"attention": page["retain"], "transform_heads": page["NormAndGate"]()}
            return super().make_self_attention().clone(**hooks, attention_encodes_positions=True)

    model = Retaining(decoder_lm(**{"positions": "none"} | fields).config, vocabulary_size=20)
    variables = {"params": random_parameters(model, TOKENS)}
    prefix = np.array([[5, 6], [9, 0]])  # the second row is shorter

    @quick_jit
    def run(variables):
        apply = functools.partial(model.apply, variables)
        cache, outputs = apply(prefix, width=1, max_length=2, method="init_cache"), []
        for position, tokens in enumerate(([[7], [10]], [[8], [11]])):
            logits, cache = apply(jnp.array(tokens), cache, position, method="decode_step")
            outputs.append(logits)
        rows = [apply(jnp.array([row]), train=False)[0, -2:] for row in ([5, 6, 7, 8], [9, 10, 11])]
        return jnp.concatenate(outputs, axis=1), jnp.stack(rows)

    cached, forward = run(variables)
    np.testing.assert_allclose(cached, forward, atol=1e-4)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Writes the classes of the page as modules of a package in the current folder."""
    (tmp_path / "my_lab").mkdir()
    for name in ("Gated", "Differential"):
        model = f"from tfm.models.transformer import Config\nModel = {name}\n"
        text = "\n".join([*PARTS, model])
        (tmp_path / "my_lab" / f"{name.lower()}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config.names, "allowed_modules", set())
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_lab"]:
        del sys.modules[name]


@pytest.mark.long
@pytest.mark.parametrize("name", ["gated", "differential"])
def test_model_with_own_attention_trains_resumes_and_translates(name, lab, corpus, monkeypatch):
    tiny = write_config_file(lab, make_config(corpus, steps=20, eval_every=20, checkpoint_every=10))
    module = f"my_lab.{name}"
    command = [f"--config={tiny}", f"--config.model.name={module}", "--config.model.positions=rotary"]
    command += ["--config.model.encoder_layers=1", "--config.model.decoder_layers=1"]
    whole = run_command("train", *command, "--workdir=whole")
    assert whole.error.splitlines()[-1].endswith(f": tfm evaluate --workdir=whole --import={module}")
    run_command("train", *command, "--workdir=broken", "--config.training.steps=10")
    run_command("train", *command, "--workdir=broken")
    runs_of = [runs.load(workdir, checkpoint="last") for workdir in ("whole", "broken")]
    assert [run.steps for run in runs_of] == [[20], [20]]
    assert_trees_equal(*(run.params for run in runs_of))

    translate = ["--workdir=whole", "--config.decoding.beam_size=2"]
    monkeypatch.setattr(config.names, "allowed_modules", set())  # as in another process
    refused = run_command("translate", *translate, stdin="red dog\n")
    assert refused.code == EXIT_CODE
    assert f"give --import={module}" in refused.error
    translated = run_command("translate", *translate, f"--import={module}", stdin="red dog\nbig cat\n")
    assert translated.code == 0, translated.error
    assert len(translated.output.splitlines()) == 2


def test_page_names_the_flag_of_the_module_that_it_trains():
    (train,) = re.findall(r"^tfm train (.*)$", DOCUMENT, re.MULTILINE)
    (module,) = [flag.partition("=")[2] for flag in shlex.split(train) if "model.name" in flag]
    others = re.findall(r"^tfm (\w+) .*--import=(.*)$", DOCUMENT, re.MULTILINE)
    assert others == [("translate", module), ("evaluate", module)]
