"""A task that has only a loss, and training steps of one update, for tests of the step."""

from typing import Any

import jax

from tfm.training.step import Learner, TrainState, make_train_step
from tfm.training.task import Best, Data, Evaluation, Task


class BareTask(Task):
    """A task with all members of the contract. A subclass defines `init` and `loss`."""

    config: Any = None
    best = Best("validation/score")
    unit = "rows"
    d_model = 16

    def open_data(self) -> Data:
        """Is never called."""
        raise NotImplementedError

    def evaluate(self, variables: Any, data: Any) -> Evaluation:
        """Returns a score."""
        return Evaluation({"validation/score": 0.0})

    def report(self, variables: Any, split: str) -> Any:
        """Yields nothing."""
        yield from ()


def make_step(loss: Any, optimizer: Any, seed: int = 0, **options: Any) -> Any:
    """Returns a training step with a single update, see `tfm.training.step.make_train_step`."""
    return make_train_step([Learner(loss, optimizer)], jax.random.key(seed), **options)


def make_state(params: Any, optimizer: Any, ema_decay: float = 0.0) -> TrainState:
    """Returns the initial state of a step with a single update."""

    def loss(variables, batch, context):
        raise NotImplementedError

    return TrainState.create({"params": params}, [Learner(loss, optimizer)], ema_decay)
