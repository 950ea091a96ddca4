"""Tests of reads and edits in forward passes and scores, against NumPy and equivalent parameters."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import CLASSIFIERS, DETECTORS, RNNS, decoder_lm
from tests.references.numpy_activations import activations
from tfm import interpret
from tfm.decoding.config import DecodingConfig
from tfm.decoding.score import score_pairs
from tfm.errors import UserError
from tfm.models import Transformer, TransformerConfig
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters

CONFIG = TransformerConfig(encoder_layers=1, decoder_layers=2, d_model=16, d_ff=24, heads=2)
MODEL = Transformer(CONFIG, vocabulary_size=20)
INPUTS = np.array([[5, 6, 7, 8, 2], [9, 10, 2, 0, 0]])
OTHER_INPUTS = np.array([[8, 3, 7, 4, 2], [12, 11, 13, 2, 0]])
TARGETS = np.array([[1, 4, 9, 13], [1, 7, 7, 5]])
CROSS = "decoder.layers_1.cross_attention"


@functools.cache
def make_params():
    return random_parameters(MODEL, INPUTS, TARGETS)


@quick_jit(static_argnames="model")
def forward(params, inputs=INPUTS, model=MODEL):
    return model.apply({"params": params}, inputs, TARGETS, train=False)


def run(edit, params=None, inputs=INPUTS, model=MODEL, read=()):
    """Returns (logits, reads) of a compiled program. Its parameters are those of MODEL by default."""

    @quick_jit
    def program(params):
        return interpret.run(model, params, inputs, TARGETS, read=read, edit=edit)

    return program(make_params() if params is None else params)


def scale_kernel(name, factor):
    """Returns the parameters of MODEL with the kernel of a module multiplied by an array."""
    path = [*name.split("."), "kernel"]

    def leaf(keys, x):
        return x * factor if [key.key for key in keys] == path else x

    return jax.tree_util.tree_map_with_path(leaf, make_params())


@pytest.mark.long
@pytest.mark.parametrize("order", ["post", "pre", "norm_then_add"])
def test_every_activation_equals_numpy(order):
    model = MODEL.clone(config=dataclasses.replace(CONFIG, norm_order=order))
    params = random_parameters(model, INPUTS, TARGETS)
    _, found = run({}, params, model=model, read="*")
    expected = activations(params, INPUTS, TARGETS, order)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=3e-5, err_msg=name)


def test_points_of_a_pass_with_dropout_are_listed():
    model = Transformer(dataclasses.replace(MODEL.config, dropout=0.1), MODEL.vocabulary_size)
    keywords = {"train": True, "rngs": {"dropout": jax.random.key(0)}}
    assert interpret.list_points(model, INPUTS, TARGETS, **keywords).keys() == (
        interpret.list_points(model, INPUTS, TARGETS).keys()
    )


@pytest.mark.long
def test_points_are_listed_with_their_shapes():
    points = interpret.list_points(MODEL, INPUTS, TARGETS)
    _, found = run({}, read="*")
    assert points.keys() == found.keys()
    for name, (axes, shape) in points.items():
        assert (shape.shape, shape.dtype, len(axes)) == (found[name].shape, found[name].dtype, shape.ndim)
    assert points[f"{CROSS}.weights"][0] == "BHLM"


WITHOUT_HEAD = np.array([1.0, 0.0])[:, None, None]
WITHOUT_NEURON = (np.arange(CONFIG.d_ff) != 5).astype(np.float32)[:, None]
ABLATIONS = {  # point: (edit, name of a kernel, factor of the kernel that has the same effect)
    "encoder.layers_0.self_attention.head_outputs": (interpret.zero_head(1), "output", WITHOUT_HEAD),
    "decoder.layers_0.self_attention.weights": (interpret.scale_head(1, 0), "output", WITHOUT_HEAD),
    f"{CROSS}.head_outputs": (interpret.zero_head(jnp.array(1)), "output", WITHOUT_HEAD),
    f"{CROSS}.value": (interpret.zero_head(1), "value", WITHOUT_HEAD[:, 0]),
    "decoder.layers_0.feed_forward.hidden": (interpret.zero_neuron(5), "output", WITHOUT_NEURON),
    f"{CROSS}_residual.sublayer_output": (interpret.zero, "output", 0.0),
    "*layers_1.cross_a*.head_outputs": (interpret.zero, "output", 0.0),
}


@pytest.mark.long
@pytest.mark.parametrize("name", ABLATIONS)
def test_ablation_equals_zeros_in_a_kernel(name):
    edit, kernel, factor = ABLATIONS[name]
    module = CROSS if "cross" in name else name.rpartition(".")[0]
    expected = forward(scale_kernel(f"{module}.{kernel}", factor))
    assert np.abs(expected - forward(make_params())).max() > 0.01
    np.testing.assert_allclose(run({name: edit})[0], expected, atol=1e-5)


@pytest.mark.long
def test_index_of_a_head_may_be_a_tracer():
    def without(head):
        edit = {f"{CROSS}.head_outputs": interpret.zero_head(head)}
        return interpret.run(MODEL, make_params(), INPUTS, TARGETS, edit=edit)[0]

    found = quick_jit(jax.vmap(without))(jnp.arange(2))
    expected = forward(scale_kernel(f"{CROSS}.output", WITHOUT_HEAD))
    np.testing.assert_allclose(found[1], expected, atol=1e-5)


@pytest.mark.long
def test_edits_of_the_same_point_apply_in_their_order():
    edit = {
        f"{CROSS}.head_outputs": interpret.zero,
        f"{CROSS}.*_outputs": lambda value, point: value + 1.0,
    }
    _, found = run(edit, read=f"{CROSS}.head_outputs")
    np.testing.assert_array_equal(found[f"{CROSS}.head_outputs"], 1.0)


@pytest.mark.long
def test_edit_of_a_target_position_changes_no_earlier_position():
    found, _ = run({"decoder.layers_0.self_attention_residual.input": interpret.zero_position(2)})
    changed = np.abs(found - forward(make_params())).max(-1)
    assert (changed[:, :2] < 1e-6).all()
    assert (changed[:, 2:] > 1e-3).all()


PACKED_ROW = np.array([[4, 5, 6, 7, 8]])
PACKED_POSITIONS = [[0, 1, 0, 1, 2]]
# Arrays of JAX stay concrete in a trace, so that a test can read the positions that an edit receives.
PACKING = {
    f"{side}_{name}": jnp.array(value)
    for side in ("input", "target")
    for name, value in (("segments", [[1, 1, 2, 2, 2]]), ("positions", PACKED_POSITIONS))
}


def test_positions_of_packed_rows_restart_with_each_segment():
    seen = {}

    def record(value, point):
        seen.update(point.positions)
        return value

    edit = {f"{CROSS}.weights": record}
    jax.eval_shape(
        lambda: interpret.run(MODEL, make_params(), PACKED_ROW, PACKED_ROW, edit=edit, **PACKING)[0]
    )
    assert {name: x.tolist() for name, x in seen.items()} == {"L": PACKED_POSITIONS, "M": PACKED_POSITIONS}


@pytest.mark.long
def test_patching_all_activations_gives_the_logits_of_the_other_run():
    other, reads = run({}, inputs=OTHER_INPUTS, read="*")
    expected = forward(make_params(), OTHER_INPUTS)
    np.testing.assert_allclose(other, expected, atol=1e-6)
    each = {name: reads[name] for name in reads if name != "logits"}
    found, _ = run(interpret.patch(each))
    np.testing.assert_allclose(found, other, atol=1e-5)
    assert np.abs(found - forward(make_params())).max() > 0.01


@pytest.mark.long
def test_patch_of_one_row_replaces_all_rows():
    _, reads = run({}, inputs=OTHER_INPUTS, read="encoder.output")
    first = {name: value[:1] for name, value in reads.items()}
    found, _ = run(interpret.patch(first))
    expected, _ = run(interpret.patch({name: value.repeat(2, 0) for name, value in first.items()}))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.long
def test_packed_rows_are_patched_index_by_index():
    other_row = PACKED_ROW[:, ::-1]

    @quick_jit
    def program(params):
        first, reads = interpret.run(MODEL, params, PACKED_ROW, PACKED_ROW, read="*", **PACKING)
        edit = interpret.patch({name: value for name, value in reads.items() if name != "logits"})
        return first, interpret.run(MODEL, params, other_row, other_row, edit=edit, **PACKING)[0]

    np.testing.assert_allclose(*program(make_params()), atol=1e-5)


@pytest.mark.long
def test_gradients_through_edits_equal_finite_differences():
    names = (f"{CROSS}.head_outputs", "encoder.layers_0.feed_forward.hidden", f"{CROSS}.logits")

    def loss(factors):
        edits = (interpret.scale_head(0, factors[0]), interpret.scale_neuron(3, factors[1]))
        edit = dict(zip(names, (*edits, interpret.scale(factors[2])), strict=True))
        logits, _ = interpret.run(MODEL, make_params(), INPUTS, TARGETS, edit=edit)
        return (logits[..., 7] - logits[..., 3]).sum()

    at, step = jnp.array([0.7, 1.2, 0.9]), 4e-3
    found = quick_jit(jax.grad(loss))(at)
    compiled = quick_jit(loss)
    expected = [(compiled(at + d) - compiled(at - d)) / (2 * step) for d in step * jnp.eye(3)]
    np.testing.assert_allclose(found, expected, rtol=0.02)
    assert (np.abs(found) > 0.01).all()


@pytest.mark.long
@pytest.mark.parametrize(
    "fields", [{"scan": True, "remat": True}, {"remat": True}, {"attention": "xla"}], ids=str
)
def test_edits_and_reads_do_not_depend_on_scan_remat_or_attention(fields):
    model = MODEL.clone(config=dataclasses.replace(CONFIG, **fields))
    edit = {f"{CROSS}.weights": interpret.zero_head(1), "encoder.*.hidden": interpret.zero_neuron(2)}
    expected, expected_reads = run(edit, read="*")

    @quick_jit
    def gradient(params):
        def loss(params):
            logits, reads = interpret.run(model, params, INPUTS, TARGETS, read="*", edit=edit)
            return logits.sum(), (logits, reads)

        return jax.grad(loss, has_aux=True)(params)

    _, (found, reads) = gradient(make_params())
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for name, value in reads.items():
        np.testing.assert_allclose(value, expected_reads[name], atol=1e-5, err_msg=name)


@pytest.mark.long
def test_edits_of_a_bfloat16_model_keep_its_dtypes():
    model = MODEL.clone(config=dataclasses.replace(CONFIG, dtype="bfloat16"))
    edit = {
        f"{CROSS}.head_outputs": interpret.scale_head(1, jnp.float32(0)),
        "*.hidden": interpret.scale(0.5),
    }
    found, reads = run(edit, model=model, read="*")
    expected, _ = run(edit)
    np.testing.assert_allclose(found.astype(np.float32), expected, atol=0.3)
    dtypes = {name: value.dtype for name, value in reads.items()}
    assert {dtypes.pop(name) for name in [*dtypes] if name.endswith(".logits")} == {jnp.dtype("float32")}
    assert {*dtypes.values()} == {jnp.dtype("bfloat16")}


def sigmoid_attention(query, key, value, *, mask):
    logits = jnp.einsum("blhk,bmhk->bhlm", query, key)
    return jnp.einsum("bhlm,bmhv->blhv", jnp.where(mask, jax.nn.sigmoid(logits), 0.0), value)


class SigmoidAttention(Transformer):
    def make_attention(self):
        return super().make_attention().clone(attention=sigmoid_attention)


@pytest.mark.long
def test_weights_of_a_custom_attention_function_are_read_and_edited():
    """The weights are computed from one-hot values, because the function does not expose them."""
    model = SigmoidAttention(CONFIG, 20)
    query, key, weights = (f"{CROSS}.{name}" for name in ("query", "key", "weights"))
    found, reads = run({weights: interpret.zero_head(1)}, model=model, read=[query, key, weights])
    without = scale_kernel(f"{CROSS}.output", WITHOUT_HEAD)
    np.testing.assert_allclose(found, forward(without, model=model), atol=1e-5)
    logits = np.einsum("blhk,bmhk->bhlm", reads[query], reads[key])
    expected = np.where((INPUTS != 0)[:, None, None], 1 / (1 + np.exp(-logits)), 0)
    np.testing.assert_allclose(reads[weights][:, 0], expected[:, 0], atol=1e-5)
    with pytest.raises(UserError, match=r"no activation decoder\.layers_1.*\.logits: the attention function"):
        run({f"{CROSS}.logits": interpret.zero}, model=model)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"decoder.*.cross_atention.weights": interpret.zero}, r"nearest are .*cross_attention\.weights"),
        (
            {"logits": lambda value, point: value[:1]},
            r"float32\[2, 4, 20\] at logits \(axes BLV\), got float32",
        ),
        ({"logits": lambda value, point: value.astype("int32")}, r"got int32\[2, 4, 20\]"),
        ({"logits": lambda value, point: None}, r"got None"),
        ({"logits": interpret.zero_head(0)}, r"logits has no axis H: its axes are BLV"),
        (
            {"logits": interpret.replace_with(jnp.zeros(20))},
            r"axes BLV and the shape \[2, 'L', 20\], got \[20\]",
        ),
        ({"logits": interpret.replace_with(jnp.zeros((3, 4, 20)))}, r"\[2, 'L', 20\], got \[3, 4, 20\]"),
        ({"logits": interpret.replace_with(jnp.zeros((2, 4, 8)))}, r"\[2, 'L', 20\], got \[2, 4, 8\]"),
    ],
)
def test_mistakes_are_user_errors(edit, message):
    with pytest.raises(UserError, match=message):
        jax.eval_shape(lambda: interpret.run(MODEL, make_params(), INPUTS, TARGETS, edit=edit)[0])


@pytest.mark.long
def test_score_returns_the_log_probabilities_of_the_edited_model():
    edit = {f"{CROSS}.weights": interpret.zero_head(1)}
    targets = np.array([[4, 9, 13, 2], [7, 7, 2, 0]])

    @quick_jit
    def program(params):
        return interpret.score(MODEL, params, INPUTS, targets, read="logits", edit=edit)

    found, reads = program(make_params())
    shifted = np.concatenate([np.ones((2, 1), int), targets[:, :-1]], axis=1)
    assert np.abs(shifted - TARGETS)[0].max() == 0
    expected = jax.nn.log_softmax(reads["logits"])
    expected = np.take_along_axis(np.asarray(expected), targets[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(found, np.where(targets > 0, expected, 0), atol=1e-5)
    ids = [[row[row > 0].tolist() for row in side] for side in (INPUTS, targets)]
    each = score_pairs(interpret.EditedModel(MODEL, edit), make_params(), *ids, DecodingConfig())
    for row, scores in enumerate(each):
        np.testing.assert_allclose(scores, found[row, : len(scores)], atol=1e-5)


OTHERS = {
    "decoder": (decoder_lm(), TARGETS),
    "encoder": (CLASSIFIERS["ViT"], np.random.default_rng(0).normal(size=(2, 6, 6, 2)).astype(np.float32)),
}


@pytest.mark.long
@pytest.mark.parametrize("stack", OTHERS)
def test_other_models_are_read_patched_and_edited(stack):
    model, inputs = OTHERS[stack]
    params = random_parameters(model, inputs)

    @quick_jit
    def program(params):
        plain = model.apply({"params": params}, inputs, train=False)
        _, reads = interpret.run(model, params, inputs, read="*")
        patched, _ = interpret.run(model, params, inputs[::-1], edit=interpret.patch(reads))
        edit = {f"{stack}.layers_0.self_attention.head_outputs": interpret.zero_head(1)}
        return plain, reads, patched, interpret.run(model, params, inputs, edit=edit)[0]

    plain, reads, patched, without_head = program(params)
    names = ("embeddings", "positions", "layers_0.self_attention.weights", "output")
    assert {f"{stack}.{name}" for name in names} <= reads.keys()
    assert reads.keys() == interpret.list_points(model, inputs).keys()
    np.testing.assert_allclose(reads["logits"], plain, atol=1e-5)
    np.testing.assert_allclose(patched, plain, atol=1e-5)
    assert np.abs(without_head - plain).max() > 1e-3


@pytest.mark.long
def test_model_with_other_variables_than_parameters_is_edited():
    """The statistics in DETR's backbone are no parameters."""
    model, images = DETECTORS["DETR"], np.ones((1, 16, 16, 2), np.float32)
    variables = quick_jit(lambda: model.init(jax.random.key(0), images, train=False))()
    name = "decoder.layers_0.cross_attention.weights"
    edit = {name: interpret.zero_head(1)}
    assert name in interpret.list_points(model, images)
    _, reads = quick_jit(lambda: interpret.run(model, variables, images, read=name, edit=edit))()
    np.testing.assert_allclose(reads[name].sum(-1)[:, 0], 1, atol=1e-5)
    np.testing.assert_array_equal(reads[name][:, 1], 0)


