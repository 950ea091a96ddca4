"""A trained model as one portable folder: parameters, config, vocabulary and model card.

Nothing in it is executed when it is opened: the parameters are safetensors, the config JSON, the vocabulary
SentencePiece. The parameters have flat names, "decoder/layers_0/mixer/key/kernel". A manifest holds the
checksums of all files but the model card, which may be edited.
"""

import dataclasses
import json
import logging
import math
import os
import shutil

import jax
import numpy as np
import safetensors
import safetensors.numpy
from flax.traverse_util import flatten_dict, unflatten_dict

from tfm import config, tasks
from tfm.errors import UserError
from tfm.export import model_card
from tfm.runtime import manifest
from tfm.runtime.files import whole_folder, writing
from tfm.runtime.memory import check_weights_fit
from tfm.runtime.restoring import check_finite
from tfm.tasks.translation.task import VOCABULARY_FILE
from tfm.workdir import runs

PARAMETERS_FILE = "model.safetensors"
CARD_FILE = "README.md"
FORMAT_VERSION = 1
METADATA_KEY = "tfm"  # one entry, as the order of several is left to chance
MANIFEST_KEY = "manifest"  # in it, since exports have one
log = logging.getLogger(__name__)


def is_artefact(folder):
    """Whether `folder` holds exported parameters; a run has checkpoints instead."""
    return os.path.isfile(os.path.join(folder, PARAMETERS_FILE))


def save(run, folder, *, workdir, programs=None):
    """Writes a run as a portable folder, all of it or nothing.

    Args:
      run: a `tfm.workdir.runs.Run`.
      folder: where to; absent or empty.
      workdir: the folder that the run was loaded from, for its vocabulary and the scores of eval.py.
      programs: {file name: bytes} to write beside the parameters, as `tfm.export.stablehlo` makes them.

    Raises:
      UserError: there is something at `folder`, or it cannot be written.
    """
    folder = os.path.abspath(folder)
    check_absent(folder)
    with writing(folder), whole_folder(folder) as temporary:
        _write(run, temporary, workdir, programs or {})


def check_absent(folder):
    """Raises a UserError where something other than an empty folder stands."""
    folder = os.path.abspath(folder)
    if os.path.lexists(folder) and not (os.path.isdir(folder) and not os.listdir(folder)):
        raise UserError(
            f"Expected no or an empty folder at {folder}, but something is there: choose another."
        )


def load(folder, chosen=None):
    """The `tfm.workdir.runs.Run` of a folder that `save` wrote.

    Args:
      folder: the artefact.
      chosen: config to use in place of its own, such as one with another beam size.

    Raises:
      UserError: a file is missing, of another version or not of this model, found from names and sizes alone,
        before anything of the parameters' size is allocated; or one is damaged, or holds parameters that are
        not finite.
    """
    chosen = chosen or runs.read_config(folder)
    task = tasks.find(chosen.task).create(chosen, folder, new=False)
    path = os.path.join(folder, PARAMETERS_FILE)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            about = _about(file.metadata(), path)
            _check_vocabulary(about, task.vocabulary, folder)
            _check_parameters(task, file, path)
            _check_manifest(about, folder)
            params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"Expected parameters at {path}, but there are none: export the run again.") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}): copy it again.") from None
    check_finite(params, path)
    return runs.Run(task, unflatten_dict(jax.device_put(params), sep="/"), about["steps"])


def flat_parameters(params):
    """A parameter tree -> {flat name: float32 array}, as the file holds it."""
    # In C order, as safetensors writes an array's memory as it lies.
    return {
        name: np.asarray(x, np.float32, order="C")
        for name, x in sorted(flatten_dict(params, sep="/").items())
    }


def portable(settings):
    """The config of a task without the paths of the machine that trained it."""
    data = settings.data
    splits = {name: _without_folder(getattr(data, name)) for name in ("train", "validation", "test")}
    return dataclasses.replace(settings, data=dataclasses.replace(data, directory="", cache_dir="", **splits))


