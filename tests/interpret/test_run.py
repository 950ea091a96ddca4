"""Reading and editing in a forward pass and in scoring: against NumPy, and ablations made by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references.numpy_activations import activations
from tfm import interpret
from tfm.decoding.config import DecodingConfig
from tfm.decoding.score import score_pairs
from tfm.errors import UserError
from tfm.models import Transformer, TransformerConfig, decoder_lm, rnn_seq2seq, vit
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters

CONFIG = TransformerConfig(encoder_layers=1, decoder_layers=2, d_model=16, d_ff=24, heads=2)
MODEL = Transformer(CONFIG, vocabulary_size=20)
INPUTS = np.array([[5, 6, 7, 8, 2], [9, 10, 2, 0, 0]])
OTHER_INPUTS = np.array([[8, 3, 7, 4, 2], [12, 11, 13, 2, 0]])
TARGETS = np.array([[1, 4, 9, 13], [1, 7, 7, 5]])
CROSS = "decoder.layers_1.cross_attention"
PARAMS = random_parameters(MODEL, INPUTS, TARGETS)


@quick_jit(static_argnames="model")
def forward(params, inputs=INPUTS, model=MODEL):
    return model.apply({"params": params}, inputs, TARGETS, train=False)


def run(edit, params=PARAMS, inputs=INPUTS, model=MODEL, read=()):
    """(logits, reads) of one program."""

    @quick_jit
    def program(params):
        return interpret.run(model, params, inputs, TARGETS, read=read, edit=edit)

    return program(params)


def scale_parameters(path, factor):
    """PARAMS with one kernel, named by its path, times an array."""
    *_, last = path = path.split(".")

    def leaf(keys, x):
        return x * factor if [key.key for key in keys] == path else x

    assert last == "kernel"
    return jax.tree_util.tree_map_with_path(leaf, PARAMS)


@pytest.mark.long
@pytest.mark.parametrize("order", ["post", "pre", "norm_then_add"])
def test_each_activation_against_numpy(order):
    model = MODEL.clone(config=dataclasses.replace(CONFIG, norm_order=order))
    params = random_parameters(model, INPUTS, TARGETS)
    _, found = run({}, params, model=model, read="*")
    expected = activations(params, INPUTS, TARGETS, order)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=3e-5, err_msg=name)


@pytest.mark.long
def test_points_are_listed_with_their_shapes():
    points = interpret.list_points(MODEL, INPUTS, TARGETS)
    _, found = run({}, read="*")
    assert points.keys() == found.keys()
    for name, (axes, shape) in points.items():
        assert (shape.shape, shape.dtype, len(axes)) == (found[name].shape, found[name].dtype, shape.ndim)
    assert points[f"{CROSS}.weights"][0] == "BHLM"


@pytest.mark.long
@pytest.mark.parametrize(
    "attention", ["encoder.layers_0.self_attention", "decoder.layers_0.self_attention", CROSS]
)
def test_ablated_head_equals_zeroed_output_slice(attention):
    kept = np.array([1.0, 0.0])[:, None, None]
    expected = forward(scale_parameters(f"{attention}.output.kernel", kept))
    assert np.abs(expected - forward(PARAMS)).max() > 0.01
    for edit in ({"head_outputs": interpret.zero_head(1)}, {"weights": interpret.scale_head(1, 0)}):
        found, _ = run({f"{attention}.{name}": each for name, each in edit.items()})
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.long
def test_all_heads_in_one_program():
    """A head may be traced."""

    @quick_jit
    def each_head(heads):
        return jax.vmap(
            lambda head: interpret.run(
                MODEL, PARAMS, INPUTS, TARGETS, edit={f"{CROSS}.head_outputs": interpret.zero_head(head)}
            )[0]
        )(heads)

    found = each_head(jnp.arange(2))
    for head in range(2):
        kept = (np.arange(2) != head).astype(np.float32)[:, None, None]
        np.testing.assert_allclose(
            found[head], forward(scale_parameters(f"{CROSS}.output.kernel", kept)), atol=1e-5
        )


@pytest.mark.long
def test_ablated_neuron_equals_zeroed_output_row():
    kept = (np.arange(24) != 5).astype(np.float32)[:, None]
    expected = forward(scale_parameters("decoder.layers_0.feed_forward.output.kernel", kept))
    found, _ = run({"decoder.layers_0.feed_forward.hidden": interpret.zero_neuron(5)})
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("glob", [f"{CROSS}_residual.sublayer_output", "*layers_1.cross_a*.head_outputs"])
def test_ablated_sublayer_equals_zeroed_output(glob):
    expected = forward(scale_parameters(f"{CROSS}.output.kernel", 0.0))
    found, _ = run({glob: interpret.zero})
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.long
def test_edits_of_one_point_apply_in_their_order():
    edit = {
        f"{CROSS}.head_outputs": interpret.zero,
        f"{CROSS}.*_outputs": lambda value, point: value + 1.0,
    }
    _, found = run(edit, read=f"{CROSS}.head_outputs")
    np.testing.assert_array_equal(found[f"{CROSS}.head_outputs"], 1.0)


@pytest.mark.long
def test_a_position_that_nothing_is_taken_from():
    """Values at a source position of zero are as the weights of that position set to zero."""
    expected, _ = run({f"{CROSS}.weights": interpret.zero_position(2, "M")})
    found, _ = run({f"{CROSS}.value": interpret.zero_position(2)})
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - forward(PARAMS))[0].max() > 0.01


@pytest.mark.long
def test_target_position_changes_no_earlier_one():
    found, _ = run({"decoder.layers_0.self_attention_residual.input": interpret.zero_position(2)})
    changed = np.abs(found - forward(PARAMS)).max(-1)
    assert (changed[:, :2] < 1e-6).all()
    assert (changed[:, 2:] > 1e-3).all()


def test_positions_are_those_within_a_packed_row():
    seen = {}

    def record(value, point):
        seen.update(point.positions)
        return value

    packed = {"positions": jnp.array([[0, 1, 0, 1, 2]]), "segments": jnp.array([[1, 1, 2, 2, 2]])}
    keywords = {f"{side}_{name}": x for side in ("input", "target") for name, x in packed.items()}
    row = jnp.array([[4, 5, 6, 7, 8]])
    jax.eval_shape(
        lambda: interpret.run(MODEL, PARAMS, row, row, edit={f"{CROSS}.weights": record}, **keywords)[0]
    )
    assert {name: x.tolist() for name, x in seen.items()} == {"L": [[0, 1, 0, 1, 2]], "M": [[0, 1, 0, 1, 2]]}


@pytest.mark.long
def test_patching_all_gives_the_other_logits():
    other, reads = run({}, inputs=OTHER_INPUTS, read="*")
    expected = forward(PARAMS, OTHER_INPUTS)
    np.testing.assert_allclose(other, expected, atol=1e-6)
    each = {name: reads[name] for name in reads if name != "logits"}
    found, _ = run(interpret.patch(each))
    np.testing.assert_allclose(found, other, atol=1e-5)
    assert np.abs(found - forward(PARAMS)).max() > 0.01


@pytest.mark.long
def test_a_patched_encoder_output_gives_the_other_source():
    """The decoder knows nothing else of a source."""
    other, reads = run({}, inputs=OTHER_INPUTS[:1].repeat(2, 0), read="encoder.output")
    found, _ = run(interpret.patch(reads), inputs=INPUTS[:1].repeat(2, 0))
    np.testing.assert_allclose(found, other, atol=1e-5)


@pytest.mark.long
def test_one_row_replaces_all():
    _, reads = run({}, inputs=OTHER_INPUTS, read="encoder.output")
    first = {name: value[:1] for name, value in reads.items()}
    found, _ = run(interpret.patch(first))
    expected, _ = run(interpret.patch({name: value.repeat(2, 0) for name, value in first.items()}))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.long
def test_packed_rows_are_patched_index_by_index():
    segments = jnp.array([[1, 1, 2, 2, 2]])
    positions = jnp.array([[0, 1, 0, 1, 2]])
    packing = {f"{side}_segments": segments for side in ("input", "target")}
    packing |= {f"{side}_positions": positions for side in ("input", "target")}
    row = jnp.array([[4, 5, 6, 7, 8]])

    @quick_jit
    def program(params):
        first, reads = interpret.run(MODEL, params, row, row, read="*", **packing)
        edit = interpret.patch({name: value for name, value in reads.items() if name != "logits"})
        return first, interpret.run(MODEL, params, row[:, ::-1], row[:, ::-1], edit=edit, **packing)[0]

    np.testing.assert_allclose(*program(PARAMS), atol=1e-5)


@pytest.mark.long
def test_gradient_through_edits():
    names = (f"{CROSS}.head_outputs", "encoder.layers_0.feed_forward.hidden", f"{CROSS}.logits")

    def loss(factors):
        edits = (interpret.scale_head(0, factors[0]), interpret.scale_neuron(3, factors[1]))
        edit = dict(zip(names, (*edits, interpret.scale(factors[2])), strict=True))
        logits, _ = interpret.run(MODEL, PARAMS, INPUTS, TARGETS, edit=edit)
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
def test_all_model_forms_are_read_and_edited(fields):
    model = MODEL.clone(config=dataclasses.replace(CONFIG, **fields))
    edit = {f"{CROSS}.weights": interpret.zero_head(1), "encoder.*.hidden": interpret.zero_neuron(2)}
    expected, expected_reads = run(edit, read="*")

    @quick_jit
    def gradient(params):
        def loss(params):
            logits, reads = interpret.run(model, params, INPUTS, TARGETS, read="*", edit=edit)
            return logits.sum(), (logits, reads)

        return jax.grad(loss, has_aux=True)(params)

    _, (found, reads) = gradient(PARAMS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for name, value in reads.items():
        np.testing.assert_allclose(value, expected_reads[name], atol=1e-5, err_msg=name)


@pytest.mark.long
def test_bfloat16_stays_bfloat16():
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
def test_an_attention_function_of_ones_own():
    """Its weights are found by values that are one-hot; what it does inside is its own."""
    model = SigmoidAttention(CONFIG, 20)
    query, key, weights = (f"{CROSS}.{name}" for name in ("query", "key", "weights"))
    found, reads = run({weights: interpret.zero_head(1)}, model=model, read=[query, key, weights])
    without = scale_parameters(f"{CROSS}.output.kernel", np.array([1.0, 0.0])[:, None, None])
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
        jax.eval_shape(lambda: interpret.run(MODEL, PARAMS, INPUTS, TARGETS, edit=edit)[0])


@pytest.mark.long
def test_scores_are_log_probabilities_under_edits():
    edit = {f"{CROSS}.weights": interpret.zero_head(1)}
    targets = np.array([[4, 9, 13, 2], [7, 7, 2, 0]])

    @quick_jit
    def program(params):
        return interpret.score(MODEL, params, INPUTS, targets, read="logits", edit=edit)

    found, reads = program(PARAMS)
    shifted = np.concatenate([np.ones((2, 1), int), targets[:, :-1]], axis=1)
    assert np.abs(shifted - TARGETS)[0].max() == 0
    expected = jax.nn.log_softmax(reads["logits"])
    expected = np.take_along_axis(np.asarray(expected), targets[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(found, np.where(targets > 0, expected, 0), atol=1e-5)
    ids = [[row[row > 0].tolist() for row in side] for side in (INPUTS, targets)]
    each = score_pairs(interpret.EditedModel(MODEL, edit), PARAMS, *ids, DecodingConfig())
    for row, scores in enumerate(each):
        np.testing.assert_allclose(scores, found[row, : len(scores)], atol=1e-5)


OTHERS = {
    "decoder_lm": (
        decoder_lm.Model(decoder_lm.Config(layers=1, d_model=16, d_ff=24, heads=2, max_positions=8), 20),
        (TARGETS,),
        {
            "decoder.embeddings",
            "decoder.positions",
            "decoder.layers_0.self_attention.weights",
            "decoder.output",
        },
    ),
    "vit": (
        vit.Model(
            vit.Config(
                image_size=6,
                channels=1,
                patch_size=3,
                classes=5,
                encoder_layers=1,
                d_model=16,
                d_ff=24,
                heads=2,
            )
        ),
        (np.ones((2, 6, 6, 1), np.float32),),
        {
            "encoder.embeddings",
            "encoder.positions",
            "encoder.layers_0.self_attention.weights",
            "encoder.output",
        },
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_other_models_have_points_too(name):
    model, inputs, expected = OTHERS[name]
    params = random_parameters(model, *inputs)

    @quick_jit
    def program(params):
        plain = model.apply({"params": params}, *inputs, train=False)
        _, reads = interpret.run(model, params, *inputs, read="*")
        others = (x[::-1] for x in inputs)
        patched, _ = interpret.run(model, params, *others, edit=interpret.patch(reads))
        stack = "encoder" if name == "vit" else "decoder"
        edit = {f"{stack}.layers_0.self_attention.head_outputs": interpret.zero_head(1)}
        return plain, reads, patched, interpret.run(model, params, *inputs, edit=edit)[0]

    plain, reads, patched, without_head = program(params)
    assert expected | {"logits"} <= reads.keys() == interpret.list_points(model, *inputs).keys()
    np.testing.assert_allclose(reads["logits"], plain, atol=1e-5)
    np.testing.assert_allclose(patched, plain, atol=1e-5)
    assert np.abs(without_head - plain).max() > 1e-3


@pytest.mark.long
def test_attention_of_a_recurrent_model_is_read():
    config = rnn_seq2seq.Config(
        embedding_features=6, hidden_features=8, attention_features=5, output_features=6
    )
    model, name = rnn_seq2seq.Model(config, 20), "decoder.attention.weights"
    params = random_parameters(model, INPUTS, TARGETS)

    @quick_jit
    def program(params):
        return interpret.run(model, params, INPUTS, TARGETS, read="*")[1]

    reads = program(params)
    assert model.attention_points == {"cross": name}
    np.testing.assert_allclose(reads[name].sum(-1), 1, atol=1e-5)
    with pytest.raises(UserError, match=rf"{name} .*edited.*\*\.weights"):
        interpret.run(model, params, INPUTS, TARGETS, edit={"*.weights": interpret.zero})


def test_a_patch_from_a_shorter_run_leaves_the_later_positions_as_they_are():
    name = "encoder.layers_0.feed_forward.hidden"
    _, plain = run({}, read=name)
    short = np.full((2, 3, CONFIG.d_ff), 7.0, np.float32)
    _, patched = run(interpret.patch({name: short}), read=name)
    np.testing.assert_array_equal(patched[name][:, :3], short)
    np.testing.assert_array_equal(patched[name][:, 3:], plain[name][:, 3:])


def test_weights_patched_from_a_shorter_run_are_zero_for_the_later_keys():
    name = f"{CROSS}.weights"
    short = np.full((2, CONFIG.heads, TARGETS.shape[1], 3), 1 / 3, np.float32)
    _, patched = run(interpret.patch({name: short}), read=name)
    np.testing.assert_array_equal(patched[name][..., :3], short)
    np.testing.assert_array_equal(patched[name][..., 3:], 0)
