"""The fingerprints of the user's own modules, so that a model whose code has changed is noticed.

A run folder and an export contain the names of such modules, and not their code. The parameters fit the code
after many changes of it, and the model then computes something else.
"""

import dataclasses
import logging
import sys
from collections.abc import Mapping

from tfm.config import dotted_names
from tfm.config.names import module_names
from tfm.io.files import hash_file
from tfm.training.task import RunConfig

log = logging.getLogger(__name__)


def hash_modules(config: RunConfig) -> dict[str, str]:
    """Returns {module: SHA-256 of its file} of the imported modules outside tfm that a config names.

    The modules that they import are not included.

    Args:
      config: config of a task, a dataclass.
    """
    modules = {name: sys.modules.get(name) for name in module_names(dotted_names(dataclasses.asdict(config)))}
    files = {name: getattr(module, "__file__", None) for name, module in modules.items()}
    return {name: hash_file(path) for name, path in files.items() if path}


def warn_of_changed_modules(
    before: Mapping[str, str], now: Mapping[str, str], *, since: str, effect: str
) -> None:
    """Logs a warning if the file of a module has changed. Modules in only one of the mappings do not count.

    Args:
      before, now: two results of `hash_modules`.
      since: when the modules had the fingerprints in `before`, for the message.
      effect: a sentence about what the change may affect, for the message.
    """
    changed = [name for name in now if before.get(name, now[name]) != now[name]]
    if changed:
        log.warning("The code of %s has changed since %s. %s", " and ".join(changed), since, effect)


def warn_of_other_modules(folder: str, recorded: Mapping[str, str], config: RunConfig) -> None:
    """Logs a warning if the model of a folder may compute something else, because a module has changed.

    Args:
      folder: folder of the run or the export.
      recorded: what `hash_modules` returned when the folder was written.
      config: config of the task. Its modules are imported already.
    """
    effect = "The model may compute something else"
    warn_of_changed_modules(recorded, hash_modules(config), since=f"{folder} was written", effect=effect)
