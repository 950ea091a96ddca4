"""Hooks that the training loop calls, such as trackers and the profiler."""

import contextlib
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

import jax

from tfm.training.task import Samples

# The ways in which a run can end: by itself, by a signal, or by an error.
Outcome = Literal["finished", "stopped", "failed"]


class Hook:
    """The base class of hooks. Its methods do nothing; subclasses override some. Every host runs hooks."""

    def on_start(self, step: int, compiled: jax.stages.Compiled) -> None:
        """Called with the number of completed steps and the compiled step, before the first step runs."""

    def on_step(self, step: int, metrics: Mapping[str, tuple[float, float]]) -> None:
        """Called with the metrics of each step, {name: (sum, count)}, after the next step is dispatched."""

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called every `training.log_every` steps with {"train/...": mean since the last call}."""

    def on_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """Called after each evaluation with {"validation/...": value}."""

    def on_samples(self, step: int, samples: Samples) -> None:
        """Called after `on_evaluation` if the task returned samples."""

    def close(self, outcome: Outcome) -> None:
        """Called at the end of the run, even if the run fails or ends before `on_start`."""


class Hooks(Hook):
    """A hook that calls several hooks in order. As a context, it closes them with the outcome of the run."""

    def __init__(self, hooks: Iterable[Hook]):
        self._hooks = tuple(hooks)

    def _call(self, name: str, *arguments: Any) -> None:
        for hook in self._hooks:
            getattr(hook, name)(*arguments)

    on_start = functools.partialmethod(_call, "on_start")
    on_step = functools.partialmethod(_call, "on_step")
    on_log = functools.partialmethod(_call, "on_log")
    on_evaluation = functools.partialmethod(_call, "on_evaluation")
    on_samples = functools.partialmethod(_call, "on_samples")

    def close(self, outcome: Outcome) -> None:
        """Closes all hooks, even if an earlier hook raises an error."""
        with contextlib.ExitStack() as stack:
            for hook in reversed(self._hooks):
                stack.callback(hook.close, outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close("finished")
        else:
            self.close("stopped" if issubclass(kind, SystemExit | KeyboardInterrupt) else "failed")
