"""Tests of switches against edits: the same values, and one compiled program for all combinations."""

import copy
import types

import jax
import numpy as np
import pytest

from tests.models.cases import COMPRESSED, LANGUAGE_MODELS, TEXT_TO_IMAGE, TRANSFORMERS, UNIVERSALS
from tests.support.tiny import randomize_weights
from tests.support.tiny_lm import make_lm_config, write_documents
from tfm import interpret
from tfm.decoding.batches import few_widths, pad_ids
from tfm.errors import UserError
from tfm.interpret import EditedModel
from tfm.interpret.switches import (
    Switch,
    SwitchedModel,
    as_edits,
    as_python,
    list_parts,
    read_switches,
    with_switches,
)
from tfm.tasks import language_modeling
from tfm.testing.models import quick_jit
from tfm.testing.parameters import random_parameters
from tfm.workdir import runs

TEXT = "red dog"
LIMIT = 32  # tokens
CROSS = "decoder.layers_0.cross_attention.head_outputs"
ENCODER = "encoder.layers_0.self_attention.head_outputs"
SUBLAYER = "decoder.layers_0.feed_forward_residual.sublayer_output"
OFF = {
    "a head": [Switch(CROSS, 1)],
    "two heads": [Switch(ENCODER, 0), Switch(CROSS, 0)],
    "a sublayer": [Switch(SUBLAYER)],
    "a source token": [Switch("encoder.embeddings", 1)],
    "a target token": [Switch("decoder.embeddings", 1), Switch("decoder.embeddings", 2)],
}


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


@pytest.fixture(scope="module")
def switched(run):
    task = copy.copy(run.task)
    task.model = SwitchedModel(task.model)
    return task


@pytest.fixture(scope="module")
def parts(run):
    return list_parts(run.task, 16)


def assert_close(first, second):
    assert first.result == second.result
    assert [tokens for tokens, _ in first.beam.finished] == [tokens for tokens, _ in second.beam.finished]
    scores = [[score for _, score in each.beam.finished] for each in (first, second)]
    np.testing.assert_allclose(*scores, rtol=1e-5)
    probabilities = [[each.probability for each in one.predictions] for one in (first, second)]
    np.testing.assert_allclose(*probabilities, atol=1e-6)
    for kind, expected in second.attention.items():
        np.testing.assert_allclose(first.attention[kind].weights, expected.weights, atol=1e-6)


def test_parts_have_the_names_of_points(parts):
    assert set(parts.kinds) == {"encoder", "decoder", "cross"}
    assert parts.kinds["cross"][0] == CROSS
    assert parts.heads[CROSS] == 4
    assert parts.sublayers[SUBLAYER] == "decoder layer 0, feed-forward"
    assert parts.tracks == {"source": "encoder.embeddings", "read": "decoder.embeddings"}


@pytest.mark.long
def test_everything_on_equals_the_run_without_switches(run, switched, parts):
    on = switched.observe(with_switches(run.variables, parts, []), TEXT, LIMIT)
    assert_close(on, run.task.observe(run.variables, TEXT, LIMIT))


@pytest.mark.long
@pytest.mark.parametrize("name", OFF)
def test_switches_equal_edits(name, run, switched, parts):
    edited = copy.copy(run.task)
    edited.model = EditedModel(run.task.model, as_edits(parts, OFF[name]))
    observation = switched.observe(with_switches(run.variables, parts, OFF[name]), TEXT, LIMIT)
    assert_close(observation, edited.observe(run.variables, TEXT, LIMIT))
    on = switched.observe(with_switches(run.variables, parts, []), TEXT, LIMIT)
    assert [each.probability for each in on.predictions] != [
        each.probability for each in observation.predictions
    ]


class CountingModel(SwitchedModel):
    """Counts the calls that JAX traces, which are the compilations of its programs."""

    traced = 0

    def apply(self, *arguments, **keywords):
        CountingModel.traced += 1
        return super().apply(*arguments, **keywords)


@pytest.mark.long
def test_all_switches_and_lengths_share_one_program(run, parts):
    task = copy.copy(run.task)
    task.model = CountingModel(task.model)
    with few_widths():
        task.observe(with_switches(run.variables, parts, []), TEXT, LIMIT)
        traced = CountingModel.traced
        for off in OFF.values():
            task.observe(with_switches(run.variables, parts, off), TEXT, LIMIT)
            task.observe(with_switches(run.variables, parts, off), "red", LIMIT)
    assert traced > 0
    assert CountingModel.traced == traced


