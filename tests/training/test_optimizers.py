"""Tests of optimizers, clipping, freezing and schedules against float64 updates written by hand."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict
from optax.contrib import MuonDimensionNumbers

from tests.support.comparison import assert_trees_equal
from tests.support.tiny import MODEL
from tfm import models
from tfm.checkpoints.store import CheckpointStore
from tfm.configs import lm_pydoc
from tfm.errors import UserError
from tfm.models import Transformer
from tfm.training.config import TrainingConfig
from tfm.training.learners import make_learners
from tfm.training.optimizers import (
    OPTIMIZERS,
    SGD,
    Adafactor,
    Adam,
    AdamW,
    Muon,
    decay_mask,
    find_matrices,
    find_shared_factor,
    make_schedule,
    warn_of_large_peak,
)
from tfm.training.step import TrainState, make_train_step, merge_trees, split_tree
from tfm.training.task import LossOutput, Update

STEPS = 3
RATES = (0.05, 0.1, 0.1)  # the learning rates of SCHEDULE
SCHEDULE = {"schedule": "constant", "warmup_steps": 2, "peak_learning_rate": 0.1}


def random_tree(seed):
    """Returns a random kernel, bias and scale in float64."""
    rng = np.random.default_rng(seed)
    shapes = {"dense": {"kernel": (4, 3), "bias": (3,)}, "norm": {"scale": (3,)}}
    return jax.tree.map(lambda shape: rng.normal(size=shape), shapes, is_leaf=lambda x: isinstance(x, tuple))


PARAMS = random_tree(0)
GRADIENTS = [random_tree(seed) for seed in range(1, STEPS + 1)]


def updated(config, gradients=GRADIENTS, params=PARAMS):
    """Returns the parameters and the optimizer state after the updates of a `TrainingConfig`."""
    params = jax.tree.map(jnp.float32, params)
    learner = learner_of(config, params)
    trained, fixed = split_tree(params, learner.trains)
    state = learner.optimizer.init(trained)
    for gradient in gradients:
        wanted, _ = split_tree(jax.tree.map(jnp.float32, gradient), learner.trains)
        change, state = learner.optimizer.update(wanted, state, trained)
        trained = optax.apply_updates(trained, change)
    return merge_trees(trained, fixed), state


def learner_of(config, params, loss=None):
    """Returns the only learner of a config."""
    (learner,) = make_learners([Update("loss", loss)], config, make_schedule(config, None), params)
    return learner


@dataclasses.dataclass(frozen=True)
class Lamb:
    """An optimizer of a user, whose updates depend on the parameters, even without weight decay."""

    name: str = "lamb"
    weight_decay: float = 0.1

    def make(self, schedule):
        return optax.lamb(schedule, weight_decay=self.weight_decay)


def adam(w, gradients, config, decayed):
    """Algorithm 2 of Loshchilov and Hutter 2019; without decay, algorithm 1 of Kingma and Ba 2015."""
    mean = square = 0.0
    decay = getattr(config, "weight_decay", 0.0) * decayed
    for step, (rate, g) in enumerate(zip(RATES, gradients, strict=True), 1):
        mean = config.b1 * mean + (1 - config.b1) * g
        square = config.b2 * square + (1 - config.b2) * g**2
        root = np.sqrt(square / (1 - config.b2**step)) + config.epsilon
        w = w - rate * (mean / (1 - config.b1**step) / root + decay * w)
    return w


def adafactor(w, gradients, config, decayed):
    """Algorithms 4 and 5 of Shazeer and Stern 2018, with beta_2 = 1 - t^-0.8 and a threshold of 1."""
    square = rows = columns = moment = 0.0
    factored = w.ndim == 2 and min(w.shape) >= config.smallest_factored
    for step, (rate, g) in enumerate(zip(RATES, gradients, strict=True), 1):
        beta = 1 - step**-0.8
        if factored:
            rows = beta * rows + (1 - beta) * (g**2).mean(1)
            columns = beta * columns + (1 - beta) * (g**2).mean(0)
            square = np.outer(rows, columns) / rows.mean()
        else:
            square = beta * square + (1 - beta) * g**2
        change = g / np.sqrt(square)
        change = rate * change / max(1.0, np.sqrt((change**2).mean()))
        if config.parameter_scale:
            change *= max(1e-3, np.sqrt((w**2).mean()))
        moment = config.momentum * moment + (1 - config.momentum) * change
        w = w - moment
    return w


def sgd(w, gradients, config, decayed):
    """SGD with Polyak momentum, or with Nesterov momentum as in Sutskever et al. 2013."""
    momentum = 0.0
    for rate, g in zip(RATES, gradients, strict=True):
        g = g + config.weight_decay * decayed * w
        momentum = g + config.momentum * momentum
        w = w - rate * (g + config.momentum * momentum if config.nesterov else momentum)
    return w


def muon(w, gradients, config, decayed):
    """Muon of Jordan et al. 2024 for the kernel, and Adam with Nesterov's momentum for the others."""
    mean, square = 0.0, 0.0
    beta = config.momentum if decayed else 0.9
    for step, (rate, g) in enumerate(zip(RATES, gradients, strict=True), 1):
        mean = beta * mean + (1 - beta) * g
        x = beta * mean / (1 - beta ** (step + 1)) + (1 - beta) * g / (1 - beta**step)
        if decayed:
            w = w - rate * (orthogonalized(x.T).T + config.weight_decay * w)
        else:
            square = config.b2 * square + (1 - config.b2) * g**2
            root = np.sqrt(square / (1 - config.b2**step)) + 1e-8
            w = w - config.adam_factor * rate * x / root
    return w


