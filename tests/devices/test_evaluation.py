"""Tests of evaluation and decoding with parameters sharded over 8 virtual devices, against one device."""

import dataclasses
import itertools
import math
import re

import jax
import numpy as np
import pytest

from tests.support.comparison import assert_trees_equal
from tests.support.programs import initialize
from tests.support.tiny import MODEL, make_config, train_run
from tests.tasks.cases import TASKS
from tfm.decoding.config import DecodingConfig
from tfm.decoding.protocol import search_parameters
from tfm.decoding.translate import search_batch
from tfm.devices.mesh import place_rows
from tfm.tasks.translation.task import Config, Translation
from tfm.testing.tasks import make_tiny_run
from tfm.training.config import TrainingConfig
from tfm.training.partitioning import make_evaluation_partitioner, make_partitioner
from tfm.training.task import Context
from tfm.workdir import runs

DEVICES = 8
CASES = [
    ("translation", "transformer", {"mesh_fsdp": 8}),
    ("image_classification", "vit", {"mesh_fsdp": 4}),
    ("language_modeling", "decoder_lm", {"mesh_fsdp": 2, "mesh_tensor": 2}),
]


def place(task, variables, **fields):
    """Returns variables in the layout of a run with these fields of the training config."""
    partitioner = make_evaluation_partitioner(TrainingConfig(**fields), task.init)
    return partitioner.fetch_variables(partitioner.place(variables))


def assert_divided(params, parts=DEVICES):
    """Checks that matrices are sharded over `parts` devices. Vectors may be on all devices."""
    on_first = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(params))
    assert on_first < (1 / parts + 0.25) * sum(x.nbytes for x in jax.tree.leaves(params))


def scores_of(case, variables):
    """Returns ({name: score} of validation and of the split "test", outputs of the split "test")."""
    scores = dict(case.task.evaluate(variables, case.task.open_data()).scores)
    for report in case.task.report(variables, "test"):
        scores |= {score.name: score.value for score in report.scores}
    return scores, report.outputs


@pytest.mark.parametrize(("task", "model", "mesh"), CASES)
def test_outputs_and_scores_equal_those_of_one_device(task, model, mesh, tmp_path):
    case = make_tiny_run(TASKS[task][model], tmp_path / "case")
    variables = jax.device_get(case.random_variables())
    one = place(case.task, variables, parallel="jit")
    scores, outputs = scores_of(case, one)
    divided = place(case.task, variables, **mesh)
    assert_divided(divided["params"], math.prod(mesh.values()))
    divided_scores, divided_outputs = scores_of(case, divided)
    assert divided_scores.keys() == scores.keys()
    for name, value in scores.items():
        np.testing.assert_allclose(divided_scores[name], value, rtol=2e-5, err_msg=name)
    if task == "language_modeling":
        bits, divided_bits = (list(map(float, each)) for each in (outputs, divided_outputs))
        np.testing.assert_allclose(divided_bits, bits, rtol=1e-3)
        assert generate(case, divided) == generate(case, one)
    else:
        assert divided_outputs == outputs


def generate(case, variables):
    """Returns sampled continuations of three texts."""
    texts, decoding = ["", "a b", "b"], dataclasses.replace(case.config.decoding, samples=2, max_tokens=7)
    return [[each.text for each in row] for row in case.task.generate(variables["params"], texts, decoding)]


class Tokenizer:
    """A stand-in for a tokenizer of 88 pieces."""

    def __len__(self):
        return 88


def test_no_device_has_a_complete_parameter():
    """All sizes of this model differ from the sizes of activations."""
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 56, "d_ff": 104, "heads": 4, "dropout": 0.0}
    task = Translation(Config(model=dataclasses.replace(MODEL, **sizes)), Tokenizer())
    params = place(task, jax.device_get(initialize(task)), mesh_fsdp=DEVICES)
    assert_divided(params)
    shapes = {tuple(sorted(x.shape)) for x in jax.tree.leaves(params) if x.ndim > 1} | {(56, 56)}
    members = (search_parameters(params),)
    assert_divided(members)
    side = np.ones((16, 12), np.int32)
    names = itertools.product(("input", "target"), ("s", "_positions", "_segments"))
    batch = place_rows({"".join(name): side for name in names}, like=params)
    loss = jax.jit(lambda params, batch: task.loss({"params": params}, batch, Context()).metrics)
    decoding = DecodingConfig(beam_size=3)
    lowered = [
        loss.lower(params, batch),
        search_batch.lower(task.model, members, place_rows(side, like=members), decoding),
    ]
    whole = sum(x.nbytes for x in jax.tree.leaves(params))
    for program in lowered:
        compiled = program.compile()
        assert compiled.memory_analysis().argument_size_in_bytes < 0.2 * whole
        found = re.findall(r"\b\w+\[(\d+(?:,\d+)+)\]", compiled.as_text())
        seen = {tuple(sorted(map(int, dimensions.split(",")))) for dimensions in found}
        assert not shapes & seen
        assert (7, 104) in seen  # an eighth of a kernel, so that the search for shapes works


def test_run_is_loaded_and_evaluated_with_the_layout_of_its_training(corpus, tmp_path):
    config = make_config(corpus, mesh_fsdp=DEVICES, steps=1, eval_every=1)
    workdir = tmp_path / "run"
    (row,) = (row for row in train_run(config, workdir) if "validation/nll" in row)
    run = runs.load(str(workdir))
    assert_divided(run.params)
    jit = dataclasses.replace(
        config, training=dataclasses.replace(config.training, parallel="jit", mesh_fsdp=1)
    )
    one = runs.load(str(workdir), config=jit)
    assert {x.devices() == {jax.devices()[0]} for x in jax.tree.leaves(one.params)} == {True}
    assert_trees_equal(jax.device_get(run.params), jax.device_get(one.params))
    scores = one.task.evaluate(one.variables, one.task.open_data()).scores
    for name, value in scores.items():
        np.testing.assert_allclose(row[name], value, rtol=1e-5)


def test_run_under_pmap_is_evaluated_on_all_devices():
    partitioner = make_partitioner(TrainingConfig(parallel="pmap"))
    variables = {"params": {"slope": np.arange(3.0)}}
    placed = partitioner.fetch_variables(partitioner.fetch(partitioner.place(variables)))["params"]["slope"]
    assert len(placed.devices()) == DEVICES
    np.testing.assert_array_equal(placed, np.arange(3.0))
    assert place_rows({"x": np.ones((3, 2))}, like=placed)["x"].addressable_shards[0].data.shape == (1, 2)


@pytest.mark.parametrize(("fsdp", "tensor", "expected"), [(16, 1, (8, 1)), (4, 6, (4, 2)), (3, 1, (1, 1))])
def test_mesh_that_does_not_fit_the_devices_is_replaced(fsdp, tensor, expected, caplog):
    config = TrainingConfig(mesh_fsdp=fsdp, mesh_tensor=tensor)
    with caplog.at_level("INFO"):
        partitioner = make_evaluation_partitioner(config, lambda key: {"params": {}})
    assert (partitioner.mesh.shape["fsdp"], partitioner.mesh.shape["tensor"]) == expected
    assert partitioner.devices == DEVICES
    assert f"mesh_fsdp {fsdp}" in caplog.text
