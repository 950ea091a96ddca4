"""Tests of edits during cached decoding against edited forward passes over its outputs."""

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm import interpret, layers
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID
from tfm.decoding.config import DecodingConfig, GenerationConfig
from tfm.decoding.generate import generate_batch, generate_ids
from tfm.decoding.protocol import search_parameters
from tfm.decoding.score import attend_pairs
from tfm.decoding.translate import search_batch
from tfm.errors import UserError
from tfm.layers.observe import Recorder, activate
from tfm.models import Transformer, TransformerConfig, decoder_lm
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters

CONFIG = TransformerConfig(encoder_layers=1, decoder_layers=2, d_model=16, d_ff=24, heads=2)


class TurnedOutput(layers.Embedding):
    """An embedding whose output table is rolled by one token.

    With random parameters, tied tables would make the model repeat the token that it reads.
    """

    def setup(self):
        super().setup()
        self.output_table = jnp.roll(self.table, 1, axis=0)


class VariedOutput(Transformer):
    def make_embedding(self):
        return TurnedOutput(self.vocabulary_size, self.config.d_model)


MODEL = VariedOutput(CONFIG, vocabulary_size=14)
INPUTS = np.array([[5, 6, 7, 8, 2], [9, 10, 2, 0, 0]])
OTHER_INPUTS = np.array([[8, 3, 7, 4, 2], [12, 11, 13, 2, 0]])
TARGETS = np.array([[1, 4, 9, 13, 5, 6, 3, 8], [1, 7, 7, 5, 3, 11, 4, 12]])
EXTRA, SHORTEST, BEAM = 3, 6, 3
FIRST, SECOND = (f"decoder.layers_{depth}" for depth in range(2))


@functools.cache
def make_params():
    return random_parameters(MODEL, INPUTS, TARGETS, deviation=0.35, seed=2)


@quick_jit
def other_reads(params):
    return interpret.run(MODEL, params, OTHER_INPUTS, TARGETS, read="*")[1]


def from_other(*names):
    reads = other_reads(make_params())
    return interpret.patch({name: reads[name] for name in names})


# The edits cover every kind of axis, both stacks, query positions and key positions.
ABLATIONS = {
    f"{SECOND}.cross_attention.weights": interpret.scale_head(1, 0.0),
    f"{FIRST}.self_attention.head_outputs": interpret.zero_head(0),
    f"{FIRST}.self_attention.logits": interpret.scale(1.7),
    f"{SECOND}.self_attention.weights": interpret.scale_position(1, 0.2, "M"),
    f"{FIRST}.self_attention.key": interpret.zero_position(2),
    f"{FIRST}.cross_attention.value": interpret.zero_position(3),
    f"{SECOND}.feed_forward.hidden": interpret.zero_neuron(4),
    f"{SECOND}.self_attention_residual.input": interpret.scale_position(2, 0.5),
    f"{FIRST}.cross_attention.weights": interpret.scale_position(4, 2.0, "M"),
    "encoder.output": interpret.zero_position(1),
    "decoder.positions": interpret.scale(0.5),
    "logits": lambda value, point: value - 3 * (point.positions["L"][..., None] == 1) * value,
}


@functools.cache
def patches():
    """Returns edits that insert activations of another run, for every kind of axis."""
    return from_other(
        "encoder.layers_0.self_attention.head_outputs",
        f"{FIRST}.self_attention.value",
        f"{FIRST}.self_attention.weights",
        f"{FIRST}.cross_attention.weights",
        f"{SECOND}.cross_attention.key",
        f"{SECOND}.feed_forward_residual.sublayer_output",
    )


def configure(beam):
    return DecodingConfig(beam_size=beam, max_extra_tokens=EXTRA, min_length=SHORTEST, length_penalty=0.0)


def search(beam, edit):
    @quick_jit
    def program(params):
        return interpret.decode(MODEL, params, INPUTS, configure(beam), n_best=beam, edit=edit)[0]

    return jax.tree.map(np.asarray, program(make_params()))


