"""Parameters from elsewhere, such as another framework, as an export that tfm opens."""

import difflib
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfm import tasks
from tfm.checkpoints.trees import check_finite
from tfm.devices.memory import check_parameters_fit
from tfm.errors import UserError
from tfm.export.write import check_absent, write_bundle
from tfm.training.task import variable_shapes
from tfm.workdir.bundle import flatten, unflatten
from tfm.workdir.runs import Run

Arrays = Mapping[str, Any]
Rename = Sequence[tuple[str, str]] | Callable[[Arrays], Arrays]


def import_parameters(config: Any, arrays: Arrays, rename: Rename, folder: str) -> None:
    """Writes arrays from elsewhere as an export. Commands and `tfm.Translator` open the folder like a run.

    The names of an export have slashes, such as "encoder/layers_0/norm/scale". A new run begins with the
    parameters by `tfm train --warm_start=FOLDER`.

    Args:
      config: the config, the dataclass of a task. Its data make the tokenizer, as at the start of a run.
      arrays: {name: array} of all parameters and, for models with state, "collection:name" of the state.
      rename: pairs of a regular expression and a template, such as (r"enc\\.(.*)", r"encoder/\\1").
        The first expression that matches a whole name replaces it. A name without a match stays. Or a
        function of all arrays that returns them with new names, for arrays that must be split or transposed.
      folder: the folder to write. It must be empty or not exist. After an error, it is not written.

    Raises:
      UserError: if arrays are left over, missing, or differ in shape from the parameters of the model (the
        message lists all of them), if a pattern or a template is invalid, or if the folder cannot be written.
    """
    check_absent(folder)
    renamed = rename(arrays) if callable(rename) else _rename(arrays, rename)
    write_import(config, lambda _: renamed, folder)


def write_import(
    config: Any,
    make_arrays: Callable[[Arrays], Arrays],
    folder: str,
    *,
    assets: Mapping[str, bytes] | None = None,
) -> None:
    """Writes an export whose arrays are made when their names and shapes are known.

    Args:
      config, folder: see `import_parameters`.
      make_arrays: maps {name: array without values} of the model to the arrays.
      assets: {file name: content} of the tokenizer and other assets of the task. None makes them from the
        data of the config.

    Raises:
      UserError: see `import_parameters`. Also if the parameters do not fit into the memory.
    """
    with tempfile.TemporaryDirectory() as workdir:
        for name, content in (assets or {}).items():
            with open(os.path.join(workdir, name), "wb") as file:
                file.write(content)
        task = tasks.find(config.task).create(config, workdir, new=assets is None)
        like = variable_shapes(task)
        check_parameters_fit(like["params"])
        expected = flatten(like)
        renamed = make_arrays(expected)
        if problems := _find_problems(renamed, expected):
            raise UserError(
                f"The arrays do not fit the model of the task {config.task}: {'; '.join(problems)}."
            )
        with np.errstate(over="ignore"):  # `check_finite` names the array
            variables = {name: np.asarray(renamed[name], x.dtype) for name, x in expected.items()}
        check_finite(variables, f"The model of the task {config.task}")
        write_bundle(Run(task, unflatten(variables, like), [0]), folder, workdir=workdir)


def _rename(arrays: Arrays, patterns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Returns the arrays with new names, or raises a UserError if two arrays get the same name."""
    renamed: dict[str, Any] = {}
    for name, array in arrays.items():
        new = _new_name(name, patterns)
        if new in renamed:
            raise UserError(f"Two arrays get the name {new}, the second is {name}. Change the patterns.")
        renamed[new] = array
    return renamed


def _new_name(name: str, patterns: Sequence[tuple[str, str]]) -> str:
    """Returns the name from the first pattern that matches. Raises a UserError if a pattern is invalid."""
    for pattern, template in patterns:
        try:
            if match := re.fullmatch(pattern, name):
                return match.expand(template)
        except (re.error, IndexError) as error:
            raise UserError(
                f"Expected a regular expression and a template, got {pattern!r} and {template!r}: {error}. "
                "Correct the pair."
            ) from None
    return name


def _find_problems(arrays: Arrays, expected: Arrays) -> list[str]:
    """Returns a description of each array that is left over, missing, or of a different shape."""
    unused = sorted(arrays.keys() - expected.keys())
    missing = sorted(expected.keys() - arrays.keys())
    problems = [f"{name} is no parameter{_similar(name, missing)}" for name in unused]
    problems += [
        f"{name} {list(expected[name].shape)} is missing{_similar(name, unused)}" for name in missing
    ]
    for name in sorted(arrays.keys() & expected.keys()):
        array, shape = np.asarray(arrays[name]), tuple(expected[name].shape)
        if array.shape != shape:
            problems.append(f"{name} must have the shape {list(shape)}, got {list(array.shape)}")
        elif array.dtype.kind in "USO":  # texts, bytes and objects
            problems.append(f"{name} must contain numbers, got {array.dtype}")
    return problems


def _similar(name: str, others: Sequence[str]) -> str:
    """Returns the most similar name in parentheses, or "" if no name is similar."""
    near = difflib.get_close_matches(name, others, n=1)
    return f" (similar: {near[0]})" if near else ""
