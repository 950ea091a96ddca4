"""The folder of a Hugging Face model: config.json and safetensors. Nothing of it is executed."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import safetensors

from tfm.errors import UserError
from tfm.io.files import read_limited

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_JSON_BYTES = 1 << 26
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.safetensors")  # no folders, no hidden files
PICKLES = re.compile(r".*\.(bin|pt|pth|ckpt|pkl|msgpack|h5)")
DTYPES = ("F32", "F16", "BF16", "F64")


def read_json(path: str) -> dict[str, Any]:
    """Reads a JSON object. Raises a UserError if the file is missing, too large or something else."""
    try:
        content = read_limited(path, MAX_JSON_BYTES)
    except FileNotFoundError:
        raise UserError(
            f"Expected the file {path}, but there is none. Copy the whole folder, or download it first."
        ) from None
    try:
        value = json.loads(content.decode("utf-8-sig"))  # editors on Windows add a byte order mark
    except (ValueError, RecursionError):
        raise UserError(f"Expected a JSON object in {path}, but it has other content.") from None
    if not isinstance(value, dict):
        raise UserError(f"Expected a JSON object in {path}, got a {type(value).__name__}.")
    return value


def read_json_if_present(path: str) -> dict[str, Any]:
    """Reads a JSON object like `read_json`. Returns {} if the file is missing."""
    return read_json(path) if os.path.exists(path) else {}


class Weights(Mapping[str, np.ndarray]):
    """The arrays of a folder as {name: array float32}. The constructor reads headers and allocates no array.

    Args:
      folder: the folder.
      prefix: added to all names if none of them begins with it, as in files of a model without its head.

    Attributes:
      shapes: {name: shape} of all arrays.

    Raises:
      UserError: if the folder has no safetensors, a file is damaged or missing, an index names a file outside
        of the folder, or an array is not made of floating-point numbers.
    """

    def __init__(self, folder: str, prefix: str = ""):
        self.folder = folder
        self._files: dict[str, tuple[str, str]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path, names in _list_files(folder).items():
            with _open(path) as file:
                present = list(file.keys())
                missing = sorted(set(names or ()) - set(present))
                if missing:
                    raise UserError(
                        f"{path} has no array {missing[0]}, but the index says so. Copy it again."
                    )
                for name in names or present:
                    part = file.get_slice(name)
                    if part.get_dtype() not in DTYPES:
                        continue  # a buffer such as position ids
                    # The first files of BERT have the names of TensorFlow.
                    new = name.replace("LayerNorm.gamma", "LayerNorm.weight")
                    new = new.replace("LayerNorm.beta", "LayerNorm.bias")
                    self._files[new] = path, name
                    self.shapes[new] = tuple(part.get_shape())
        if not any(name.startswith(prefix) for name in self._files):
            self._files = {prefix + name: place for name, place in self._files.items()}
            self.shapes = {prefix + name: shape for name, shape in self.shapes.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        path, stored_name = self._files[name]
        with _open(path) as file:
            return np.asarray(file.get_tensor(stored_name)).astype(np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def _list_files(folder: str) -> dict[str, list[str] | None]:
    """Returns {path: names of its arrays; None for all}."""
    if os.path.isfile(os.path.join(folder, SINGLE_FILE)):
        return {os.path.join(folder, SINGLE_FILE): None}
    index = os.path.join(folder, INDEX_FILE)
    if not os.path.isfile(index):
        pickles = sorted(filter(PICKLES.fullmatch, os.listdir(folder)))
        advice = "Copy the whole folder."
        if pickles:
            advice = (
                f"{pickles[0]} may execute code when it is read, so tfm does not read it. If you trust it, "
                f"add safetensors to the folder with transformers: {_format_conversion(folder)}"
            )
        raise UserError(f"Expected {SINGLE_FILE} or {INDEX_FILE} in {folder}, but there is none. {advice}")
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{index} has no weight_map. Copy it again.")
    files: dict[str, list[str]] = {}
    for name, place in places.items():
        if not isinstance(place, str) or not FILE_NAME.fullmatch(place):
            raise UserError(
                f"{index} has {place!r} as the file of {name}. Expected a name such as "
                "model-00001.safetensors."
            )
        files.setdefault(os.path.join(folder, place), []).append(name)
    return dict(files)


def _format_conversion(folder: str) -> str:
    """Returns the Python code that writes safetensors into a folder, with the class in config.json."""
    names = read_json_if_present(os.path.join(folder, CONFIG_FILE)).get("architectures") or ["AutoModel"]
    name = names[0] if isinstance(names, list) and str(names[0]).isidentifier() else "AutoModel"
    return f"transformers.{name}.from_pretrained({folder!r}).save_pretrained({folder!r})"


def _open(path: str) -> Any:
    """Opens a file of safetensors."""
    if not os.path.isfile(path):
        raise UserError(f"Expected the file {path}, but there is none. Copy the whole folder.")
    try:
        return safetensors.safe_open(path, framework="numpy")
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is not a complete safetensors file ({error}). Copy it again.") from None
