"""Tests of training steps under every layout of 8 virtual devices against one device."""

import contextlib
import dataclasses
import functools
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, PartitionSpec

from benchmarks.topology import compile_for
from tests.support.bare_task import make_state, make_step
from tests.support.comparison import assert_trees_equal
from tests.support.programs import initialize
from tests.support.tiny import MODEL
from tfm.checkpoints.store import CheckpointStore
from tfm.devices.matmul import dot_general
from tfm.devices.mesh import record_axes
from tfm.devices.rows import make_device_key
from tfm.errors import UserError
from tfm.tasks.translation.task import Config, Translation
from tfm.testing.models import assert_trees_close
from tfm.training.config import TrainingConfig
from tfm.training.non_finite import first_not_finite
from tfm.training.partitioning import Partitioner, make_evaluation_partitioner, make_partitioner
from tfm.training.setup import Setup
from tfm.training.step import Learner, TrainState
from tfm.training.task import Context, LossOutput

RNG = np.random.default_rng(0)
OPTIMIZER = optax.sgd(0.5)


class Tokenizer:
    """A stand-in for a tokenizer of 48 pieces."""

    def __len__(self):
        return 48


def ragged(rows):
    """Returns a batch whose rows differ in length. The first row is almost only padding."""
    batch = {
        name: np.zeros((rows, 12), np.int32)
        for side in ("input", "target")
        for name in (f"{side}s", f"{side}_positions", f"{side}_segments")
    }
    for side in ("input", "target"):
        for row in range(rows):
            length = 1 if row == 0 else RNG.integers(1, 13)
            batch[f"{side}s"][row, :length] = RNG.integers(3, 48, length)
            batch[f"{side}_positions"][row, :length] = np.arange(length)
            batch[f"{side}_segments"][row, :length] = 1
    return batch


BATCHES = [ragged(13) for _ in range(3)]  # 13 is not divisible by 2, 4 or 8


# Each stack has a single layer, because the programs of all meshes take long to compile.
PLAIN = dataclasses.replace(MODEL, encoder_layers=1, decoder_layers=1, dropout=0.0)
# A tensor axis divides the key and value heads, and the hidden layers of convolutions. Relative positions add
# to the logits.
MECHANISMS = dataclasses.replace(
    PLAIN,
    positions="relative_keys",
    key_value_heads=2,
    gated=True,
    feed_forward_kernel=3,
    tied_embeddings="none",
)


def task(dropout=0.0, model=PLAIN, r_drop=0.0):
    return Translation(Config(model=dataclasses.replace(model, dropout=dropout), r_drop=r_drop), Tokenizer())


@functools.cache
def axes_of(model):
    return record_axes(task(model=model).init, jax.random.key(0))[1]


def layout_of(devices, *, model=PLAIN, **fields):
    return make_partitioner(TrainingConfig(**fields), jax.devices()[:devices], axes_of(model))


@functools.cache
def first_state(dropout=0.0, model=PLAIN):
    """Returns the initial state on the host, because steps donate their arguments."""
    return jax.device_get(make_state(initialize(task(dropout, model)), OPTIMIZER))


@functools.cache
def train(devices, *, dropout=0.0, model=PLAIN, r_drop=0.0, **fields):
    """Returns (losses of the batches, final state) of a training on the first `devices` devices."""
    layout, state = layout_of(devices, model=model, **fields), first_state(dropout, model)
    assert layout.devices == devices
    parts = fields.get("gradient_accumulation_steps", 1)
    loss = task(dropout, model, r_drop).loss
    step = make_step(loss, OPTIMIZER, seed=1, micro_batches=parts)
    compiled, state = layout.compile(step, state), layout.place(state)
    losses = []
    for batch in BATCHES:
        state, metrics = compiled(state, layout.place_batch(batch), None)
        losses.append([float(x) for x in layout.fetch(metrics)["loss"]])
    return losses, layout.fetch(state)


def assert_trainings_close(found, expected):
    """Asserts that two results of `train` have close losses and close states."""
    found_losses, found_state = found
    expected_losses, expected_state = expected
    np.testing.assert_allclose(found_losses, expected_losses, rtol=1e-5)
    assert_trees_close(found_state, expected_state, rtol=1e-4, atol=1e-5)


MESHES = [(1, 1, 1), (2, 1, 2), (4, 2, 2), (8, 1, 1), (8, 2, 2), (8, 8, 1)]  # devices, fsdp, tensor


def test_pmap_equals_one_device():
    one = train(1, parallel="jit", dropout=0.3)
    for devices in (2, 8):
        assert_trainings_close(train(devices, parallel="pmap", dropout=0.3), one)
    assert make_partitioner(TrainingConfig()).devices == 8


