"""Tests of the errors that the equations raise for arrays of wrong types, axes and sizes."""

import inspect
import re

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from tfm import attention, losses, masks, positions
from tfm.array_types import check_arrays

QUERY, KEY, VALUE = (np.zeros((2, n, 3, width), np.float32) for n, width in ((5, 4), (6, 4), (6, 8)))
MASK, WEIGHTS = np.ones((2, 1, 5, 6), bool), np.zeros((2, 3, 5, 6), np.float32)
ROWS, OTHER_ROWS = np.ones((2, 5), int), np.ones((2, 6), int)
FEATURES, TABLE = np.zeros((2, 5, 4), np.float32), np.zeros((7, 4), np.float32)
LOSS = {"labels": ROWS, "weights": ROWS, "smoothing": 0.1}
CASES = {
    attention.dot_product_attention: {
        "query": QUERY,
        "key": KEY,
        "value": VALUE,
        "mask": MASK,
        "bias": WEIGHTS,
    },
    attention.attention_weights: {"query": QUERY, "key": KEY, "mask": MASK, "bias": WEIGHTS},
    attention.attention_logits: {"query": QUERY, "key": KEY, "bias": WEIGHTS},
    attention.masked_softmax: {"logits": WEIGHTS, "mask": MASK},
    attention.weighted_sum: {"weights": WEIGHTS, "value": VALUE},
    attention.infer_attention_weights: {
        "attention": attention.dot_product_attention,
        "query": QUERY,
        "key": KEY,
        "mask": MASK,
    },
    masks.padding_mask: {"tokens": ROWS},
    masks.causal_mask: {"query_positions": ROWS, "key_positions": OTHER_ROWS},
    masks.segment_mask: {"query_segments": ROWS, "key_segments": OTHER_ROWS},
    masks.local_mask: {"query_positions": ROWS, "key_positions": OTHER_ROWS, "window": 3},
    masks.first_and_last_mask: {"mask": MASK},
    masks.combine_masks: {"masks": MASK},
    positions.sinusoidal_encoding: {"positions": ROWS, "features": 4},
    positions.rotary_encoding: {"x": QUERY, "positions": ROWS},
    positions.relative_distance: {"query_positions": ROWS, "key_positions": OTHER_ROWS},
    positions.alibi_bias: {"query_positions": ROWS, "key_positions": OTHER_ROWS, "heads": 3},
    positions.relative_buckets: {"distance": ROWS, "bidirectional": True},
    losses.smoothed_cross_entropy: {"logits": WEIGHTS[0, :2], **LOSS},
    losses.fused_linear_cross_entropy: {"features": FEATURES, "table": TABLE, **LOSS, "chunk_size": 4},
    losses.dropout_divergence: {
        "features": FEATURES,
        "table": TABLE,
        "weights": LOSS["weights"],
        "chunk_size": 4,
    },
    losses.chunked_log_probabilities: {"features": FEATURES, "table": TABLE, "labels": ROWS, "chunk_size": 4},
}
ARRAYS = [(f, name) for f, case in CASES.items() for name, x in case.items() if isinstance(x, np.ndarray)]
NEVER_TOO_FEW_AXES = {"distance", "masks"}
SIZES = [  # (function, argument, shape that does not fit, sizes in the message)
    (attention.attention_weights, "key", (2, 6, 4, 4), r"H K\] .*query has \(2, 5, 3, 4\)"),
    (attention.attention_weights, "key", (1, 6, 3, 4), r"H K\] .*query has \(2, 5, 3, 4\)"),
    (attention.attention_weights, "key", (2, 6, 3, 5), r"query has \(2, 5, 3, 4\)"),
    (attention.attention_weights, "key", (6, 3, 4), r"query has \(2, 5, 3, 4\)"),
    (
        attention.attention_weights,
        "mask",
        (2, 2, 5, 6),
        r"#H #L #M\] .*key has \(2, 6, 3, 4\)",
    ),
    (attention.attention_weights, "mask", (2, 1, 5, 7), r"key has \(2, 6, 3, 4\)"),
    (attention.attention_weights, "mask", (4, 2, 1, 5, 6), r"key has \(2, 6, 3, 4\)"),
    (attention.attention_weights, "bias", (2, 1, 6, 6), r"query has \(2, 5, 3, 4\)"),
    (attention.weighted_sum, "value", (2, 5, 3, 8), r"weights has \(2, 3, 5, 6\)"),
    (masks.causal_mask, "key_positions", (3, 6), r"query_positions has \(2, 5\)"),
    (positions.rotary_encoding, "positions", (3, 5), r"x has \(2, 5, 3, 4\)"),
    (positions.rotary_encoding, "positions", (2, 4), r"x has \(2, 5, 3, 4\)"),
    *((losses.smoothed_cross_entropy, "weights", shape, r"\(2, 5\)") for shape in ((2, 1), (2, 5, 1), ())),
    (losses.fused_linear_cross_entropy, "table", (7, 5), r"features has \(2, 5, 4\)"),
    (losses.fused_linear_cross_entropy, "labels", (2, 6), r"features has \(2, 5, 4\)"),
]


