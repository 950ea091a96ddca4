"""The learners of a task: an optimizer for each update, and checks of the patterns."""

import zlib
from collections.abc import Sequence
from typing import Any

from tfm.errors import UserError
from tfm.io.tree_paths import list_paths
from tfm.schedules import Schedule
from tfm.training.config import TrainingConfig
from tfm.training.optimizers import NOT_DECAYED, Factors, check_patterns, make_optimizer, match, parse_factors
from tfm.training.step import Learner
from tfm.training.task import Update

FACTOR_FIELDS = ("learning_rate_factors", "weight_decay_factors")


def make_learners(
    updates: Sequence[Update], config: TrainingConfig, schedule: Schedule, params: Any
) -> list[Learner]:
    """Makes the learner of each update.

    Args:
      updates: the updates of the task.
      config: its fields `optimizer`, `clip_norm`, `freeze` and the factors are read.
      schedule: learning rate of the updates that have no schedule.
      params: the parameters, or their shapes.

    Raises:
      UserError: if names are missing or repeated, an interval is no positive integer, a pattern matches no
        parameter that it could apply to, two updates train one parameter, no parameter is left to train, or
        `make_optimizer` raises it.
    """
    paths = list_paths(params)
    _check_names(updates)
    check_patterns("training.freeze", config.freeze, paths)
    owners = _find_owners(updates, config.freeze, paths)
    learners = []
    rate_factors, decay_factors = (parse_factors(field, getattr(config, field)) for field in FACTOR_FIELDS)
    for update in updates:
        trains = match(update.parameters, config.freeze)
        trained = [path for path, owner in owners.items() if owner == update.name]
        optimizer = make_optimizer(
            update.optimizer or config.optimizer,
            update.schedule or schedule,
            config.clip_norm,
            _keep_matching(rate_factors, trained),
            _keep_matching(decay_factors, trained),
        )
        if update.optimizer is not None and trained:
            field = f"not_decayed of the update {update.name!r}"
            check_patterns(field, _own_patterns(update.optimizer), trained)
        # The index of an update would collide with the index of a device.
        salt = zlib.crc32(update.name.encode()) if len(updates) > 1 else None
        learners.append(Learner(update.loss, optimizer, update.name, trains, update.every, salt))
    for field, factors in zip(FACTOR_FIELDS, (rate_factors, decay_factors), strict=True):
        check_patterns(f"training.{field}", [pattern for pattern, _ in factors], list(owners))
    check_patterns("training.optimizer.not_decayed", _own_patterns(config.optimizer), list(owners))
    return learners


def _find_owners(updates: Sequence[Update], frozen: Sequence[str], paths: Sequence[str]) -> dict[str, str]:
    """Returns {path of a parameter: name of the update that trains it}, without frozen parameters.

    Raises:
      UserError: if a pattern of an update matches no parameter, two updates train one parameter, or no
        parameter is left to train.
    """
    owners: dict[str, str] = {}
    for update in updates:
        check_patterns(f"the update {update.name!r}", update.parameters, paths)
        for path in filter(match(update.parameters, frozen), paths):
            if path in owners:
                raise UserError(
                    f"Expected one update for each parameter, but {owners[path]!r} and {update.name!r} both "
                    f"train {path}: change the patterns of the updates."
                )
            owners[path] = update.name
    if not owners:
        raise UserError(
            f"Expected a parameter to train, but training.freeze {tuple(frozen)} matches all parameters."
        )
    return owners


def _keep_matching(factors: Factors, paths: Sequence[str]) -> Factors:
    """Returns the factors whose patterns match a path. Others match parameters of other optimizers."""
    return tuple((pattern, factor) for pattern, factor in factors if any(map(match((pattern,)), paths)))


def _own_patterns(config: Any) -> list[str]:
    """Returns the patterns of parameters without weight decay, except the default patterns."""
    return sorted(set(getattr(config, "not_decayed", ())) - set(NOT_DECAYED))


def _check_names(updates: Sequence[Update]) -> None:
    """Raises a UserError if updates have unusable names or intervals."""
    names = [update.name for update in updates]
    if not names or not all(name and "/" not in name for name in names) or len(set(names)) < len(names):
        raise UserError(
            f"Expected the updates of the task to have different names without a slash, got {names}."
        )
    for update in updates:
        if not isinstance(update.every, int) or update.every < 1:
            raise UserError(
                f"Expected `every` of the update {update.name!r} to be an integer of at least 1, got "
                f"{update.every!r}."
            )
