"""Hooks that the training loop calls: trackers, and whatever else a user attaches."""

from collections.abc import Iterable, Mapping

import jax

from tfm.training.task import Samples


class Hook:
    """Does nothing; a subclass overrides what it needs. Each host calls its own."""

    def on_compiled(self, compiled: jax.stages.Compiled) -> None:
        """Once the step is compiled, before the first."""

    def on_step(self, step: int, metrics: Mapping[str, tuple[float, float]]) -> None:
        """After each step, once the next is dispatched: its metrics, {name: (sum, count)}."""

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Every `training.log_every` steps: the means since the last time, {"train/...": value}."""

    def on_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """After each evaluation: {"validation/...": value}."""

    def on_samples(self, step: int, samples: Samples) -> None:
        """After `on_evaluation`, where the task gave samples."""

    def close(self) -> None:
        """At the end of the run, also where it fails."""


class Hooks(Hook):
    """Several hooks, called in order."""

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