@pytest.mark.parametrize("parallel", ["pmap", "mesh"])
def test_both_passes_of_r_drop_equal_one_device(parallel):
    one = train(1, parallel="jit", dropout=0.3, r_drop=5.0)
    assert_trainings_close(train(2, parallel=parallel, dropout=0.3, r_drop=5.0), one)


@pytest.mark.parametrize("is_step", [True, False])
@pytest.mark.parametrize("parallel", ["jit", "pmap", "mesh"])
def test_only_a_step_frees_the_state_before_it(parallel, is_step):
    """Otherwise, a step would need memory for two states."""
    layout = layout_of(1 if parallel == "jit" else 8, parallel=parallel)
    placed = layout.place({"params": {"x": np.ones(8, np.float32)}})
    batch = layout.place_batch({"rows": np.ones((8, 1), np.float32)})

    def increase(state, batch, constants, *, over_rows):
        return jax.tree.map(lambda x: x + 1, state), {}

    compiled = layout.compile(increase, placed, is_step=is_step)
    increased, _ = compiled(placed, batch, None)
    np.testing.assert_array_equal(layout.fetch(increased)["params"]["x"], 2.0)
    assert placed["params"]["x"].is_deleted() == is_step


def test_every_mesh_equals_one_device():
    """Dropout uses a global mask that does not depend on the layout of the arrays."""
    one = train(1, parallel="jit", dropout=0.3)
    for devices, fsdp, tensor in MESHES:
        fields = {"mesh_fsdp": fsdp, "mesh_tensor": tensor}
        assert_trainings_close(train(devices, parallel="mesh", dropout=0.3, **fields), one)
    assert abs(one[0][0][0] - train(1, parallel="jit")[0][0][0]) > 1e-3


def test_mesh_equals_one_device_for_shared_heads_relative_keys_and_convolutions():
    one = train(1, parallel="jit", model=MECHANISMS)
    fields = {"parallel": "mesh", "mesh_fsdp": 2, "mesh_tensor": 2}
    assert_trainings_close(train(8, model=MECHANISMS, **fields), one)
    placed = layout_of(8, model=MECHANISMS, **fields).place(first_state(model=MECHANISMS))
    kernels = placed.params["decoder"]["layers_0"]["feed_forward"]
    assert kernels["hidden"]["kernel"].addressable_shards[0].data.shape == (3, 16, 20)
    assert kernels["output"]["kernel"].addressable_shards[0].data.shape == (3, 20, 16)


def test_micro_batches_equal_one_batch_under_every_layout():
    one = train(1, parallel="jit")
    assert_trainings_close(train(1, parallel="jit", gradient_accumulation_steps=4), one)
    assert_trainings_close(train(8, parallel="pmap", gradient_accumulation_steps=2), one)
    assert_trainings_close(train(8, parallel="mesh", mesh_fsdp=2, gradient_accumulation_steps=2), one)


def test_every_device_has_its_share_of_parameters_and_moments():
    fields = {"mesh_fsdp": 2, "mesh_tensor": 2}
    _, trained = train(8, parallel="mesh", dropout=0.3, **fields)  # cached by the test of the meshes
    created = make_state(first_state().params, optax.adam(1e-3))
    moments = layout_of(8, parallel="mesh", **fields).place(created).opt_state["loss"][0].mu
    for tree in (trained.params, moments):
        table = tree["embedding"]["table"]  # [48, 32]
        hidden = tree["encoder"]["layers_0"]["feed_forward"]["hidden"]["kernel"]
        query = tree["decoder"]["layers_0"]["cross_attention"]["query"]["kernel"]
        assert table.addressable_shards[0].data.shape == (24, 16)
        assert hidden.addressable_shards[0].data.shape == (16, 20)
        assert query.addressable_shards[0].data.shape == (16, 2, 8)
        assert tree["encoder"]["layers_0"]["self_attention_residual"]["norm"][
            "scale"
        ].sharding.is_fully_replicated


