"""Tests of the training step on one device: loss terms, model state, several updates and constants."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.support.bare_task import BareTask, make_state, make_step
from tests.support.small_losses import detection_batch, detection_loss, detection_params, whole_gradient
from tfm.errors import UserError
from tfm.training.config import TrainingConfig
from tfm.training.loss_calls import mean_metrics
from tfm.training.non_finite import explain, split_step
from tfm.training.optimizers import SGD
from tfm.training.setup import Setup
from tfm.training.step import Learner, TrainState
from tfm.training.task import Data, LossOutput, Task, Update, check_contract

ROWS = {"x": np.float32([1, 2, 3, 4])}


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("boxes", [8, 1], ids=["boxes", "no boxes"])
def test_each_term_is_divided_by_its_own_count(boxes, micro_batches):
    params, batch = detection_params(), detection_batch(7, boxes=boxes)
    step = jax.jit(make_step(detection_loss, optax.sgd(1.0), micro_batches=micro_batches))
    state, metrics = step(make_state(params, optax.sgd(1.0)), batch)
    loss, gradient = whole_gradient(params, batch)
    assert_close(jax.tree.map(np.subtract, params, jax.device_get(state.params)), gradient)
    total, count = metrics["loss"]
    assert float(count) == 1
    np.testing.assert_allclose(total, loss, rtol=1e-6)
    assert float(metrics["loss/box"][1]) == batch["is_box"].sum()
    assert float(metrics["loss/score"][1]) == 7
    np.testing.assert_allclose(metrics["gradient_norm"][0], optax.tree.norm(gradient), rtol=1e-6)


def assert_close(tree, other):
    assert jax.tree.leaves(tree)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), tree, other)


def test_micro_batches_need_no_second_forward_pass_for_counts():
    def flops(**options):
        step = jax.jit(make_step(detection_loss, optax.sgd(1.0), **options))
        state = make_state(detection_params(), optax.sgd(1.0))
        text = step.lower(state, detection_batch(8)).compile().as_text()
        return text.count(" dot(")

    assert flops(micro_batches=2) == flops()


def sliding_mean(variables, batch, context):
    """Trains w towards the weighted mean of the rows. The state is a moving average of this mean."""
    weights = batch["w"]
    count, total = jax.lax.psum((weights.sum(), (batch["x"] * weights).sum()), context.row_axes)
    mean = total / count  # NaN if all weights are 0
    old, w = variables["statistics"], variables["params"]["w"]
    state = {"mean": 0.5 * (old["mean"] + mean), "steps": old["steps"] + 1}
    loss = ((w - mean) ** 2 * weights).sum()
    return LossOutput({"loss": (loss, weights.sum())}, {}, {"statistics": state})


def mean_batch(weights):
    return {"x": np.arange(1.0, 1 + len(weights), dtype=np.float32), "w": np.float32(weights)}


MEAN_VARIABLES = {
    "params": {"w": np.float32(3)},
    "statistics": {"mean": np.float32(0), "steps": np.int32(0)},
}


def mean_state(optimizer, ema_decay=0.0):
    return TrainState.create(MEAN_VARIABLES, [Learner(sliding_mean, optimizer)], ema_decay)


def test_only_the_loss_changes_the_model_state():
    optimizer = optax.chain(optax.clip_by_global_norm(1e-3), optax.adamw(0.1, weight_decay=0.9))
    step = jax.jit(make_step(sliding_mean, optimizer, ema_decay=0.9))
    state, metrics = step(mean_state(optimizer, 0.9), mean_batch([1, 1, 1]))
    assert state.model_state == {"statistics": {"mean": 1, "steps": 1}}
    assert float(metrics["gradient_norm"][0]) == 2  # the gradient of w: 2 (3 - 2)
    assert jax.tree.leaves(state.opt_state["loss"][1][0].mu) != []
    assert state.variables is state.average


def test_average_includes_the_floats_of_the_state_and_its_newest_counts():
    step = jax.jit(make_step(sliding_mean, optax.sgd(0.0), ema_decay=0.75))
    state, _ = step(mean_state(optax.sgd(0.0), 0.75), mean_batch([1, 1, 1]))
    assert state.model_state == {"statistics": {"mean": 1, "steps": 1}}
    assert state.average["statistics"] == pytest.approx({"mean": 1, "steps": 1})
    state, _ = step(state, mean_batch([1, 1, 1]))
    assert state.average["params"] == {"w": 3}  # it never changed
    assert state.average["statistics"]["steps"] == 2
    newest = float(state.model_state["statistics"]["mean"])
    assert newest != 1
    expected = (0.75 * 1 + newest) / (0.75 + 1)
    assert float(state.average["statistics"]["mean"]) == pytest.approx(expected)


def test_micro_batches_update_the_state_in_turn_and_padding_does_not():
    step = jax.jit(make_step(sliding_mean, optax.sgd(0.1), micro_batches=2))
    start = mean_state(optax.sgd(0.1))
    both, _ = step(start, mean_batch([1, 1, 1, 1]))  # rows 1 and 3, then rows 2 and 4
    assert both.model_state == {"statistics": {"mean": 0.5 * (0.5 * 2 + 3), "steps": 2}}
    one, metrics = step(start, mean_batch([1, 0, 1, 0]))  # the second micro-batch is padding
    assert float(metrics["skipped"][0]) == 0
    assert one.model_state == {"statistics": {"mean": 1, "steps": 1}}
    assert np.isfinite(one.params["w"])


def test_state_that_changes_its_shape_is_an_error():
    def loss(variables, batch, context):
        output = sliding_mean(variables, batch, context)
        return output._replace(state={"statistics": {"mean": batch["x"], "steps": np.int32(0)}})

    with pytest.raises(UserError, match=r"'statistics'.*mean was float32\[\].*float32\[3\]"):
        make_step(loss, optax.sgd(0.1))(mean_state(optax.sgd(0.1)), mean_batch([1, 1, 1]))


class Players(BareTask):
    """A task of two players. The leader moves a to the rows. Every second step, the follower moves b to a."""

    every, patterns = 2, (("a",), ("b",))

    def init(self, rng):
        return {"params": {"a": jnp.zeros(()), "b": jnp.zeros(()), "idle": jnp.ones(())}}

    def loss(self, variables, batch, context):
        return self.lead(variables, batch, context)

    def lead(self, variables, batch, context):
        error = (variables["params"]["a"] - batch["x"]) ** 2
        return LossOutput({"loss": (jnp.where(batch["x"] == 0, 0, error).sum(), (batch["x"] != 0).sum())})

    def follow(self, variables, batch, context):
        params, count = variables["params"], (batch["x"] != 0).sum()
        return LossOutput({"loss": (count * (params["a"] - params["b"]) ** 2, count)})

    def updates(self):
        leader, follower = self.patterns
        return (
            Update("leader", self.lead, leader, SGD(), lambda count: 0.25),
            Update(
                "follower",
                self.follow,
                follower,
                SGD(momentum=0.5),
                lambda count: 0.5 / (1 + count),
                self.every,
            ),
        )


def make_players(task=None, **fields):
    setup = Setup(task or Players(), TrainingConfig(parallel="jit", **fields))
    return setup, jax.jit(setup.step), setup.initialize()


def test_updates_run_in_order_with_their_own_parameters_optimizer_schedule_and_interval():
    setup, step, state = make_players()
    a = b = velocity = 0.0
    for number in range(4):
        state, metrics = step(state, ROWS)
        a -= 0.25 * 2 * (a - 2.5)
        if number % 2 == 0:  # the follower runs after the leader and has its own schedule
            velocity = 0.5 * velocity + 2 * (b - a)
            b -= 0.5 / (1 + number // 2) * velocity
        np.testing.assert_allclose([state.params["a"], state.params["b"]], [a, b], rtol=1e-6)
        assert float(metrics["follower/loss"][1]) == (4 if number % 2 == 0 else 0)
        assert float(setup.rates["follower/learning_rate"](number + 1)) == 0.5 / (1 + number // 2)
    assert float(state.params["idle"]) == 1
    assert metrics.keys() >= {"loss", "leader/gradient_norm", "follower/gradient_norm", "skipped"}
    assert set(state.opt_state) == {"leader", "follower"}


def test_non_finite_step_undoes_all_of_its_updates():
    """The update of the leader is finite, but that of the follower is not."""

    class Broken(Players):
        def follow(self, variables, batch, context):
            output = super().follow(variables, batch, context)
            bad = jnp.where(batch["x"][0] == 9, jnp.nan, 1.0)
            return LossOutput({"loss": (output.terms["loss"][0] * bad, output.terms["loss"][1])})

    bad = {"x": np.float32([9, 2, 3, 4])}
    for mode, moves in (("stop", False), ("skip", True)):
        _, step, state = make_players(Broken(), on_non_finite=mode)
        first, _ = step(state, ROWS)
        same, metrics = step(first, bad)
        assert float(metrics["skipped"][0]) == 0  # the follower does not run in the second step
        third, metrics = step(same, bad)
        assert float(metrics["skipped"][0]) == 1
        assert third.params == same.params
        assert (int(third.step), bool(third.halted)) == ((3, False) if moves else (2, True))


def test_invalid_updates_are_errors():
    def setup_of(leader=("a",), follower=("b",), every=2, **fields):
        task = Players()
        task.patterns, task.every = (leader, follower), every
        return Setup(task, TrainingConfig(**fields))

    with pytest.raises(UserError, match=r"'follower'.*'c\*'.*'a'"):
        setup_of(follower=("c*",))
    with pytest.raises(UserError, match=r"'leader' and 'follower' both train a"):
        setup_of(follower=("*",))
    with pytest.raises(UserError, match=r"every.*'follower'.*at least 1, got 0"):
        setup_of(every=0)
    with pytest.raises(UserError, match=r"training\.freeze.*'z'"):
        setup_of(freeze=("z",))
    with pytest.raises(UserError, match="matches all parameters"):
        setup_of(freeze=("a", "b"))
    assert setup_of(freeze=("b",)).learners[1].trains("b") is False
    task = Players()
    task.updates = lambda: [Update("one", task.lead, ("a",)), Update("one", task.follow, ("b",))]
    with pytest.raises(UserError, match=r"different names.*\['one', 'one'\]"):
        Setup(task, TrainingConfig())


@pytest.mark.long
def test_updates_and_micro_batches_have_different_keys():
    keys = []

    class Drawing(Players):
        def lead(self, variables, batch, context):
            jax.debug.callback(lambda key: keys.append(key.tolist()), jax.random.key_data(context.rng))
            return super().lead(variables, batch, context)

        def follow(self, variables, batch, context):
            jax.debug.callback(lambda key: keys.append(key.tolist()), jax.random.key_data(context.rng))
            return super().follow(variables, batch, context)

    setup, step, state = make_players(Drawing(), gradient_accumulation_steps=2)
    for _ in range(2):
        state, _ = step(state, ROWS)
    jax.effects_barrier()
    assert len(keys) == len(set(map(tuple, keys))) == 2 * 2 + 2
    micro_batches = itertools.chain(
        *(split_step(setup, learner, 1, ROWS) for learner in setup.learners),
        split_step(setup, setup.learners[0], 2, ROWS),
    )
    recomputed = {tuple(jax.random.key_data(context.rng).tolist()) for _, context in micro_batches}
    assert recomputed == set(map(tuple, keys))


class Taught(BareTask):
    """A task that trains towards a frozen teacher. Its loss falls with the number of the step."""

    teacher = np.arange(12.0, dtype=np.float32).reshape(4, 3)

    def init(self, rng):
        return {"params": {"w": jnp.zeros((4, 3))}}

    def constants(self):
        return {"params": {"w": self.teacher}}

    def loss(self, variables, batch, context):
        weights, teacher = batch["w"], context.constants["params"]["w"]
        error = (batch["x"] @ (variables["params"]["w"] - teacher)) ** 2 / (1.0 + context.step)
        return LossOutput({"loss": ((error.sum(1) * weights).sum(), weights.sum())})


class MetricOfTaught(Taught):
    """The task with its loss as a metric, which validation reports."""

    def loss(self, variables, batch, context):
        output = super().loss(variables, batch, context)
        return LossOutput(output.terms, {"error": output.terms["loss"]})


TAUGHT = {"x": np.eye(4, dtype=np.float32), "w": np.ones(4, np.float32)}


def test_loss_may_use_the_step_number_and_constants():
    setup = Setup(Taught(), TrainingConfig(parallel="jit"))
    step, state = jax.jit(setup.step), setup.initialize()
    expected = (Taught.teacher**2).sum() / 4
    for number in range(3):
        state = state.replace(params={"w": jnp.zeros((4, 3))})
        state, metrics = step(state, TAUGHT, setup.constants)
        total, count = metrics["loss"]
        np.testing.assert_allclose(total / count, expected / (1 + number), rtol=1e-6)


def test_validation_passes_the_constants_to_the_loss():
    variables = {"params": {"w": jnp.zeros((4, 3))}}
    scores = mean_metrics(MetricOfTaught(), variables, [TAUGHT, TAUGHT])
    assert scores == {"error": pytest.approx((Taught.teacher**2).sum() / 4)}


def test_constants_are_arguments_of_the_program_and_not_part_of_checkpoints(tmp_path):
    setup = Setup(Taught(), TrainingConfig(parallel="jit"))
    state = setup.initialize()
    compiled = setup.partitioner.compile(setup.step, setup.state, setup.constant_shapes)
    text = compiled.lower(*setup.partitioner.shapes(setup.state, TAUGHT, setup.constant_shapes)).as_text()
    assert "1.100000e+01" not in text  # the last parameter of the teacher
    assert sum(x.size for x in jax.tree.leaves(state.items())) < 2 * 12 + 12 + 9
    other = Taught()
    other.teacher = Taught.teacher + 1
    fingerprints = [Setup(task, TrainingConfig()).assets() for task in (Taught(), Taught(), other)]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    assert fingerprints[0].keys() == {"constants"}


def test_constants_of_a_wrong_shape_are_an_error_with_the_line_of_code():
    task = Taught()
    task.teacher = np.ones((4, 5), np.float32)
    setup = Setup(task, TrainingConfig(parallel="jit"))
    with pytest.raises(UserError, match=r"'loss'.*\(4, 3\).*\(4, 5\).*test_step\.py.*teacher"):
        setup.compile_step(TAUGHT)


def test_negative_count_is_an_error_and_changes_nothing(tmp_path):
    class Negative(Taught):
        def loss(self, variables, batch, context):
            total, count = super().loss(variables, batch, context).terms["loss"]
            return LossOutput({"loss": (total, -count)})

    class Facts:
        def describe_batch(self, step):
            return {"batch": step}

    setup = Setup(Negative(), TrainingConfig(parallel="jit"))
    state = setup.initialize()
    after, metrics = jax.jit(setup.step)(state, TAUGHT, setup.constants)
    assert (int(after.step), float(metrics["skipped"][0])) == (0, 1)
    np.testing.assert_array_equal(after.params["w"], state.params["w"])
    error = explain(setup, Facts(), str(tmp_path), state, 1, TAUGHT)
    assert "count of loss, -4.0" in str(error)


def test_missing_members_of_tasks_and_data_are_errors():
    class Incomplete(BareTask):
        def init(self, rng):
            return {"params": {"w": jnp.zeros(2)}}

    with pytest.raises(UserError, match=r"Incomplete.*lacks loss\."):
        Setup(Incomplete(), TrainingConfig())
    with pytest.raises(UserError, match=r"training\.task\.Task, .* config, best, unit"):
        check_contract(object(), Task)
    with pytest.raises(UserError, match=r"training\.task\.Data, .*describe_batch"):
        check_contract(object(), Data)

    class WithoutCount(Data):
        def train_batches(self, start_step):
            yield {}

        def identity(self):
            return {}

    with pytest.raises(UserError, match=r"WithoutCount.* lacks count\."):
        check_contract(WithoutCount(), Data)
    incomplete = Incomplete()
    incomplete.loss, incomplete.init = detection_loss, lambda rng: jnp.zeros(2)
    with pytest.raises(UserError, match=r"init.*params"):
        Setup(incomplete, TrainingConfig())