def orthogonalized(x):
    """Returns a matrix with more columns than rows after five iterations of Newton and Schulz."""
    x = x / np.linalg.norm(x)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


@pytest.mark.parametrize(
    ("layer", "shape"), [("query", (6, 2, 3)), ("output", (2, 3, 6)), ("convolution", (3, 1, 2, 6))]
)
def test_muon_reads_kernels_of_attention_and_convolutions_as_matrices(layer, shape):
    gradient = {layer: {"kernel": np.random.default_rng(0).normal(size=shape)}}
    zeros = jax.tree.map(np.zeros_like, gradient)
    config = TrainingConfig(optimizer=Muon(), **SCHEDULE)
    found = -updated(config, [gradient], zeros)[0][layer]["kernel"] / RATES[0]
    left, _, right = np.linalg.svd(gradient[layer]["kernel"].reshape(6, 6))
    rotated = left.T @ np.asarray(found).reshape(6, 6) @ right.T
    assert (abs(np.diag(rotated) - 1) < 0.5).all()
    assert np.abs(rotated - np.diag(np.diag(rotated))).max() < 1e-4


@pytest.mark.parametrize(
    ("layer", "shape", "inputs"),
    [
        ("hidden", (6, 5), 1),
        ("hidden", (3, 6, 5), 2),  # of two convolutions with kernel 3
        ("output", (3, 5, 6), 2),
        ("query", (6, 2, 3), 1),
        ("key", (6, 2, 3), 1),
        ("value", (6, 2, 3), 1),
        ("output", (2, 3, 6), 2),
        ("compress_key", (4, 2, 3, 2, 3), 3),
        ("compress_value", (4, 2, 3, 2, 3), 3),
        ("convolution", (3, 3, 5, 6), 3),
        ("query", (1, 1, 5, 6), 3),  # of SAGAN, whose projections are convolutions
    ],
)
def test_muon_separates_the_axes_of_inputs_and_outputs_of_each_kind_of_kernel(layer, shape, inputs):
    axes = find_matrices({layer: {"kernel": np.zeros(shape)}})[layer]["kernel"]
    assert axes == MuonDimensionNumbers(tuple(range(inputs)), tuple(range(inputs, len(shape))))


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        (
            "",
            {
                "self_attention/query": ((0,), (1, 2)),
                "self_attention/key": ((0,), (1, 2)),
                "self_attention/value": ((0,), (1, 2)),
                "self_attention/output": ((0, 1), (2,)),
                "feed_forward/hidden": ((0,), (1,)),
                "feed_forward/output": ((0,), (1,)),
            },
        ),
        ("lstm", {"cell/input": ((0,), (1,)), "cell/recurrent": ((0,), (1,))}),
        ("feed_forward", {"hidden": ((0,), (1,))}),
    ],
    ids=lambda value: value or "transformer" if isinstance(value, str) else "",
)
def test_muon_reads_these_axes_of_the_kernels_of_lm_pydoc(variant, expected):
    """The measured results of the config depend on them."""
    config = lm_pydoc.MODELS[variant]
    model = models.find(config.name).Model(config, vocabulary_size=20)
    tokens = jnp.zeros((1, 4), jnp.int32)
    shapes = jax.eval_shape(lambda rng: model.init(rng, tokens, train=False), jax.random.key(0))
    found = {
        "/".join(path.split("/")[-3:-1]): (axes.reduction_axis, axes.output_axis)
        for path, axes in flatten_dict(find_matrices(shapes["params"]), sep="/").items()
        if axes is not None
    }
    assert found == expected