def test_every_layout_restores_what_another_layout_saved():
    fields = [
        {"devices": 1, "parallel": "jit"},
        {"devices": 8, "parallel": "pmap"},
        {"devices": 8, "parallel": "mesh", "mesh_fsdp": 2, "mesh_tensor": 2},
        {"devices": 4, "parallel": "mesh", "mesh_fsdp": 4},
    ]
    params = first_state().params
    few = {"embedding": params["embedding"], "encoder": params["encoder"]["layers_0"]["feed_forward"]}
    fresh = make_state(few, optax.adam(1e-3))
    other = jax.tree.map(lambda x: x + 1, fresh).replace(halted=fresh.halted)
    for writer in fields[1:3]:
        layout = layout_of(**writer)
        written = layout.fetch(layout.place(other))
        with tempfile.TemporaryDirectory() as folder, contextlib.closing(CheckpointStore(folder)) as store:
            store.save(1, written.items())
            for reader in fields:
                layout = layout_of(**reader)
                restored = TrainState.from_items(store.restore(1, layout.like(fresh).items()))
                found = layout.fetch(layout.place(restored))
                assert_trees_equal(jax.device_get(found), jax.device_get(other))


def test_non_finite_row_on_one_device_halts_all_devices():
    """`first_not_finite` then finds the row on one device."""
    good = {"x": np.arange(1, 14, dtype=np.float32)}
    bad = {"x": good["x"].copy()}
    bad["x"][9] = np.inf  # on the fifth device, because each device has two rows

    def loss(variables, batch, context):
        total = (variables["params"]["w"] * batch["x"]).sum()
        return LossOutput({"loss": (total, (batch["x"] != 0).sum().astype(jnp.float32))})

    first = jax.device_get(make_state({"w": jnp.float32(2)}, OPTIMIZER))
    for parallel in ({"parallel": "pmap"}, {"parallel": "mesh", "mesh_fsdp": 2, "mesh_tensor": 2}):
        for micro_batches in (1, 2):
            layout = layout_of(8, **parallel)
            step = make_step(loss, OPTIMIZER, seed=1, micro_batches=micro_batches)
            compiled, state = layout.compile(step, first), layout.place(first)
            skipped, kept = [], []
            for batch in (good, bad, good):
                state, metrics = compiled(state, layout.place_batch(batch), None)
                skipped.append(float(layout.fetch(metrics)["skipped"][0]))
                kept.append(jax.device_get(layout.fetch_variables(layout.fetch(state).params)))
            assert skipped == [0, 1, 1]
            assert kept[0] == kept[2] != {"w": 2}
    learner = Learner(loss, OPTIMIZER)
    variables = {"params": {"w": jnp.float32(2)}}
    assert first_not_finite(learner, variables, [(bad, Context())]) == "loss, inf"
    assert first_not_finite(learner, variables, [(good, Context())]) is None


def test_communication_of_a_step_is_minimal():
    """Each gradient is summed once and in float32, even for scanned layers that compute in bfloat16."""
    layers = {"encoder_layers": 1, "decoder_layers": 2, "scan": True, "dtype": "bfloat16", "dropout": 0.0}
    scanned = Translation(Config(model=dataclasses.replace(MODEL, **layers), loss_chunk_size=1), Tokenizer())
    batch = {name: np.zeros((8, 12), np.int32) for name in BATCHES[0]}
    params = jax.tree.leaves(jax.eval_shape(scanned.init, jax.random.key(0))["params"])
    of_all, of_vectors = 4 * sum(x.size for x in params), 4 * sum(x.size for x in params if x.ndim == 1)

    def compiled(**fields):
        config = TrainingConfig(parallel="mesh", **fields)
        found = compile_for(scanned, config, batch, jax.devices()).collectives
        return found, {each.kind for each in found}

    def total(found, kinds):
        return sum(each.total_bytes for each in found if each.kind in kinds)

    found, kinds = compiled()
    assert kinds == {"all-reduce"}, kinds
    assert {dtype for each in found for dtype in each.dtypes} == {"f32"}
    assert of_all <= total(found, kinds) < of_all + 64

    found, kinds = compiled(mesh_fsdp=8)
    sums = ("all-reduce", "reduce-scatter")  # XLA for CPUs replaces a reduce-scatter by an all-reduce
    assert "all-gather" in kinds, kinds
    assert kinds <= {"all-gather", *sums}, kinds
    divided = of_all - of_vectors
    assert (
        divided < total(found, ["all-gather"]) <= 2 * divided
    )  # layers gather in the forward and the backward pass
    assert of_all <= total(found, sums) < of_all + 1024

    found, kinds = compiled(mesh_tensor=2)
    assert kinds == {"all-reduce"}, kinds
    of_layers = [each for each in found if each.times == layers["decoder_layers"]]
    assert len(of_layers) == 2 * 3, of_layers  # both passes of each sublayer of the decoder