def _write(run, folder, workdir, programs):
    settings = portable(run.task.config)
    parameters = flat_parameters(runs.one_model(run))
    about = {
        "format_version": FORMAT_VERSION,
        "steps": [int(step) for step in run.steps],
        "vocabulary": run.task.vocabulary.fingerprint,
        MANIFEST_KEY: manifest.FILE,
    }
    reports = model_card.read_reports(workdir, settings.data.target_language)
    count = sum(x.size for x in parameters.values())
    card = model_card.write(settings, run.steps, count, len(run.task.vocabulary), reports, sorted(programs))
    files = {
        PARAMETERS_FILE: safetensors.numpy.save(parameters, {METADATA_KEY: json.dumps(about)}),
        CARD_FILE: card.encode("utf-8"),
        **programs,
    }
    config.save(settings, runs.config_path(folder))
    shutil.copyfile(os.path.join(workdir, VOCABULARY_FILE), os.path.join(folder, VOCABULARY_FILE))
    for name, content in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
    manifest.write(folder, names=set(os.listdir(folder)) - {CARD_FILE})


def _about(metadata, path):
    """What the file says of itself, checked."""
    try:
        about = json.loads((metadata or {})[METADATA_KEY])
        version = about["format_version"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise UserError(f"{path} was not written by tfm.commands.export: it has no format version.") from None
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path} has format version {version!r} and this tfm reads {FORMAT_VERSION}: "
            "use the tfm that wrote it."
        )
    steps = about.get("steps")
    if not isinstance(steps, list) or not steps or not all(type(step) is int for step in steps):
        raise UserError(f"{path} does not say the steps of its checkpoints: export the run again.")
    return about


def _check_vocabulary(about, vocabulary, folder):
    """Pieces of another order would pass every check of shapes and translate to nonsense."""
    if about.get("vocabulary") != vocabulary.fingerprint:
        raise UserError(
            f"{VOCABULARY_FILE} in {folder} is not what its parameters were trained with: copy it again."
        )


def _check_manifest(about, folder):
    """Damage that leaves all sizes and shapes as they were would translate to nonsense."""
    if MANIFEST_KEY not in about and not os.path.exists(os.path.join(folder, manifest.FILE)):
        log.warning("%s has no checksums and cannot be verified: it was exported by an earlier tfm", folder)
        return
    try:
        manifest.check_listed(folder)
    except manifest.Damaged as damage:
        raise UserError(f"The export in {folder} is damaged ({damage}): copy it again.") from None


def _check_parameters(task, file, path):
    """Every name, shape and dtype, from the header alone."""
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    found = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    _check_sizes(task.config.model, found, path)
    check_weights_fit(task.model.config)
    like = flatten_dict(jax.eval_shape(task.init, jax.random.key(0)), sep="/")
    wanted = {name: ("F32", tuple(leaf.shape)) for name, leaf in like.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UserError(
                f"{path} is of another model than its config: {name} should be "
                f"{_described(wanted.get(name))} and is {_described(found.get(name))}."
            )


def _check_sizes(model, found, path):
    """Even a model of shapes alone takes the time of its layers and makes constants as wide as itself."""
    elements = sum(math.prod(shape) for _, shape in found.values())
    # The vocabulary's own size counts, and sinusoids have no table.
    sizes = dataclasses.asdict(model) | {"vocabulary_size": 0, "max_positions": model.max_length}
    for name, value in sizes.items():
        most = len(found) if name.endswith("_layers") else elements
        if isinstance(value, int) and value > most:
            raise UserError(f"{path} is too small for its config, in which {name} is {value}.")


def _described(header):
    return "absent" if header is None else f"{header[0]} {list(header[1])}"


def _without_folder(split):
    """A split of text files may be named by an absolute path."""
    return os.path.basename(split) if os.path.isabs(split) else split