def test_muon_trains_parameters_without_a_module():
    params = {"kernel": np.ones((3, 2)), "scale": np.ones(2)}
    found, _ = updated(TrainingConfig(optimizer=Muon(), **SCHEDULE), [params], params)
    assert (found["kernel"] < 1).all()
    assert (found["scale"] < 1).all()


@pytest.mark.long
@pytest.mark.parametrize(
    ("optimizer", "by_hand"),
    [
        (Adam(), adam),
        (Adam(b1=0.5, b2=0.7, epsilon=0.1), adam),
        (AdamW(), adam),
        (AdamW(b1=0.5, b2=0.7, epsilon=0.1, weight_decay=0.5), adam),
        (Muon(), muon),
        (Muon(momentum=0.5, weight_decay=0.0, b2=0.8, adam_factor=0.5), muon),
        (Adafactor(), adafactor),
        (Adafactor(smallest_factored=3, momentum=0.3, parameter_scale=False), adafactor),
        (SGD(), sgd),
        (SGD(momentum=0.8, weight_decay=0.5), sgd),
        (SGD(momentum=0.8, nesterov=True), sgd),
    ],
    ids=lambda value: str(value.name) if hasattr(value, "name") else "",
)
def test_updates_equal_the_updates_written_by_hand(optimizer, by_hand):
    found, _ = updated(TrainingConfig(optimizer=optimizer, **SCHEDULE))

    def expected(path, w, *gradients):
        decayed = path[-1].key == "kernel"
        return by_hand(w, gradients, optimizer, decayed)

    wanted = jax.tree_util.tree_map_with_path(expected, PARAMS, *GRADIENTS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, wanted)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_weight_decay_skips_parameters_that_match_not_decayed(name):
    zero = [jax.tree.map(np.zeros_like, PARAMS)] * STEPS
    for patterns, kept in ((("*/bias", "*/scale"), {"bias", "scale"}), (("dense/*",), {"kernel", "bias"})):
        optimizer = OPTIMIZERS[name](weight_decay=0.5, not_decayed=patterns)
        found, _ = updated(TrainingConfig(optimizer=optimizer, **SCHEDULE), zero)
        shrunk = np.prod([1 - 0.5 * rate for rate in RATES])
        for path, w in jax.tree_util.tree_leaves_with_path(found):
            before = PARAMS[path[0].key][path[1].key]
            factor = 1 if path[-1].key in kept else shrunk
            np.testing.assert_allclose(w, factor * before, rtol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_patterns_of_not_decayed_must_match_a_parameter(name):
    """The default patterns need no match, because some models have no biases."""
    optimizer = OPTIMIZERS[name](weight_decay=0.5, not_decayed=("*/bias", "*/scale", "head/*"))
    message = r"not_decayed .*'head/\*'"
    with pytest.raises(UserError, match=message):
        updated(TrainingConfig(optimizer=optimizer, **SCHEDULE))
    decay_mask(AdamW().not_decayed)({"dense": {"kernel": jnp.ones(2)}})


@pytest.mark.long
def test_biases_and_norms_are_not_decayed_by_default():
    token = jnp.ones((1, 1), jnp.int32)
    model = Transformer(dataclasses.replace(MODEL, attention_bias=True), vocabulary_size=50)
    shapes = jax.eval_shape(lambda rng: model.init(rng, token, token, train=False), jax.random.key(0))
    mask = decay_mask(AdamW().not_decayed)(shapes["params"])
    decayed = {(path[-1].key, value) for path, value in jax.tree_util.tree_leaves_with_path(mask)}
    assert decayed == {("kernel", True), ("table", True), ("bias", False), ("scale", False)}


def norm(tree):
    return np.sqrt(sum((x**2).sum() for x in jax.tree.leaves(tree)))


@pytest.mark.parametrize("share", [0.25, 4.0])
def test_gradients_are_clipped_by_global_norm(share):
    limit, gradient = share * norm(GRADIENTS[0]), GRADIENTS[0]
    plain = TrainingConfig(optimizer=SGD(momentum=0.5), **SCHEDULE)
    clipped = dataclasses.replace(plain, clip_norm=limit)
    found, state = updated(clipped, [gradient])
    wanted = jax.tree.map(lambda w, g: w - RATES[0] * min(1, share) * g, PARAMS, gradient)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, wanted)
    assert jax.tree.structure(state) == jax.tree.structure(updated(plain, [gradient])[1])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_frozen_parameters_keep_their_bits(name):
    """Other parameters are updated as without freezing. Frozen parameters have no optimizer state."""
    plain = TrainingConfig(optimizer=OPTIMIZERS[name](), **SCHEDULE)
    found, state = updated(dataclasses.replace(plain, freeze=("dense/k*", "norm/*")))
    free, whole = updated(plain)
    for path in (("dense", "kernel"), ("norm", "scale")):
        np.testing.assert_array_equal(found[path[0]][path[1]], np.float32(PARAMS[path[0]][path[1]]))
    np.testing.assert_allclose(found["dense"]["bias"], free["dense"]["bias"], rtol=1e-6)
    sizes = [sum(x.size for x in jax.tree.leaves(tree)) for tree in (state, whole)]
    assert sizes[0] < sizes[1] or name == "sgd"