def test_step_never_gathers_the_parameters_of_all_layers():
    """Each layer gathers its parameters when it runs and reduces its gradients before the next layer."""
    model = dataclasses.replace(PLAIN, encoder_layers=12, decoder_layers=12, scan=True, remat=True)
    deep = Translation(Config(model=model, loss_chunk_size=1), Tokenizer())
    batch = {name: np.zeros((8, 12), np.int32) for name in BATCHES[0]}
    config = TrainingConfig(parallel="mesh", mesh_fsdp=8)
    compiled = compile_for(deep, config, batch, jax.devices())
    params = jax.eval_shape(deep.init, jax.random.key(0))["params"]
    of_layers = 4 * sum(x.size for side in ("encoder", "decoder") for x in jax.tree.leaves(params[side]))
    assert compiled.activations < 0.7 * of_layers


def test_loss_may_change_the_parameters_of_a_scanned_layer():
    class Changed(Translation):
        def loss(self, variables, batch, context):
            params = variables["params"]
            layer = jax.tree.map(lambda x: 2 * x, params["decoder"]["layers_1"])
            params = params | {"decoder": params["decoder"] | {"layers_1": layer}}
            return super().loss({"params": params}, batch, context)

    model = dataclasses.replace(PLAIN, decoder_layers=2, scan=True)
    setup = Setup(
        Changed(Config(model=model), Tokenizer()), TrainingConfig(parallel="mesh", mesh_fsdp=8), jax.devices()
    )
    batch = {name: np.zeros((8, 12), np.int32) for name in BATCHES[0]}
    state, rows, _ = setup.partitioner.shapes(setup.state, batch)
    text = setup.partitioner.compile(setup.step, setup.state).lower(state, rows, None).as_text()
    assert "all_gather" in text


def test_only_devices_with_the_same_rows_draw_the_same_numbers():
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    key, rows = jax.random.key(0), PartitionSpec(("data", "fsdp"))

    def draw(x):
        return jax.random.uniform(make_device_key(key), x.shape)

    drawn = jax.jit(jax.shard_map(draw, mesh=mesh, in_specs=rows, out_specs=rows))(jnp.zeros(4))
    assert len(set(np.asarray(drawn).tolist())) == 4, drawn
    assert make_device_key(key) == key


def test_products_keep_the_sharding_of_rows_and_positions():
    rng = np.random.default_rng(1)
    for kind in (AxisType.Auto, AxisType.Explicit):
        with jax.set_mesh(jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(kind,) * 2)):
            divided = PartitionSpec("data", "fsdp", None)
            x = jax.device_put(rng.normal(size=(8, 6, 5)).astype(np.float32), divided)
            product = jax.jit(dot_general, static_argnums=(2, 3))(
                x, jnp.ones((5, 3)), (((2,), (0,)), ((), ())), 0
            )
            assert product.sharding.is_equivalent_to(x.sharding, 3), product.sharding
            np.testing.assert_allclose(product, np.asarray(x) @ np.ones((5, 3)), rtol=1e-5, atol=1e-5)


def test_step_is_compiled_for_the_rows_of_all_hosts(monkeypatch):
    """Two hosts with four devices each have 13 rows each, which are padded to 16."""
    state, batch = {"w": jnp.ones(3)}, {"x": np.ones((13, 5), np.float32)}
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    _, shapes, _ = Partitioner(jax.devices(), fsdp=2).shapes(state, batch)
    assert shapes["x"].shape == (2 * 16, 5)


def test_hosts_cannot_share_rows(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert Partitioner(jax.devices(), tensor=4).row_shards == 2
    with pytest.raises(UserError, match=r"training\.mesh_tensor 8 .* 4 devices of each host"):
        Partitioner(jax.devices(), tensor=8)
    config = TrainingConfig(mesh_tensor=8)
    assert make_evaluation_partitioner(config, lambda key: {"params": {}}).row_shards == 2


@pytest.mark.parametrize("layout", [{"mesh_fsdp": 8}, {"mesh_fsdp": 4, "mesh_tensor": 2}])
def test_a_state_with_loaded_variables_is_made_in_parts(layout):
    """The whole state may not fit into the memory of one device, so no array is moved between devices."""
    config = Config(model=MODEL)
    setup = Setup(Translation(config, Tokenizer()), TrainingConfig(**layout))
    expected = setup.initialize()
    variables = jax.tree.map(np.asarray, expected.variables)
    with jax.transfer_guard_device_to_device("disallow_explicit"):
        state = setup.initialize_with(lambda _: variables)
    assert_trees_equal(state.items(), expected.items())
    leaves = zip(*map(jax.tree.leaves, (state, expected)), strict=True)
    assert all(ours.sharding.is_equivalent_to(theirs.sharding, ours.ndim) for ours, theirs in leaves)