@pytest.mark.long
def test_attention_of_recurrent_models_is_read_but_not_edited():
    model, name = RNNS["Bahdanau"], "decoder.attention.weights"
    params = random_parameters(model, INPUTS, TARGETS)
    _, reads = run({}, params, model=model, read="*")
    assert model.attention_points == {"cross": name}
    np.testing.assert_allclose(reads[name].sum(-1), 1, atol=1e-5)
    with pytest.raises(UserError, match=rf"{name} .*edited.*\*\.weights"):
        interpret.run(model, params, INPUTS, TARGETS, edit={"*.weights": interpret.zero})


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("encoder.layers_0.feed_forward.hidden", (2, 3, CONFIG.d_ff)),
        (f"{CROSS}.weights", (2, CONFIG.heads, TARGETS.shape[1], 3)),
    ],
)
def test_patch_from_a_shorter_run_keeps_later_positions_and_hides_later_keys(name, shape):
    short = np.full(shape, 1 / 3, np.float32)
    (_, plain), (_, patched) = run({}, read=name), run(interpret.patch({name: short}), read=name)
    at = (slice(None), slice(None, 3)) if name.endswith("hidden") else (..., slice(None, 3))
    later = (slice(None), slice(3, None)) if name.endswith("hidden") else (..., slice(3, None))
    np.testing.assert_array_equal(patched[name][at], short)
    np.testing.assert_array_equal(patched[name][later], plain[name][later] if plain[name].ndim == 3 else 0)
