"""An exported bundle, read: one portable folder of parameters, config, assets and model card.

Nothing in it is executed when it is opened: the parameters are safetensors, the config JSON. The parameters
have flat names, "decoder/layers_0/self_attention/key/kernel". A manifest holds the checksums of all files but
the model card, which may be edited.
"""

import dataclasses
import json
import logging
import math
import os
from typing import Any

import jax
import safetensors

from tfm.checkpoints import manifest
from tfm.checkpoints.trees import check_finite
from tfm.errors import UserError
from tfm.memory import check_weights_fit
from tfm.training.task import Task, Variables

PARAMETERS_FILE = "model.safetensors"
CARD_FILE = "README.md"
FORMAT_VERSION = 1
STATE_SEPARATOR = ":"  # between a collection of the state and a name in it; parameters have no collection
METADATA_KEY = "tfm"  # one entry, as the order of several is left to chance
MANIFEST_KEY = "manifest"  # in it, since exports have one
DTYPES = {"float32": "F32", "int32": "I32", "uint32": "U32", "bool": "BOOL", "bfloat16": "BF16"}
log = logging.getLogger(__name__)


def is_bundle(folder: str) -> bool:
    """Whether `folder` holds exported parameters; a run has checkpoints instead."""
    return os.path.isfile(os.path.join(folder, PARAMETERS_FILE))


def read_bundle(folder: str, task: Task) -> tuple[Variables, list[int]]:
    """Returns the variables in a bundle, and the steps of their checkpoints.

    Args:
      folder: that `tfm.export.bundle.write_bundle` wrote.
      task: of its config.

    Raises:
      UserError: a file is missing, of another version or not of this model, found from names and sizes alone,
        before anything of the parameters' size is allocated; or one is damaged, or holds parameters that are
        not finite.
    """
    path = os.path.join(folder, PARAMETERS_FILE)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            about = _about(file.metadata(), path)
            _check_assets(about, task.assets(), folder)
            _check_parameters(task, file, path)
            _check_manifest(about, folder)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"Expected parameters at {path}, but there are none: export the run again.") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}): copy it again.") from None
    check_finite(tensors, path)
    flat, like = jax.device_put(tensors), jax.eval_shape(task.init, jax.random.key(0))
    return jax.tree_util.tree_map_with_path(lambda path, _: flat[flat_name(path)], like), about["steps"]


def flat_name(path: tuple[Any, ...]) -> str:
    """Returns the name in the file of a variable, "decoder/norm/scale" or "batch_stats:norm/mean".

    Args:
      path: of the variable in the tree of all variables, as `jax.tree_util` returns it. A name in it may
        contain slashes, as in the state of `flax.linen.SpectralNorm`.
    """
    collection = jax.tree_util.keystr(path[:1], simple=True)
    name = jax.tree_util.keystr(path[1:], simple=True, separator="/")
    return name if collection == "params" else f"{collection}{STATE_SEPARATOR}{name}"


def _about(metadata, path):
    """The checked metadata of the file."""
    try:
        about = json.loads((metadata or {})[METADATA_KEY])
        version = about["format_version"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise UserError(f"{path} was not written by tfm export: it has no format version.") from None
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path} has format version {version!r} and this tfm reads {FORMAT_VERSION}: "
            "use the tfm that wrote it."
        )
    steps = about.get("steps")
    if not isinstance(steps, list) or not steps or not all(type(step) is int for step in steps):
        raise UserError(f"{path} does not say the steps of its checkpoints: export the run again.")
    return about


def _check_assets(about, assets, folder):
    """Word pieces of another order would pass every check of shapes and give nonsense."""
    expected = about.get("assets")
    if (
        expected is None
    ):  # written before tasks had assets: of a translation, whose one asset is its tokenizer
        expected = dict.fromkeys(assets, about.get("vocabulary"))
    for name, fingerprint in assets.items():
        if expected.get(name) != fingerprint:
            raise UserError(
                f"{name} in {folder} is not what its parameters were trained with: copy it again."
            )


def _check_manifest(about, folder):
    """Damage that leaves all sizes and shapes as they were would translate to nonsense."""
    if MANIFEST_KEY not in about and not os.path.exists(os.path.join(folder, manifest.FILE)):
        log.warning("%s has no checksums and cannot be verified: it was exported by an earlier tfm", folder)
        return
    try:
        manifest.check(folder, exact=False)
    except manifest.Damaged as damage:
        raise UserError(f"The export in {folder} is damaged ({damage}): copy it again.") from None


def _check_parameters(task, file, path):
    """Every name, shape and dtype, from the header alone."""
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    found = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    _check_sizes(task.config.model, found, path)
    check_weights_fit(getattr(task, "model", None))
    leaves = jax.tree_util.tree_leaves_with_path(jax.eval_shape(task.init, jax.random.key(0)))
    wanted = {
        flat_name(path): (DTYPES.get(str(leaf.dtype), str(leaf.dtype)), tuple(leaf.shape))
        for path, leaf in leaves
    }
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UserError(
                f"{path} is of another model than its config: {name} should be "
                f"{_described(wanted.get(name))} and is {_described(found.get(name))}."
            )


def _check_sizes(model, found, path):
    """Even a model of shapes alone takes the time of its layers and makes constants as wide as itself."""
    elements = sum(math.prod(shape) for _, shape in found.values())
    sizes = dataclasses.asdict(model)
    sizes["max_positions"] = getattr(model, "max_length", None)  # sinusoids have no table
    for name, value in sizes.items():
        most = len(found) if name.endswith("_layers") else elements
        if isinstance(value, int) and value > most:
            raise UserError(f"{path} is too small for its config, in which {name} is {value}.")


def _file_dtype(leaf):
    """Returns the name of a dtype in safetensors."""
    return DTYPES.get(str(leaf.dtype), str(leaf.dtype))


def _described(header):
    return "absent" if header is None else f"{header[0]} {list(header[1])}"