def test_factors_scale_the_learning_rate_and_the_weight_decay_of_matching_parameters():
    """The first pattern that matches counts. The factors add nothing to the optimizer state."""
    config = TrainingConfig(
        optimizer=AdamW(weight_decay=0.1, not_decayed=()),
        learning_rate_factors=("dense/bias=3", "dense/*=0.5"),
        weight_decay_factors=("norm/*=0", "dense/kernel=4"),
        **SCHEDULE,
    )
    plain = dataclasses.replace(config, learning_rate_factors=(), weight_decay_factors=())
    no_decay = dataclasses.replace(plain, optimizer=AdamW(weight_decay=0.0))
    found, state = updated(config, GRADIENTS[:1])
    decayed, plain_state = updated(plain, GRADIENTS[:1])
    undecayed, _ = updated(no_decay, GRADIENTS[:1])
    assert jax.tree.structure(state) == jax.tree.structure(plain_state)
    for module, name, rate, decay in (
        ("dense", "bias", 3, 1),
        ("dense", "kernel", 0.5, 4),
        ("norm", "scale", 1, 0),
    ):
        start = PARAMS[module][name]
        step = undecayed[module][name] - start
        decay_step = decayed[module][name] - undecayed[module][name]
        expected = start + rate * (step + decay * decay_step)
        np.testing.assert_allclose(found[module][name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate_factors": ("a",)}, r"learning_rate_factors .*PATTERN=FACTOR.*'a'"),
        ({"weight_decay_factors": ("a=-1",)}, r"weight_decay_factors .*'a=-1'"),
        ({"learning_rate_factors": ("a=nan",)}, r"'a=nan'"),
        ({"learning_rate_factors": ("head/*=2",)}, r"learning_rate_factors .*'head/\*' .*'dense/bias'"),
        ({"weight_decay_factors": ("dense/*=2",)}, r"weight_decay_factors, got 'adam'"),
        ({"weight_decay_factors": ("dense/*=2",), "optimizer": Lamb()}, r"weight_decay_factors, got 'lamb'"),
    ],
)
def test_invalid_factors_are_errors(fields, message):
    with pytest.raises(UserError, match=message):
        updated(TrainingConfig(**fields, **SCHEDULE))


