"""The format of an export: a portable folder with parameters, config, assets and a model card.

Opening a bundle executes nothing from it, because the parameters are safetensors and the config is JSON. The
parameters have flat names, such as "decoder/layers_0/self_attention/key/kernel". A manifest contains the
checksums of all files except the model card, so that users may edit the card.
"""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

from tfm.checkpoints import manifest
from tfm.checkpoints.trees import check_finite
from tfm.config.fields import info_of
from tfm.devices.memory import check_parameters_fit
from tfm.errors import UserError
from tfm.io.files import naming_errors
from tfm.io.tree_paths import join_path
from tfm.training.task import Task, Variables, variable_shapes
from tfm.workdir.own_code import hash_modules, warn_of_other_modules

PARAMETERS_FILE = "model.safetensors"
CARD_FILE = "README.md"
FORMAT_VERSION = 1
STATE_SEPARATOR = ":"  # in "collection:name" of the state; names of parameters have no collection
METADATA_KEY = "tfm"  # a single entry, because safetensors writes several entries in a random order
SIZE_UNITS = ("features", "heads", "classes", "pixels")  # of the fields that are sizes of parameters
DTYPES = {"float32": "F32", "int32": "I32", "uint32": "U32", "bool": "BOOL"}  # names in safetensors


def is_bundle(folder: str) -> bool:
    """Returns whether a folder is an export: it has a file of parameters instead of checkpoints."""
    return os.path.isfile(os.path.join(folder, PARAMETERS_FILE))


def read_bundle(folder: str, task: Task) -> tuple[Variables, list[int]]:
    """Reads the variables of a bundle, and the steps of the checkpoints that they come from.

    Names and sizes are checked before anything as large as the parameters is allocated. The variables are
    NumPy arrays. A warning names the user's modules that have changed since the bundle was written.

    Args:
      folder: a folder that `tfm.export.write.write_bundle` wrote.
      task: the task of the folder's config.

    Raises:
      UserError: if a file is missing, damaged, of a different version, or belongs to a different model, or if
        parameters are not finite.
      OSError: if a file cannot be read.
    """
    path = os.path.join(folder, PARAMETERS_FILE)
    try:
        with naming_errors(path), safetensors.safe_open(path, framework="numpy") as file:
            metadata = _read_metadata(file.metadata(), path)
            for name, fingerprint in task.assets().items():
                if (
                    metadata["assets"].get(name) != fingerprint
                ):  # as after a change of the order of its pieces
                    raise UserError(
                        f"{name} in {folder} is not the file that its parameters were trained with. Copy it "
                        "again."
                    )
            like = _check_parameters(task, file, path)
            manifest.check(folder, exact=False)  # finds damage that changes no size or shape
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"Expected parameters at {path}, but there are none. Export the run again.") from None
    except manifest.Damaged as damage:
        raise UserError(f"The export in {folder} is damaged ({damage}). Copy it again.") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is not a complete safetensors file ({error}). Copy it again.") from None
    check_finite(tensors, path)
    warn_of_other_modules(folder, metadata["modules"], task.config)
    expected = flatten(like)
    tensors = {name: x.astype(expected[name].dtype, copy=False) for name, x in tensors.items()}
    return unflatten(tensors, like), metadata["steps"]


def write_parameters(folder: str, variables: Variables, steps: list[int], task: Task) -> None:
    """Writes the variables of a bundle into the file `PARAMETERS_FILE` of a folder, parameters in float32.

    The metadata of the file are the steps of the checkpoints, and the fingerprints of the assets and of the
    user's own modules.

    Raises:
      UserError: see `flatten`.
    """
    metadata = {
        "format_version": FORMAT_VERSION,
        "steps": steps,
        "assets": task.assets(),
        "modules": hash_modules(task.config),
    }
    # C order is needed, because safetensors writes the memory of an array as it is.
    flat = sorted(flatten(variables).items())
    arrays = {name: np.asarray(x, stored_dtype(name, x), order="C") for name, x in flat}
    write_tensors(os.path.join(folder, PARAMETERS_FILE), arrays, {METADATA_KEY: json.dumps(metadata)})


