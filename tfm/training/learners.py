"""Turns the updates of a task into learners: optimizers are made and patterns are resolved."""

import zlib
from collections.abc import Sequence
from typing import Any

from tfm.errors import UserError
from tfm.schedules import Schedule
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import NOT_DECAYED, make_optimizer, parse_factors
from tfm.training.patterns import check_patterns, match
from tfm.training.step import Learner
from tfm.training.task import Update
from tfm.tree_paths import list_paths


def make_learners(
    updates: Sequence[Update], config: TrainingConfig, schedule: Schedule, params: Any
) -> list[Learner]:
    """Makes the learner of each update.

    Args:
      updates: those of the task.
      config: says `optimizer`, `clip_norm`, `freeze` and the factors by pattern.
      schedule: learning rate of the updates that have no schedule.
      params: the parameters, or their shapes.

    Raises:
      UserError: if names are missing or repeated, an interval is below 1, a pattern matches no parameter, two
        updates train one parameter, or no parameter is left to train.
    """
    paths = list_paths(params)
    _check_names(updates)
    check_patterns("training.freeze", config.freeze, paths)
    owners: dict[str, str] = {}
    learners = []
    for update in updates:
        check_patterns(f"the update {update.name!r}", update.parameters, paths)
        trains = match(update.parameters, config.freeze)
        for path in filter(trains, paths):
            if path in owners:
                raise UserError(
                    f"Expected one update for each parameter, but {owners[path]!r} and {update.name!r} both "
                    f"train {path}: change the patterns of the updates."
                )
            owners[path] = update.name
        optimizer_config = update.optimizer or config.optimizer
        optimizer = make_optimizer(
            optimizer_config,
            update.schedule or schedule,
            config.clip_norm,
            parse_factors("learning_rate_factors", config.learning_rate_factors),
            parse_factors("weight_decay_factors", config.weight_decay_factors),
        )
        # The index of an update would collide with the index of a device.
        salt = zlib.crc32(update.name.encode()) if len(updates) > 1 else None
        learners.append(Learner(update.loss, optimizer, update.name, trains, update.every, salt))
    if not owners:
        raise UserError(
            f"Expected a parameter to train, but training.freeze {config.freeze} matches all parameters."
        )
    for name in ("learning_rate_factors", "weight_decay_factors"):
        patterns = [pattern for pattern, _ in parse_factors(name, getattr(config, name))]
        check_patterns(f"training.{name}", patterns, list(owners))
    for optimizer_config in [config.optimizer, *(update.optimizer for update in updates if update.optimizer)]:
        not_decayed = set(getattr(optimizer_config, "not_decayed", ())) - set(NOT_DECAYED)
        check_patterns("training.optimizer.not_decayed", sorted(not_decayed), list(owners))
    return learners


def _check_names(updates: Sequence[Update]) -> None:
    names = [update.name for update in updates]
    if not names or not all(name and "/" not in name for name in names) or len(set(names)) < len(names):
        raise UserError(
            f"Expected the updates of the task to have different names without a slash, got {names}."
        )
    for update in updates:
        if update.every < 1:
            raise UserError(
                f"Expected `every` of the update {update.name!r} to be at least 1, got {update.every}."
            )
