"""Orbax checkpoints of a run: the newest few and the best, parameters apart from the optimizer's state."""

import contextlib
import os

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from tfm.errors import UserError
from tfm.files import require_space
from tfm.training.step import TrainState

ITEMS = ("params", "optimizer", "average")


class Checkpoints:
    """The checkpoints in one folder.

    Args:
      directory: made when absent.
      best_metric: name of the metric whose largest value makes a checkpoint the best; None keeps no best.
      keep: how many of the newest stay.
    """

    def __init__(self, directory, *, best_metric=None, keep=5):
        self.directory = os.path.abspath(directory)
        self._best_metric = best_metric
        policies = [checkpoint_managers.LatestN(keep)]
        best = None
        if best_metric is not None:

            def best(metrics):
                return metrics[best_metric]

            policies.append(
                checkpoint_managers.BestN(get_metric_fn=best, n=1, keep_checkpoints_without_metrics=False)
            )
        options = ocp.CheckpointManagerOptions(
            best_fn=best, preservation_policy=checkpoint_managers.AnyPreservationPolicy(policies)
        )
        handlers = {name: ocp.StandardCheckpointHandler() for name in ITEMS}
        self._manager = ocp.CheckpointManager(self.directory, options=options, item_handlers=handlers)

    def steps(self):
        """Steps with a checkpoint, ascending."""
        return sorted(self._manager.all_steps())

    def latest(self):
        """The newest step, or None."""
        return self._manager.latest_step()

    def best(self):
        """The step with the best metric, or None where none was measured."""
        with contextlib.suppress(ValueError):
            return self._manager.best_step()

    def save(self, state, metrics=None):
        """Writes a `TrainState` in the background; returns once its arrays are copied from the device.

        metrics: {name: float} measured at its step; without the best metric it cannot become the best.

        Raises:
          UserError: the disk is full.
        """
        if metrics is not None and self._best_metric not in metrics:
            metrics = None
        require_space(self.directory, sum(x.nbytes for x in jax.tree.leaves(_items(state))))
        items = {name: ocp.args.StandardSave(item) for name, item in _items(state).items()}
        self._manager.save(int(state.step), args=ocp.args.Composite(**items), metrics=metrics)

    def restore(self, like, step=None):
        """The `TrainState` of `step` (the newest when None), shaped and placed like `like`.

        Raises:
          UserError: no such checkpoint, or one of another shape.
        """
        items = self._restore(_items(like), self._existing(step))
        optimizer = items["optimizer"]
        return TrainState(optimizer["step"], items["params"], optimizer["state"], items.get("average"))

    def restore_weights(self, like, step=None):
        """The parameters of `step` to evaluate, its average where it has one, shaped like `like`.

        Raises:
          UserError: no such checkpoint, or one of another shape.
        """
        step = self._existing(step)
        name = "params" if self._manager.item_metadata(step).get("average") is None else "average"
        return self._restore({name: like}, step)[name]

    def wait(self):
        """Returns when what was saved is on disk."""
        self._manager.wait_until_finished()

    def close(self):
        self._manager.close()

    def _existing(self, step):
        steps = self.steps()
        if not steps:
            raise UserError(f"Expected a checkpoint in {self.directory}, but there is none: train first.")
        if step is None:
            return steps[-1]
        if step not in steps:
            raise UserError(f"There is no checkpoint of step {step} in {self.directory}; there are {steps}.")
        return step

    def _restore(self, expected, step):
        abstract = jax.tree.map(_abstract, expected)
        stored = self._manager.item_metadata(step)
        for name, tree in abstract.items():
            if stored.get(name) is None:
                raise UserError(
                    f"The checkpoint of step {step} in {self.directory} has no {name}: "
                    "leave training.ema_decay as the run was started with."
                )
            _check_shapes(tree, stored[name].tree, f"The checkpoint of step {step} in {self.directory}")
        arguments = {name: ocp.args.StandardRestore(tree) for name, tree in abstract.items()}
        return self._manager.restore(step, args=ocp.args.Composite(**arguments))


def _items(state):
    """What a checkpoint of a `TrainState` consists of."""
    items = {"params": state.params, "optimizer": {"step": state.step, "state": state.opt_state}}
    return items if state.average is None else items | {"average": state.average}


def average(trees):
    """Element-wise mean of parameter trees (section 6.1 averages the last checkpoints); sums in float64.

    Args:
      trees: iterable of equal trees; one is held at a time.
    """
    total, count = None, 0
    for tree in trees:
        wide = jax.tree.map(lambda x: np.asarray(x, np.float64), tree)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
        count += 1
    return jax.tree.map(lambda x: (x / count).astype(np.float32), total)


def _abstract(x):
    """Shape, dtype and place of an array; a ShapeDtypeStruct without a place goes to the first device."""
    sharding = getattr(x, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _check_shapes(expected, stored, what):
    """Names the first leaf that differs, before Orbax meets it deep inside."""
    wanted = _shapes(expected)
    found = _shapes(stored)
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UserError(
                f"{what} is of another model: {name} should be {wanted.get(name, 'absent')} "
                f"and is {found.get(name, 'absent')}; use the config that it was trained with."
            )


def _shapes(tree):
    """{path: shape}. Orbax stores tuples as lists and named tuples as dicts, so names are normalised."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: hasattr(x, "shape"))
    return {
        "/".join(
            str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path
        ): tuple(leaf.shape)
        for path, leaf in leaves
        if hasattr(leaf, "shape")
    }
