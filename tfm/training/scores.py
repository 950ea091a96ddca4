"""The scores of a run's evaluations: which step is the best, which is due, and when training stops early."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Literal, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

from tfm.checkpoints.retention import rank
from tfm.errors import UserError
from tfm.io.files import append_json_line, atomic_file, is_float, read_json_lines
from tfm.training.config import TrainingConfig
from tfm.training.task import Best, Task

SCORES_FILE = "scores.jsonl"
VALIDATION = "validation/"  # begins the names of the scores of an evaluation
LOSS = "loss"  # in `training.best_by`, the loss of any task


def find_best(task: Task, config: TrainingConfig) -> Best:
    """Returns the metric that selects the best checkpoint: `config.best_by`, or else the task's metric.

    The name "loss" is the task's validation loss, whatever the task calls it.
    """
    if not config.best_by:
        return task.best
    order, _, name = config.best_by.partition(":")
    metric = task.validation_loss if name == LOSS and task.validation_loss else f"{VALIDATION}{name}"
    return Best(metric, cast(Literal["max", "min"], order))


def check_score_names(task: Task, config: TrainingConfig) -> None:
    """Checks before the first step that the evaluations will have the scores that a run depends on.

    A task that does not declare its scores is checked by `check_best` at its first evaluation.

    Raises:
      UserError: if no evaluation can have the metric that selects the best checkpoint, or if training should
        stop early, but there is neither such a metric nor a validation loss.
    """
    if task.validation_scores:
        check_best(task, config, task.validation_scores)
    if config.patience and not (find_best(task, config).metric or task.validation_loss):
        raise UserError(
            f"training.patience ({config.patience}) stops training by a score of the evaluations, but this "
            "task has no score that selects the best checkpoint and no validation loss. Set "
            "training.patience=0."
        )


def check_best(task: Task, config: TrainingConfig, scores: Iterable[str]) -> None:
    """Checks that the metric that selects the best checkpoint is among the scores of an evaluation.

    Args:
      task, config: of the run.
      scores: names of the scores.

    Raises:
      UserError: if the metric is missing. The message lists the names.
    """
    names = list(scores)
    metric = find_best(task, config).metric
    if not metric or metric in names:
        return
    if not config.best_by:
        raise UserError(
            f"Expected the attribute best of the task to name a score of the evaluations "
            f"({', '.join(names)}), got {metric!r}. Correct the task."
        )
    aliases = [LOSS] if task.validation_loss else []
    known = list(dict.fromkeys([*aliases, *(name.removeprefix(VALIDATION) for name in names)]))
    raise UserError(
        f"Expected training.best_by to be min:NAME or max:NAME with a score of the evaluations "
        f"({', '.join(known)}), got {config.best_by!r}. Choose one of these names."
    )


class Scores:
    """The evaluations of a run, in scores.jsonl: a line {"step": int, "scores": {name: value}} for each.

    Checkpoints contain no scores. An evaluation that a signal or a kill interrupted has no line, so the next
    start makes it. The best step and early stopping follow from the lines, however often a run was restarted.

    Args:
      workdir: folder of the run.
      best: the metric that selects the best step.
      loss: name of the validation loss, or "". Early stopping waits while it improves.
    """

    def __init__(self, workdir: str, best: Best, loss: str = ""):
        self._path = os.path.join(workdir, SCORES_FILE)
        self._best = best
        self._loss = loss
        self._sign = 1 if best.order == "max" else -1
        lines = read_json_lines(self._path, {"step": int, "scores": dict})
        # A step that was evaluated twice has two lines, and the later line counts.
        self._scores: dict[int, dict[str, float]] = {
            line["step"]: line["scores"] for line in lines if all(map(is_float, line["scores"].values()))
        }

    def add(self, step: int, scores: Mapping[str, float]) -> None:
        """Adds the scores of a step. The first host writes them durably.

        Raises:
          UserError: if the line cannot be written.
        """
        self._scores[step] = {name: float(score) for name, score in scores.items()}
        if jax.process_index() == 0:
            append_json_line(self._path, {"step": step, "scores": self._scores[step]}, durable=True)

    def drop_after(self, step: int) -> None:
        """Removes the scores of later steps from memory and from the file.

        A run that resumes from `step` trains these steps again.

        All hosts call it and then have the scores of the first host, because a network drive may show an
        older file to the others, and all must evaluate the same steps.

        Raises:
          UserError: if the file cannot be written.
        """
        if jax.process_count() > 1:
            self._scores = _share(self._scores)
        kept = {each: scores for each, scores in self._scores.items() if each <= step}
        if kept == self._scores:
            return
        self._scores = kept
        if jax.process_index() == 0:
            with atomic_file(self._path, "w") as file:
                file.writelines(
                    json.dumps({"step": each, "scores": scores}) + "\n" for each, scores in kept.items()
                )

    def ranking(self) -> dict[int, float]:
        """Returns {step: score} of the steps with the metric, unless it is NaN. A larger score is better.

        If the order of the metric is "min", the score is minus the value.
        """
        return {step: value for step, value in self._values().items() if not math.isnan(value)}

    def best(self) -> tuple[int, float] | None:
        """Returns (step, value of the metric) of the best evaluation, the newest of equals, or None."""
        ranking = self.ranking()
        ranked = rank(ranking, ranking)
        return (ranked[0], self._scores[ranked[0]][self._best.metric]) if ranked else None

    def is_due(self, step: int, config: TrainingConfig) -> bool:
        """Returns whether the run evaluates a step and has not done so.

        It evaluates the multiples of `eval_every` and the last step.
        """
        evaluates = step == config.steps or (step > 0 and step % config.eval_every == 0)
        return evaluates and step not in self._scores

    def describe_end(self, step: int, config: TrainingConfig) -> str:
        """Returns why training ends after a step, or "" if it continues.

        Examples are "the run has completed its 100 steps" and "5 evaluations have not improved on the best
        loss 1.2". The second reason depends on all recorded evaluations, not on `step`, and counts first.
        """
        best, lowest_loss, since_best = -math.inf, math.inf, 0
        for _, scores in sorted(self._scores.items()):
            value = self._sign * scores.get(self._best.metric, math.nan)
            loss = scores.get(self._loss, math.nan)
            since_best = 0 if value > best or loss < lowest_loss else since_best + 1
            best = value if value > best else best  # unlike max(), ignores nan
            lowest_loss = loss if loss < lowest_loss else lowest_loss
        if 0 < config.patience <= since_best:
            bests = {self._best.metric: self._sign * best, self._loss: lowest_loss}
            shown = " or ".join(
                f"{name.removeprefix(VALIDATION)} {number:.4g}" for name, number in bests.items() if name
            )
            return f"{since_best} evaluations have not improved on the best {shown}"
        return f"the run has completed its {config.steps:,} steps" if step >= config.steps else ""

    def describe_completion(self, step: int, config: TrainingConfig) -> str:
        """Returns why nothing is left to do after a step, or "" if steps or an evaluation are missing."""
        return "" if self.is_due(step, config) else self.describe_end(step, config)

    def _values(self) -> dict[int, float]:
        """Returns {step: value of the metric, where larger is better} of the evaluations that have it."""
        name = self._best.metric
        return {step: self._sign * scores[name] for step, scores in self._scores.items() if name in scores}


def _share(scores: dict[int, dict[str, float]]) -> dict[int, dict[str, float]]:
    """Returns the scores of the first host on all hosts."""
    content = np.frombuffer(json.dumps(list(scores.items())).encode(), np.uint8).astype(np.int32)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
    padded = np.zeros(size, np.int32)  # the sizes of other content may differ
    padded[: len(content)] = content[:size]
    shared = np.asarray(multihost_utils.broadcast_one_to_all(padded))
    return dict(json.loads(shared.astype(np.uint8).tobytes()))