def call(function, name=None, value=None):
    """Calls a function with the arguments of its case after replacing one of them."""
    arguments = CASES[function] | ({} if name is None else {name: value})
    if function is masks.combine_masks:
        return function(MASK, arguments["masks"])
    return function(**arguments)


def test_every_public_function_with_array_arguments_has_a_case():
    modules = (attention, losses, masks, positions)
    names = {(module, name) for module in modules for name in vars(module) if not name.startswith("_")}
    functions = {getattr(*each) for each in names if inspect.isfunction(getattr(*each))}
    checked = {
        f
        for f in functions
        if f.__module__ in {m.__name__ for m in modules} and "Array" in str(inspect.signature(f))
    }
    compiled_only = {losses.log_z, losses.log_probability, losses.token_scores}  # inside a search
    any_mask = {masks.check_mask_axes, masks.mask_to_array, masks.restrict_to_window}
    assert checked - compiled_only - any_mask == set(CASES)


@pytest.mark.parametrize("function", CASES)
def test_arrays_that_fit_are_accepted(function):
    if function is losses.smoothed_cross_entropy:
        call(function, "logits", np.zeros((2, 5, 7), np.float32))
    else:
        call(function)


@pytest.mark.parametrize(("function", "name"), ARRAYS)
def test_lists_wrong_dtypes_and_wrong_axes_are_errors(function, name):
    array = CASES[function][name]
    with pytest.raises(TypeError, match=rf"{name} \[.*got list.*jax\.numpy\.asarray"):
        call(function, name, array.tolist())
    if name != "weights" or function is attention.weighted_sum:
        other = array.astype(np.complex64)
        with pytest.raises(ValueError, match=rf"{name} \[.*got complex64"):
            call(function, name, other)
    if name not in NEVER_TOO_FEW_AXES and function is not positions.sinusoidal_encoding:
        with pytest.raises(ValueError, match=rf"{name} \[.*\] to have this shape, got \(\)"):
            call(function, name, array[(0,) * array.ndim])


@pytest.mark.parametrize(("function", "name", "shape", "sizes"), SIZES)
def test_sizes_that_do_not_fit_are_errors_with_and_without_jit(function, name, shape, sizes):
    value = np.zeros(shape, CASES[function][name].dtype)
    name_and_shape = rf"Expected {name} \[.*\] to have this shape, got \({', '.join(map(str, shape))}"
    with pytest.raises(ValueError, match=name_and_shape) as without_jit:
        call(function, name, value)
    assert re.search(sizes, str(without_jit.value))
    with pytest.raises(ValueError, match=name_and_shape):
        jax.eval_shape(lambda value: call(function, name, value), value)


def test_batch_axes_of_positions_are_broadcast():
    assert positions.relative_distance(jnp.zeros((3, 1), int), jnp.arange(4)).shape == (3, 1, 4)
    assert positions.rotary_encoding(QUERY, np.arange(5)).shape == QUERY.shape


def test_shape_annotations_are_checked_in_tests():
    with pytest.raises(jaxtyping.TypeCheckError):
        attention.attention_weights(QUERY, KEY, scale="large")


@pytest.mark.long
def test_annotation_of_jax_arrays_is_checked():
    @check_arrays
    def total(x: jaxtyping.Float[jax.Array, "A B"]):
        return x.sum()

    assert total(jnp.ones((2, 3))) == 6
    with pytest.raises(ValueError, match=r"x \[A B\] to have this shape, got \(2,\)"):
        total(jnp.ones(2))


def test_keywords_that_stars_collect_are_not_checked():
    @check_arrays
    def function(x: jaxtyping.Float[jax.Array, " A"], **arrays: jaxtyping.Float[jax.Array, " B"]):
        return x, arrays

    assert function(jnp.ones(2), y=jnp.ones(3))[1]["y"].shape == (3,)