def write_tensors(path: str, arrays: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> None:
    """Writes a safetensors file that others may read. `save_file` would permit only the owner to read it."""
    with open(path, "wb") as file:
        file.write(safetensors.numpy.save(arrays, metadata))


def stored_dtype(name: str, x: Any) -> Any:
    """Returns the dtype in the file. All parameters are float32, and the state keeps its dtype."""
    return x.dtype if STATE_SEPARATOR in name else np.dtype(np.float32)


def flatten(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {name in the file: variable} of the tree of all variables.

    Raises:
      UserError: if two variables have the same name, such as "a/b" and b of "a".
    """
    arrays: dict[str, Any] = {}
    for path, x in jax.tree_util.tree_leaves_with_path(variables):
        name = flat_name(path)
        if name in arrays:
            raise UserError(f"Two variables of the model have the name {name} in an export. Rename a module.")
        arrays[name] = x
    return arrays


def unflatten(arrays: Mapping[str, Any], like: Any) -> Any:
    """Returns a tree with the structure of `like` from the arrays that `flatten` returned.

    The structure cannot be read from the names, because a name of a module or variable may contain slashes.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: arrays[flat_name(path)], like)


def flat_name(path: tuple[Any, ...]) -> str:
    """Returns the name in the file of a variable, "decoder/norm/scale" or "batch_stats:norm/mean".

    Names in the path may contain slashes, as in the state of `flax.linen.SpectralNorm`.
    """
    collection, name = join_path(path[:1]), join_path(path[1:])
    return name if collection == "params" else f"{collection}{STATE_SEPARATOR}{name}"


def _read_metadata(header: Mapping[str, str] | None, path: str) -> dict[str, Any]:
    """Returns the metadata of the file of parameters, or raises a UserError if they are invalid.

    Returns:
      "steps", a list of integers, and the dicts "assets" and "modules".
    """
    try:
        metadata = json.loads((header or {})[METADATA_KEY])
        version = metadata["format_version"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise UserError(f"{path} has no format version, so tfm export did not write it.") from None
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path} has format version {version!r}, but this version of tfm reads {FORMAT_VERSION}. "
            "Use the version of tfm that wrote it."
        )
    steps = metadata.get("steps")
    has_types = isinstance(steps, list) and all(type(step) is int for step in steps)
    if not has_types or not all(isinstance(metadata.get(name), dict) for name in ("assets", "modules")):
        raise UserError(f"{path} has metadata of another form than tfm export writes. Export the run again.")
    return metadata


def _check_parameters(task: Task, file: Any, path: str) -> Variables:
    """Returns the shapes of the task's variables, or raises a UserError if the header of the file differs."""
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (the file is no mapping)
    stored = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    check_sizes(task.config.model, stored, path)
    like = variable_shapes(task)
    check_parameters_fit(like["params"])
    wanted = {
        name: (DTYPES.get(str(stored_dtype(name, x)), str(x.dtype)), tuple(x.shape))
        for name, x in flatten(like).items()
    }
    for name in sorted(wanted.keys() | stored.keys()):
        if wanted.get(name) != stored.get(name):
            raise UserError(
                f"{path} belongs to another model than its config: expected {name} to be "
                f"{_described(wanted.get(name))}, got {_described(stored.get(name))}."
            )
    return like


def check_sizes(model: Any, stored: Mapping[str, tuple[str, tuple[int, ...]]], path: str) -> None:
    """Raises a UserError if the config has sizes that are too large for the parameters in the file.

    Otherwise, a hostile config could make even the evaluation of shapes take very long or allocate large
    constants.
    """
    elements = sum(math.prod(shape) for _, shape in stored.values())
    # Layers of another package may share their parameters. Its code runs only if the user imports it.
    layers = len(stored) if type(model).__module__.startswith("tfm.") else elements
    limits = dict.fromkeys(SIZE_UNITS, elements) | {"layers": layers}
    sizes = [(each.name, getattr(model, each.name), info_of(each).unit) for each in dataclasses.fields(model)]
    sizes.append(("max_positions", getattr(model, "max_length", None), "features"))
    for name, value, unit in sizes:
        if isinstance(value, int) and value > limits.get(unit, value):
            raise UserError(f"{path} is too small for its config, where {name} is {value}. Copy both again.")


def _described(header: tuple[str, tuple[int, ...]] | None) -> str:
    """Returns dtype and shape of an array for an error message, or "absent"."""
    return "absent" if header is None else f"{header[0]} {list(header[1])}"