def test_clipping_ignores_frozen_parameters():
    config = TrainingConfig(optimizer=SGD(), clip_norm=0.5, freeze=("dense/kernel",), **SCHEDULE)
    trained = {"b": GRADIENTS[0]["dense"]["bias"], "s": GRADIENTS[0]["norm"]["scale"]}
    found, _ = updated(config, GRADIENTS[:1])
    expected = PARAMS["norm"]["scale"] - RATES[0] * 0.5 / norm(trained) * trained["s"]
    np.testing.assert_allclose(found["norm"]["scale"], expected, rtol=1e-5)


def test_average_of_a_frozen_parameter_equals_the_parameter():
    config = TrainingConfig(freeze=("dense/*",), optimizer=SGD(), **SCHEDULE)

    def loss(variables, batch, context):
        total = sum((x * batch["x"]).sum() for x in jax.tree.leaves(variables))
        return LossOutput({"loss": (total, jnp.float32(1))})

    learners = [learner_of(config, PARAMS, loss)]
    step = jax.jit(make_train_step(learners, jax.random.key(0), ema_decay=0.9))
    state = TrainState.create({"params": jax.tree.map(jnp.float32, PARAMS)}, learners, ema_decay=0.9)
    for _ in range(STEPS):
        state, _ = step(state, {"x": jnp.ones(1)})
    for tree in (state.params, state.average["params"]):
        assert_trees_equal(tree["dense"], jax.tree.map(np.float32, PARAMS["dense"]))
        assert (tree["norm"]["scale"] != np.float32(PARAMS["norm"]["scale"])).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state_is_restored_from_a_checkpoint(name, tmp_path):
    config = TrainingConfig(optimizer=OPTIMIZERS[name](), clip_norm=1.0, freeze=("norm/*",), **SCHEDULE)
    params, opt_state = updated(config)
    state = TrainState(jnp.int32(STEPS), params, {"loss": opt_state})
    with contextlib.closing(CheckpointStore(str(tmp_path))) as store:
        store.save(STEPS, state.items())
        like = jax.tree.map(jnp.zeros_like, state)
        found = TrainState.from_items(store.restore(STEPS, like.items()))
    assert jax.tree.structure(found) == jax.tree.structure(state)
    assert_trees_equal(found.opt_state, state.opt_state)


W, T = 4, 10


def rates_by_hand(name, peak):
    steps = np.arange(1, T + 1)
    rise = steps / W
    fall = {
        "inverse_sqrt": (W / steps) ** 0.5,
        "linear_decay": (T + 1 - steps) / (T + 1 - W),
        "cosine_decay": 0.5 * (1 + np.cos(np.pi * (steps - W) / (T + 1 - W))),
        "constant": np.ones(T),
    }
    return peak * np.where(steps < W, rise, fall[name])