@pytest.mark.long
def test_switches_of_a_language_model_equal_edits(tmp_path):
    write_documents(tmp_path)
    task = language_modeling.create(make_lm_config(tmp_path), str(tmp_path))
    variables = task.init(jax.random.key(0))
    parts = list_parts(task, 16)
    off = [Switch(parts.kinds["decoder"][1], 1), Switch(parts.tracks["read"], 2)]
    switched, edited = copy.copy(task), copy.copy(task)
    switched.model = SwitchedModel(task.model)
    edited.model = EditedModel(task.model, as_edits(parts, off))
    expected = edited.observe(variables, "red dog", 16).predictions
    found = switched.observe(with_switches(variables, parts, off), "red dog", 16).predictions
    np.testing.assert_allclose(*[[each.probability for each in x] for x in (found, expected)], atol=1e-6)


TOKENS = np.array([[5, 6, 7, 8, 2]])
MODELS = {
    "layers that are used several times": (UNIVERSALS["halting"], (TOKENS, TOKENS)),
    "scanned layers": (LANGUAGE_MODELS["scan"], (TOKENS,)),
    "grouped keys": (TRANSFORMERS["grouped keys, RMSNorm, SwiGLU"], (TOKENS, TOKENS)),
    "compressed attention": (COMPRESSED["local and compressed"], (TOKENS,)),
    "pictures": (TEXT_TO_IMAGE["DALL-E"], (np.arange(12)[None] % 11,)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_switches_of_a_model_equal_edits(name):
    model, inputs = MODELS[name]
    params = random_parameters(model, *inputs)
    task = types.SimpleNamespace(model=model, init=lambda key: model.init(key, *inputs, train=False))
    parts = list_parts(task, 8)
    off = [Switch(point, count - 1) for point, count in parts.heads.items()][-1:]
    off += [Switch(point) for point in parts.sublayers][:1]
    off += [Switch(point, 1) for point in parts.tokens]
    assert len(off) >= 2
    apply = quick_jit(lambda variables: SwitchedModel(model).apply(variables, *inputs, train=False))
    for some in ([], off[:1], off):
        found = apply(with_switches({"params": params}, parts, some))
        expected, _ = quick_jit(
            lambda params, some=some: interpret.run(model, params, *inputs, edit=as_edits(parts, some))
        )(params)
        found, expected = (jax.tree.leaves(each)[0] for each in (found, expected))
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "track"), [("compressed attention", "read"), ("pictures", "tokens"), ("grouped keys", "read")]
)
def test_tokens_of_other_models_have_switches(name, track):
    model, inputs = MODELS.get(name, (None, None))
    if name == "grouped keys":
        model, inputs = MODELS["scanned layers"]
    task = types.SimpleNamespace(model=model, init=lambda key: model.init(key, *inputs, train=False))
    assert list_parts(task, 8).tracks == {track: "decoder.embeddings"}


def test_few_widths_are_powers_of_two():
    with few_widths():
        widths = [pad_ids([[5] * length]).shape[1] for length in (1, 9, 32, 33)]
    assert widths == [32, 32, 32, 64]


def test_python_of_switches_makes_the_same_edits(parts):
    off = [Switch(CROSS, 1), Switch(CROSS, 0), Switch(SUBLAYER), Switch("encoder.embeddings", 1)]
    assert as_python(parts, off).splitlines() == [
        "{",
        f'    "{CROSS}": interpret.zero_head([0, 1]),',
        f'    "{SUBLAYER}": interpret.zero,',
        '    "encoder.embeddings": interpret.zero_position(1),',
        "}",
    ]


@pytest.mark.parametrize(
    "switch",
    [Switch("encoder.layers_7.x"), Switch(CROSS), Switch(CROSS, 4), Switch(CROSS, -1), Switch(SUBLAYER, 0)],
)
def test_error_for_a_part_that_the_model_lacks(switch, run, parts):
    with pytest.raises(UserError, match="Expected a head, a sublayer or a token"):
        with_switches(run.variables, parts, [switch])


@pytest.mark.parametrize("row", ["name", ["name"], ["name", 1.5], ["name", True], [1, 1], None])
def test_error_for_a_row_that_is_no_switch(row):
    with pytest.raises(UserError, match="Expected \\[point, index\\]"):
        read_switches([row])


def test_switches_are_read_from_lists():
    assert read_switches([[CROSS, 1], [SUBLAYER, None]]) == [Switch(CROSS, 1), Switch(SUBLAYER)]
