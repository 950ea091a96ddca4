"""Hooks that the training loop calls, such as trackers and the profiler."""

from collections.abc import Iterable, Mapping

import jax

from tfm.training.task import Samples


class Hook:
    """The base class of hooks. Its methods do nothing; subclasses override some. Every host runs hooks."""

    def on_compiled(self, compiled: jax.stages.Compiled) -> None:
        """Called once after the step is compiled, before the first step runs."""

    def on_step(self, step: int, metrics: Mapping[str, tuple[float, float]]) -> None:
        """Called with the metrics of each step, {name: (sum, count)}, after the next step is dispatched."""

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called every `training.log_every` steps with {"train/...": mean since the last call}."""

    def on_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """Called after each evaluation with {"validation/...": value}."""

    def on_samples(self, step: int, samples: Samples) -> None:
        """Called after `on_evaluation` if the task returned samples."""

    def close(self) -> None:
        """Called at the end of the run, even if the run fails."""


class Hooks(Hook):
    """A hook that calls several hooks in order."""

    def __init__(self, hooks: Iterable[Hook]):
        self._hooks = tuple(hooks)

    def on_compiled(self, compiled: jax.stages.Compiled) -> None:
        """See `Hook`."""
        for hook in self._hooks:
            hook.on_compiled(compiled)

    def on_step(self, step: int, metrics: Mapping[str, tuple[float, float]]) -> None:
        """See `Hook`."""
        for hook in self._hooks:
            hook.on_step(step, metrics)

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Hook`."""
        for hook in self._hooks:
            hook.on_log(step, metrics)

    def on_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """See `Hook`."""
        for hook in self._hooks:
            hook.on_evaluation(step, scores)

    def on_samples(self, step: int, samples: Samples) -> None:
        """See `Hook`."""
        for hook in self._hooks:
            hook.on_samples(step, samples)