@pytest.mark.parametrize("name", ["inverse_sqrt", "linear_decay", "cosine_decay", "constant"])
@pytest.mark.parametrize(("peak", "d_model"), [(None, 64), (0.3, 64), (0.3, None)])
def test_schedules_have_the_configured_peak_or_the_peak_of_the_paper(name, peak, d_model):
    config = TrainingConfig(
        schedule=name, steps=T, warmup_steps=W, peak_learning_rate=peak, learning_rate_scale=2.0
    )
    schedule = make_schedule(config, d_model)
    rates = [float(schedule(count)) for count in range(T)]
    np.testing.assert_allclose(rates, rates_by_hand(name, 2 * (peak or (64 * W) ** -0.5)), rtol=1e-5)


@pytest.mark.parametrize("name", ["inverse_sqrt", "linear_decay", "cosine_decay", "constant"])
def test_model_without_a_width_requires_a_peak_learning_rate(name):
    with pytest.raises(UserError, match=r"Expected training\.peak_learning_rate .*got None"):
        make_schedule(TrainingConfig(schedule=name), None)


@pytest.mark.parametrize(
    ("fields", "warns"),
    [({}, False), ({"warmup_steps": 10}, True), ({"warmup_steps": 10, "peak_learning_rate": 0.03}, False)],
)
@pytest.mark.parametrize("name", ["inverse_sqrt", "linear_decay", "cosine_decay", "constant"])
def test_short_warmup_without_a_peak_yields_a_warning(name, fields, warns, caplog):
    """With a short warmup, the peak of the paper is so large that training fails."""
    warn_of_large_peak(TrainingConfig(schedule=name, steps=50_000, **fields), 128)
    assert ("rises to 0.028" in caplog.text) == warns
    assert len(caplog.records) == warns


PLAYERS = {"generator": {"w": jnp.ones(2), "bias": jnp.ones(2)}, "discriminator": {"w": jnp.ones(2)}}


def make_players(config=None, **options):
    """Returns the learners of a generator with Adam and a discriminator with AdamW and `options`."""
    generator = Update("generator", None, ("generator/*",), Adam())
    discriminator = Update(
        "discriminator", None, ("discriminator/*",), **{"optimizer": AdamW(weight_decay=0.1)} | options
    )
    config = TrainingConfig(**config or {})
    return make_learners([generator, discriminator], config, make_schedule(config, 8), PLAYERS)


def test_factors_matter_only_to_the_updates_whose_parameters_they_match():
    """Adam of the generator has no weight decay."""
    assert len(make_players({"weight_decay_factors": ("discriminator/*=0.5",)})) == 2
    with pytest.raises(UserError, match=r"weight_decay_factors, got 'adam'"):
        make_players({"weight_decay_factors": ("*/w=0.5",)})


def test_patterns_of_the_optimizer_of_an_update_must_match_its_parameters():
    assert len(make_players(optimizer=AdamW(not_decayed=("discriminator/w",)))) == 2
    with pytest.raises(UserError, match=r"not_decayed of the update 'discriminator'.*'generator/bias'"):
        make_players(optimizer=AdamW(not_decayed=("generator/bias",)))


@pytest.mark.parametrize("every", [0, -1, 1.5, "2"])
def test_interval_of_an_update_must_be_a_positive_integer(every):
    with pytest.raises(UserError, match=rf"`every` of the update 'discriminator'.*got {every!r}"):
        make_players(every=every)


@pytest.mark.parametrize(
    ("paths", "factor"),
    [
        (("encoder/a", "encoder/b"), 0.1),
        (("encoder/a", "head/a"), 1.0),  # the head has no factor
        (("encoder/a", "decoder/a"), 1.0),
        (("head/a",), 1.0),
    ],
)
def test_logged_learning_rate_has_the_factor_that_all_parameters_share(paths, factor):
    factors = (("encoder/*", 0.1), ("decoder/*", 0.5))
    assert find_shared_factor(paths, factors) == factor
