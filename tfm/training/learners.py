"""Turns the updates of a task into learners: optimizers are made and patterns are resolved."""

import fnmatch
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from tfm.errors import UserError
from tfm.schedules import Schedule
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import check_not_decayed, make_optimizer, parse_factors
from tfm.training.step import Learner
from tfm.training.task import Update


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
        check_not_decayed(optimizer_config, list(owners))
    return learners


def match(patterns: Iterable[str], excluded: Iterable[str] = ()) -> Callable[[str], bool]:
    """Returns a function of a path: whether a pattern matches it and no excluded pattern does."""

    def is_wanted(path: str) -> bool:
        return any(fnmatch.fnmatchcase(path, each) for each in patterns) and not any(
            fnmatch.fnmatchcase(path, each) for each in excluded
        )

    return is_wanted


def list_paths(params: Any) -> list[str]:
    """Returns the paths of the parameters, such as "encoder/layers_0/norm/scale"."""
    return [join_path(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]


def join_path(path: tuple) -> str:
    """Returns the path of a leaf as text, such as "encoder/layers_0/norm/scale"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def check_patterns(owner: str, patterns: Iterable[str], paths: Sequence[str]) -> None:
    """Checks that each pattern matches a path.

    Raises:
      UserError: if a pattern of `owner` matches no parameter.
    """
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(path, pattern) for path in paths):
            raise UserError(
                f"Expected each pattern of {owner} to match a parameter, but {pattern!r} matches none; one "
                f"of the paths is {paths[0]!r}."
            )


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
