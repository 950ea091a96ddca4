"""Models of other runs that a task uses and does not train, such as a teacher or a first stage.

A task declares one with `frozen_field`. Before the task of a new run is created, the command copies the
model that the field names into the run folder (`tfm.workdir.warm_start`). The copy is an asset: exports
contain it, and the run does not need the other run any longer.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from flax.traverse_util import flatten_dict, unflatten_dict

from tfm.checkpoints.trees import check_finite
from tfm.config import OnResume, field
from tfm.errors import UserError
from tfm.io.files import atomic_file, hash_file
from tfm.training.task import Variables

SUFFIX = ".safetensors"  # of the asset of a field; no other asset has this ending
METADATA_KEY = "tfm"


@dataclasses.dataclass(frozen=True)
class FrozenModel:
    """A model that is not trained.

    Attributes:
      model: the section `model` of its config, as a mapping.
      variables: its variables, as NumPy arrays.
      fingerprint: SHA-256 of the file that holds it.
    """

    model: dict[str, Any]
    variables: Variables
    fingerprint: str


def frozen_field(name: str, help: str) -> Any:
    """Creates a config field that names a run or an export. Its model becomes the asset `name`.safetensors.

    Args:
      name: the name of the field.
      help: the meaning of the field.
    """
    return field("", help, asset=name + SUFFIX, resume=OnResume.FIXED)


def write_frozen(path: str, model: Mapping[str, Any], variables: Variables) -> None:
    """Writes a frozen model to a file. Replaces an existing file only if the new file is complete.

    Args:
      path: the file.
      model: the section `model` of its config.
      variables: its variables, as NumPy arrays.
    """
    flat = flatten_dict(dict(variables))
    # Names in the file are numbers, because the names of modules and variables may contain any separator.
    metadata = {"model": model, "paths": list(flat)}
    arrays = {str(index): np.asarray(x, order="C") for index, x in enumerate(flat.values())}
    with atomic_file(path) as file:
        file.write(safetensors.numpy.save(arrays, {METADATA_KEY: json.dumps(metadata)}))


def read_frozen(workdir: str, name: str) -> FrozenModel:
    """Reads the frozen model of a run.

    Args:
      workdir: folder of the run.
      name: the name of its field.

    Raises:
      UserError: if the run has no such model, its file is damaged, or a variable is not finite.
    """
    path = os.path.join(workdir, name + SUFFIX)
    try:
        fingerprint = hash_file(path)
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = json.loads(file.metadata()[METADATA_KEY])
            model = dict(metadata["model"])
            paths = [tuple(map(str, path)) for path in metadata["paths"]]
            arrays = {path: file.get_tensor(str(index)) for index, path in enumerate(paths)}
    except FileNotFoundError:
        raise UserError(f"The run needs a trained model: name a run or an export in config.{name}.") from None
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no complete frozen model ({error}). Copy it again.") from None
    check_finite({"/".join(path): x for path, x in arrays.items()}, path)
    return FrozenModel(model, unflatten_dict(arrays), fingerprint)
