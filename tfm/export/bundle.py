"""Writing a run as a bundle: a portable folder that `tfm.workdir` opens like the run."""

import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from flax.traverse_util import flatten_dict

from tfm import config
from tfm.checkpoints import manifest
from tfm.errors import UserError
from tfm.export import model_card
from tfm.io.files import atomic_folder, writing
from tfm.workdir import runs
from tfm.workdir.bundle import (
    CARD_FILE,
    FORMAT_VERSION,
    MANIFEST_KEY,
    METADATA_KEY,
    PARAMETERS_FILE,
    flat_name,
)


def write_bundle(
    run: runs.Run, folder: str, *, workdir: str, programs: Mapping[str, bytes] | None = None
) -> None:
    """Writes a run as a portable folder. After an error, no partial folder remains.

    Args:
      run: the run, with a single model.
      folder: the folder to write. It must be empty or not exist.
      workdir: the folder of the run, with its assets and the scores of tfm evaluate.
      programs: {file name: bytes} of the programs from `tfm.export.stablehlo`, or None.

    Raises:
      UserError: if `folder` is not empty or cannot be written.
    """
    folder = os.path.abspath(folder)
    check_absent(folder)
    with writing(folder), atomic_folder(folder) as temporary:
        _write(run, temporary, workdir, programs or {})


def check_absent(folder: str) -> None:
    """Raises a UserError if the path exists and is not an empty folder."""
    folder = os.path.abspath(folder)
    if os.path.lexists(folder) and not (os.path.isdir(folder) and not os.listdir(folder)):
        raise UserError(f"Expected an empty or a new folder, but {folder} is neither. Choose another folder.")


def flat_parameters(params: Any) -> dict[str, np.ndarray]:
    """Converts a parameter tree to {flat name: float32 array}, the content of the file."""
    # C order is needed, because safetensors writes the memory of an array as it is.
    return {
        name: np.asarray(x, np.float32, order="C")
        for name, x in sorted(flatten_dict(params, sep="/").items())
    }


def flat_state(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns {"collection:flat name": array} of the variables that are no parameters."""
    state = {name: tree for name, tree in variables.items() if name != "params"}
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {flat_name(path): np.asarray(x, order="C") for path, x in leaves}


def _write(run, folder, workdir, programs):
    settings, assets = run.task.config.without_paths(), run.task.assets()
    variables = runs.single_model_variables(run)
    parameters = flat_parameters(variables["params"])
    about = {
        "format_version": FORMAT_VERSION,
        "steps": [int(step) for step in run.steps],
        "assets": assets,
        MANIFEST_KEY: manifest.FILE,
    }
    reports = model_card.read_reports(workdir, settings.output_suffix)
    count = sum(x.size for x in parameters.values())
    pieces = len(run.task.tokenizer) if hasattr(run.task, "translate") else None
    card = model_card.write(settings, run.steps, count, pieces, reports, sorted(programs))
    files = {
        PARAMETERS_FILE: safetensors.numpy.save(
            parameters | flat_state(variables), {METADATA_KEY: json.dumps(about)}
        ),
        CARD_FILE: card.encode("utf-8"),
        **programs,
    }
    config.save(settings, runs.config_path(folder))
    for name in assets:
        shutil.copyfile(os.path.join(workdir, name), os.path.join(folder, name))
    for name, content in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
    manifest.write(folder, {}, set(os.listdir(folder)) - {CARD_FILE})
