"""Copies the models of other runs into the folder of a new run that uses them without training them."""

import os
from typing import Any

from tfm.config import to_config_dict, walk_fields
from tfm.devices.mesh import fetch
from tfm.training.frozen import SUFFIX, write_frozen
from tfm.workdir import runs


def copy_frozen_models(config: Any, workdir: str) -> None:
    """Writes the model of each field made by `tfm.training.frozen.frozen_field` into the folder of a run.

    A model that exists already stays as it is, so a run that resumes does not need the other run.

    Args:
      config: the config of the run.
      workdir: its folder.

    Raises:
      UserError: if a field names no run or export, or the other run cannot be loaded.
    """
    for leaf in walk_fields(config):
        path = os.path.join(workdir, leaf.info.asset)
        if not leaf.info.asset.endswith(SUFFIX) or not leaf.value or os.path.exists(path):
            continue
        run = runs.load(leaf.value)
        model = to_config_dict(run.task.config.model).to_dict()
        write_frozen(path, model, fetch(runs.single_model_variables(run)))