def plain_search(beam):
    @quick_jit
    def program(params):
        return search_batch(MODEL, (search_parameters(params),), INPUTS, configure(beam), beam)

    return jax.tree.map(np.asarray, program(make_params()))


@pytest.mark.long
@pytest.mark.parametrize("beam", [1, BEAM])
def test_decode_without_edits_equals_the_search_of_the_model(beam):
    found, expected = search(beam, {}), plain_search(beam)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@pytest.fixture(params=["ablations", "patches"])
def edits(request):
    return ABLATIONS if request.param == "ablations" else patches()


@pytest.mark.long
def test_edited_greedy_search_equals_edited_forward_passes(edits):
    @quick_jit
    def forward(targets):
        return interpret.run(MODEL, make_params(), INPUTS, targets, edit=edits)[0]

    length = INPUTS.shape[1] + EXTRA
    targets = np.zeros((2, length), int)
    targets[:, 0] = BOS_ID
    for position in range(length):
        logits = np.array(forward(targets)[:, position])
        logits[:, [PAD_ID, BOS_ID]] = -np.inf
        if position < SHORTEST - 1:
            logits[:, EOS_ID] = -np.inf
        if position + 1 < length:
            targets[:, position + 1] = logits.argmax(-1)
    found = search(1, edits)
    for row in range(2):
        count = found.lengths[row, 0] - 1  # the last token may be EOS because of the limit
        np.testing.assert_array_equal(found.tokens[row, 0, :count], targets[row, 1 : count + 1])
    assert (found.tokens != plain_search(1).tokens).any()


@pytest.mark.long
def test_scores_of_an_edited_beam_search_equal_edited_scores(edits):
    found = search(BEAM, edits)

    @quick_jit
    def score(tokens):
        def of_row(tokens):
            return interpret.score(MODEL, make_params(), INPUTS, tokens, edit=edits)[0].sum(-1)

        return jax.vmap(of_row, in_axes=1, out_axes=1)(tokens)

    np.testing.assert_allclose(found.scores, score(found.tokens), rtol=1e-4)
    assert found.lengths.min() >= SHORTEST
    assert (found.tokens != plain_search(BEAM).tokens).any()


@pytest.mark.long
def test_activations_of_cached_steps_equal_those_of_the_forward_pass():
    edit = ABLATIONS

    @quick_jit
    def programs(params):
        _, full = interpret.run(MODEL, params, INPUTS, TARGETS, read="*", edit=edit)
        keywords = {"width": 1, "max_length": TARGETS.shape[1], "method": "init_cache"}
        first = Recorder("*", edit)
        with activate(first):
            cache = MODEL.apply({"params": params}, INPUTS, **keywords)

        def step(cache, now):
            tokens, position = now
            recorder = Recorder("*", edit)
            arguments = (tokens[:, None], cache, position)
            with activate(recorder):
                _, cache = MODEL.apply({"params": params}, *arguments, method="decode_step")
            return cache, recorder.reads

        _, steps = jax.lax.scan(step, cache, (TARGETS.T, jnp.arange(TARGETS.shape[1])))
        return full, first.reads, steps

    full, first, steps = programs(make_params())
    assert full.keys() == first.keys() | steps.keys()
    points = interpret.list_points(MODEL, INPUTS, TARGETS)
    for name, value in (first | steps).items():
        axes, expected = points[name][0], np.asarray(full[name])
        if name in steps:  # [L, B, ...] and an axis of one position
            axis = axes.index("L" if "L" in axes else "M")
            value = np.moveaxis(np.asarray(value), 0, axis + 1).squeeze(axis)
        allowed = visible(name, axes)
        found, expected = (np.where(allowed, x, 0) for x in (value, expected))
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=name)


def visible(name, axes):
    """Returns a mask that excludes padding and the logits of later positions."""
    words = INPUTS != 0
    if name.endswith("cross_attention.logits"):
        return words[:, None, None]
    if name.endswith("self_attention.logits") and name.startswith("decoder"):
        return np.tril(np.ones((TARGETS.shape[1], TARGETS.shape[1]), bool))
    if name.endswith(("cross_attention.key", "cross_attention.value")):
        return words[:, :, None, None]
    if not name.startswith("encoder"):
        return True
    if axes[1] == "H":
        return words[:, None, :, None] & words[:, None, None]
    return words.reshape(*words.shape, *[1] * (len(axes) - 2))


