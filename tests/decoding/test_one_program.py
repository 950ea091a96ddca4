"""Tests that a search is one program without transfers to the host, which compiles for CUDA, too."""

import contextlib

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import export

from benchmarks import hlo
from tests.support.bare_task import make_state, make_step
from tests.support.search_programs import CONFIG, INPUTS, MODEL, SEARCHES, make_search, parameters
from tfm.devices import backend
from tfm.losses import fused_linear_cross_entropy
from tfm.models import TransformerConfig
from tfm.testing.models import COMPILE_QUICKLY
from tfm.training.task import LossOutput


@contextlib.contextmanager
def tracing_for_cuda():
    jax.clear_caches()
    with backend.compile_for("cuda"):
        yield
    jax.clear_caches()


@pytest.mark.long
@pytest.mark.parametrize("name", SEARCHES)
def test_search_never_waits_for_the_host(name):
    compiled = make_search(name).lower(parameters(), INPUTS).compile(COMPILE_QUICKLY)
    program = hlo.parse(compiled.as_text())
    loops = [run for run in hlo.executed(program) if run.instruction.opcode == "while"]
    assert loops
    assert hlo.find_host_transfers(program) == []


@pytest.mark.long
@pytest.mark.parametrize("name", SEARCHES)
def test_search_can_be_exported_for_cuda(name):
    with tracing_for_cuda():
        exported = export.export(make_search(name), platforms=["cuda"])(parameters(), INPUTS)
    assert exported.platforms == ("cuda",)
    assert exported.out_avals[0].shape == (2, 1, 12)


@pytest.mark.long
@pytest.mark.parametrize(
    "fields", [{}, {"attention": "xla", "dtype": "bfloat16"}, {"scan": True, "remat": True}]
)
def test_training_step_can_be_exported_for_cuda(fields):
    model = MODEL.clone(config=TransformerConfig(**(vars(CONFIG) | {"dropout": 0.1} | fields)))

    def loss(variables, batch, context):
        features, table = model.apply(
            variables, batch, batch, train=True, rngs={"dropout": context.rng}, method="features"
        )
        metrics = fused_linear_cross_entropy(features, table, batch, jnp.ones(batch.shape), 0.1, 8)
        return LossOutput({"loss": metrics.pop("loss")}, metrics)

    optimizer = optax.adam(1e-3)
    state = jax.eval_shape(lambda params: make_state(params, optimizer), parameters())
    with tracing_for_cuda():
        step = jax.jit(make_step(loss, optimizer, seed=1))
        exported = export.export(step, platforms=["cuda"])(state, INPUTS)
    assert exported.platforms == ("cuda",)
    assert "threefry" in exported.mlir_module()  # the generator of JAX instead of that for CPUs
