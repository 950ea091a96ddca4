"""Tests of the language model with local and memory-compressed attention (T-DMCA)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import COMPRESSED
from tests.references.numpy_transformer import wide
from tfm.devices.memory import count_elements
from tfm.layers import Residual
from tfm.models.decoder_lm import DecoderLM, DecoderLMConfig
from tfm.systems.t_dmca.compressed_layer import CompressedLayer, CompressibleAttention
from tfm.systems.t_dmca.local_layer import LocalLayer
from tfm.systems.t_dmca.model import TDMCA, TDMCAConfig
from tfm.testing.models import VOCABULARY, quick_jit
from tfm.testing.parameters import random_parameters

B, L, D, H = 2, 13, 8, 2
X = np.random.default_rng(0).normal(size=(B, L, D)).astype(np.float32)
SEGMENTS = np.array([[1] * 8 + [2] * 5, [1] * 3 + [2] * 7 + [0] * 3])
POSITIONS = np.array([[*range(8), *range(5)], [*range(3), *range(7), 0, 0, 0]])
LONG = {"d_model": 16, "d_ff": 16, "heads": 2, "dropout": 0.0, "attention_dropout": 0.0}


@pytest.mark.parametrize("name", COMPRESSED)
def test_nothing_leaks_from_the_future(name):
    """The gradient of the output at each position reaches this token and earlier tokens only."""
    rng = np.random.default_rng(1)
    model = COMPRESSED[name]
    tokens = rng.integers(3, VOCABULARY, (1, 12))
    params = random_parameters(model, tokens)
    table = jnp.asarray(params["embedding"]["table"])
    rows = jnp.arange(12)  # each position reads a row of the table of its own

    @quick_jit
    def compute_reach(params):
        def run(inputs):  # the embeddings of the tokens, [12, D]
            changed = {**params, "embedding": {**params["embedding"], "table": table.at[:12].set(inputs)}}
            return model.apply({"params": changed}, rows[None], train=False, method="features")[0][0].sum(-1)

        return jnp.abs(jax.jacobian(run)(table[tokens[0]])).sum(-1) > 0

    reach = np.asarray(compute_reach(params))
    assert not np.triu(reach, 1).any()
    assert np.diag(reach).all()


def visible_windows(segments, positions, query, stride):
    """Returns the indices of each window that a query sees in a row, by a loop."""
    windows = []
    for end in range(query + 1):
        window = list(range(end - stride + 1, end + 1))
        is_whole = window[0] >= 0 and len({segments[i] for i in window}) == 1
        if is_whole and positions[end] % stride == stride - 1 and segments[end] == segments[query] > 0:
            windows.append(window)
    return windows


def attend(params, x, keys, values):
    """Returns the attention of one query x [D] to keys [M, H, K] and values [M, H, V] in NumPy, [D]."""
    query = np.einsum("d,dhk->hk", x, wide(params["query"]["kernel"]))
    heads = []
    for head in range(H):
        logits = keys[:, head] @ query[head] / np.sqrt(query.shape[-1])
        weights = np.exp(logits - logits.max(initial=-np.inf)) if len(logits) else np.zeros(0)
        heads.append(weights / max(weights.sum(), 1e-30) @ values[:, head])
    return np.einsum("hv,hvd->d", np.array(heads), wide(params["output"]["kernel"]))


def check_attention(make_layer, attention, see):
    """Compares the attention of a layer with a loop. `see` returns the keys and values of a query."""

    class Alone(make_layer.func):
        """The layer without residual connections and feed-forward network."""

        def apply_sublayers(self, x, attend, *, train):
            return attend(x)

    layer = Alone(attention, attention.clone(), Residual, **make_layer.keywords)
    call = {"segments": SEGMENTS, "positions": POSITIONS, "train": False}
    variables = quick_jit(lambda key: layer.init(key, X, **call))(jax.random.key(0))
    params = variables["params"]["self_attention"]
    found = quick_jit(lambda variables: layer.apply(variables, X, **call))(variables)
    keys, values = (
        np.einsum("bmd,dhk->bmhk", wide(X), wide(params[name]["kernel"])) for name in ("key", "value")
    )
    for row, query in np.ndindex(B, L):
        if SEGMENTS[row, query]:
            expected = attend(params, wide(X[row, query]), *see(params, row, query, keys[row], values[row]))
            np.testing.assert_allclose(found[row, query], expected, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_compressed_attention_equals_numpy_in_packed_rows(stride):
    def see(params, row, query, keys, values):
        windows = visible_windows(SEGMENTS[row], POSITIONS[row], query, stride)
        found = []
        for name, array in (("compress_key", keys), ("compress_value", values)):
            kernel = wide(params[name]["kernel"])
            compressed = [np.einsum("rgk,rgkhl->hl", array[window], kernel) for window in windows]
            found.append(np.array(compressed).reshape(-1, *array.shape[1:]) + wide(params[name]["bias"]))
        return found

    attention = CompressibleAttention(D, H, stride=stride)
    check_attention(functools.partial(CompressedLayer, stride=stride), attention, see)


@pytest.mark.parametrize("block", [1, 3, 4, 20])
def test_local_attention_equals_numpy_in_packed_rows(block):
    def see(params, row, query, keys, values):
        is_visible = (SEGMENTS[row] == SEGMENTS[row, query]) & (np.arange(L) <= query)
        is_visible &= POSITIONS[row] // block == POSITIONS[row, query] // block
        return keys[is_visible], values[is_visible]

    check_attention(functools.partial(LocalLayer, block=block), CompressibleAttention(D, H), see)


def test_caches_grow_with_the_compressed_length_only():
    """A model with blocks of 256 caches 256 positions locally, and a third of all positions compressed."""
    model = TDMCA(TDMCAConfig(**LONG), VOCABULARY)

    def sizes(prefix, max_length):
        params = jax.eval_shape(lambda: random_parameters(model, np.ones((1, 2), int)))
        begin = functools.partial(model.apply, width=1, max_length=max_length, method="init_cache")
        tokens = jax.ShapeDtypeStruct((1, prefix), jnp.int32)
        cache = jax.eval_shape(lambda params, tokens: begin({"params": params}, tokens), params, tokens)
        return [count_elements(layer) // (2 * 16) for layer in cache.layers]

    assert sizes(900, 90) == [256, 300 + 30 + 2, 256, 300 + 30 + 2, 256]
    assert sizes(9000, 90) == [256, 3000 + 30 + 2, 256, 3000 + 30 + 2, 256]


@pytest.mark.long
def test_memory_of_a_forward_pass_is_less_than_half_of_that_of_full_attention():
    """The logits of compressed attention have a third of the size, those of local attention far less."""
    tokens = jax.ShapeDtypeStruct((1, 4096), jnp.int32)
    fields = {**LONG, "layers": 5, "positions": "interleaved", "attention": None}

    def measure(model):
        params = jax.eval_shape(lambda: model.init(jax.random.key(0), np.ones((1, 2), int), train=False))
        run = quick_jit(lambda params, tokens: model.apply(params, tokens, train=False, method="features")[0])
        return run.lower(params, tokens).compile().memory_analysis().temp_size_in_bytes

    compressed = measure(TDMCA(TDMCAConfig(**fields), VOCABULARY))
    assert compressed < measure(DecoderLM(DecoderLMConfig(**fields), VOCABULARY)) / 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "prefix"),
    [*(("local and compressed", prefix) for prefix in (0, 1, 5, 8)), ("relative bias", 5)],
)
def test_hypotheses_continue_prefixes_of_any_length(name, prefix):
    """Windows of keys and blocks may begin in the prefix and end in the hypothesis."""
    rng = np.random.default_rng(1)
    model = COMPRESSED[name]
    tokens = rng.integers(3, VOCABULARY, (1, 16))
    params = random_parameters(model, tokens)

    @quick_jit
    def run(params):
        apply = functools.partial(model.apply, {"params": params})
        cache = apply(tokens[:, :prefix], width=1, max_length=16 - prefix, method="init_cache")

        def step(cache, now):
            position, token = now
            logits, cache = apply(token[None, None], cache, position, method="decode_step")
            return cache, logits[0, 0]

        steps = jnp.arange(16 - prefix), jnp.asarray(tokens[0, prefix:])
        return jax.lax.scan(step, cache, steps)[1], apply(tokens, train=False)[0]

    cached, forward = run(params)
    np.testing.assert_allclose(cached, forward[prefix:], atol=1e-4)


def test_published_sizes_are_the_defaults():
    """Liu et al. 2018, section 4.2.4: five layers LMLML, blocks of 256, kernel and stride 3."""
    config = TDMCAConfig()
    assert (config.layers, config.pattern, config.local_block, config.compression) == (5, "LM", 256, 3)
    model = TDMCA(config, 32_000)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), np.ones((1, 1), int), train=False))
    layer = 4 * (512**2 + 512) + 2 * 512 * 2048 + 2048 + 512 + 2 * 2 * 512
    convolutions = 2 * (3 * 512**2 + 512)
    assert count_elements(shapes) == 32_000 * 512 + 5 * layer + 2 * convolutions + 2 * 512