@pytest.mark.long
def test_activations_of_hypotheses_equal_those_of_the_forward_pass():
    name = f"{SECOND}.cross_attention.weights"
    edit = patches()

    @quick_jit
    def program(params):
        found, reads = interpret.decode(
            MODEL, params, INPUTS, configure(BEAM), n_best=2, edit=edit, read=[name, "encoder.output"]
        )
        second, expected = interpret.score(
            MODEL, params, INPUTS, found.tokens[:, 1], edit=edit, read=[name, "encoder.output"]
        )
        return found, reads, second.sum(-1), expected

    found, reads, second, expected = program(make_params())
    assert reads[name].shape == (2, 2, 2, 8, 5)
    np.testing.assert_allclose(found.scores[:, 1], second, rtol=1e-4)
    for each, value in reads.items():
        np.testing.assert_allclose(value[:, 1], expected[each], atol=1e-5)


@pytest.mark.long
def test_activations_have_the_dtype_of_the_search():
    config = DecodingConfig(max_extra_tokens=EXTRA, dtype="bfloat16")
    _, reads = jax.eval_shape(
        lambda: interpret.decode(MODEL, make_params(), INPUTS, config, read="encoder.output")
    )
    assert reads["encoder.output"].dtype == jnp.bfloat16


@pytest.mark.long
def test_copy_of_an_edited_model_keeps_the_edits():
    edited = interpret.EditedModel(MODEL, {"logits": interpret.zero})
    copied = copy.copy(edited)
    assert copied.config is MODEL.config
    logits = copied.apply({"params": make_params()}, INPUTS, TARGETS, train=False)
    assert not logits.any()


def test_alignments_of_an_edited_model_include_the_edits():
    edit = {f"{SECOND}.cross_attention.weights": lambda value, point: jnp.full_like(value, 0.25)}
    pairs = ([[5, 6, 2]], [[7, 2]])
    (found,) = attend_pairs(interpret.EditedModel(MODEL, edit), make_params(), *pairs, DecodingConfig())
    np.testing.assert_allclose(found, 0.25)


LM = decoder_lm.Model(
    decoder_lm.Config(layers=2, d_model=16, d_ff=24, heads=2, max_positions=16), vocabulary_size=14
)
CONTEXT = np.array([[1, 5, 9], [1, 7, 0]])
LAST = np.array([4, 8])


@pytest.mark.long
@pytest.mark.parametrize("beam", [1, BEAM])
def test_scores_of_edited_continuations_equal_edited_forward_passes(beam):
    """Positions count from the start of the prefix, which the model reads in one pass."""
    params = random_parameters(LM, CONTEXT, deviation=0.35)
    edit = {
        f"{FIRST}.self_attention.weights": interpret.scale_position(1, 0.1, "M"),
        f"{SECOND}.self_attention.head_outputs": interpret.zero_head(0),
        f"{SECOND}.self_attention_residual.input": interpret.scale_position(4, 0.3),
        f"{FIRST}.self_attention.key": interpret.scale_position(3, -1.0),
    }
    config = GenerationConfig(samples=0, beam_size=beam, max_tokens=4, length_penalty=0.0)

    @quick_jit
    def program(params):
        members = (search_parameters(params),)
        edited = interpret.EditedModel(LM, edit)
        return [generate_batch(model, members, CONTEXT, LAST, config, None) for model in (LM, edited)]

    @quick_jit
    def forward(tokens):
        return jax.nn.log_softmax(interpret.run(LM, params, tokens, edit=edit)[0])

    plain, found = program(params)
    assert np.abs(plain.scores - found.scores).max() > 1e-3
    for row, prefix in enumerate(([1, 5, 9, 4], [1, 7, 8])):
        ids = np.asarray(found.tokens)[row, 0, : found.lengths[row, 0]]
        tokens = np.zeros((1, 9), int)
        tokens[0, : len(prefix) + len(ids)] = [*prefix, *ids]
        each = np.asarray(forward(tokens))[0, len(prefix) - 1 :]
        score = sum(each[i, token] for i, token in enumerate(ids))
        np.testing.assert_allclose(found.scores[row, 0], score, rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("point", ["weights", "logits", "key"])
def test_patching_a_continuation_with_its_own_activations_changes_nothing(point):
    """The prefix has padding, whose weights must not become those of a token."""
    params = random_parameters(LM, CONTEXT, deviation=0.35)
    config = GenerationConfig(samples=0, beam_size=1, max_tokens=4)
    prompt = [5, 9, 4, 7, 11]
    ((plain,),) = generate_ids(LM, params, [prompt], config)
    tokens = np.array([[1, *prompt, *plain.ids[:-1]]])
    _, reads = interpret.run(LM, params, tokens, read=f"{FIRST}.self_attention.{point}")
    edited = interpret.EditedModel(LM, interpret.patch(reads))
    ((found,),) = generate_ids(edited, params, [prompt], config)
    assert found.ids == plain.ids
    assert found.score == pytest.approx(plain.score, rel=1e-4)


@pytest.mark.long
def test_prefill_in_two_parts_equals_prefill_at_once():
    params = random_parameters(LM, CONTEXT)
    edited = interpret.EditedModel(LM, {f"{FIRST}.self_attention.weights": interpret.zero_head(1)})

    @quick_jit
    def program(params):
        variables, size = {"params": params}, {"width": 2, "max_length": 3, "method": "init_cache"}
        whole = edited.apply(variables, CONTEXT, **size)
        part = edited.apply(variables, CONTEXT[:, :1], **size)
        part = edited.apply(variables, CONTEXT[:, 1:], part, method="prefill")
        tokens = jnp.array([[4, 5], [6, 7]])
        return [edited.apply(variables, tokens, each, 0, method="decode_step")[0] for each in (whole, part)]

    np.testing.assert_allclose(*program(params), atol=1e-5)


@pytest.mark.long
def test_edits_receive_the_row_of_each_hypothesis_in_every_call():
    rows = []

    def edit(value, point):
        rows.append(point.rows.tolist())
        return value

    edited = interpret.EditedModel(LM, {f"{FIRST}.self_attention.weights": edit})

    def program(params):
        variables = {"params": params}
        cache = edited.apply(variables, CONTEXT[:, :1], width=3, max_length=3, method="init_cache")
        cache = edited.apply(variables, CONTEXT[:, 1:], cache, method="prefill")
        return edited.apply(variables, np.ones((2, 3), int), cache, 0, method="decode_step")[0]

    jax.eval_shape(program, jax.eval_shape(lambda: random_parameters(LM, CONTEXT)))
    assert rows == [[0, 1], [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1]]


@pytest.mark.parametrize(
    ("edit", "config", "message"),
    [
        ({"encoder.layers_0.hidden": interpret.zero}, {}, "matches none"),
        ({f"{FIRST}.self_attention.weigths": interpret.zero}, {}, "nearest are .*self_attention.weights"),
        ({"logits": interpret.zero}, {"coverage_penalty": 0.2}, "coverage penalty"),
        *(
            (
                {f"{FIRST}.self_attention.weights": interpret.zero_head(head)},
                {},
                r"axis H: .*from 0 to 1",
            )
            for head in (2, -1, 0.5, "1")
        ),
    ],
)
def test_mistakes_are_user_errors(edit, config, message):
    config = DecodingConfig(max_extra_tokens=EXTRA, **config)
    with pytest.raises(UserError, match=message):
        jax.eval_shape(lambda: interpret.decode(MODEL, make_params(), INPUTS, config, edit=edit)[0])


def test_editing_logits_of_the_features_method_is_an_error():
    edited = interpret.EditedModel(MODEL, {"logits": interpret.zero})
    with pytest.raises(UserError, match="'logits', which matches none"):
        jax.eval_shape(
            lambda: edited.apply({"params": make_params()}, INPUTS, TARGETS, train=False, method="features")
        )
