"""The fields of a config.json of transformers."""

from collections.abc import Collection, Mapping
from typing import Any

from tfm.errors import UserError
from tfm.io.files import is_float

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swish": "swish",
    "silu": "swish",
}
TWO_LABELS = {"0": "LABEL_0", "1": "LABEL_1"}  # names that transformers leaves out of config.json
MISSING = object()


class Fields:
    """The fields of a config.json.

    Args:
      values: {name of a field: value}.
      path: path of the file, for messages.
      arrays: names of the arrays of the model. It is empty for the export.
      shapes: {name of an array: shape}.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        path: str,
        arrays: Collection[str] = (),
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ):
        self._values = values
        self.path = path
        self.arrays = arrays
        self.shapes = shapes or {}

    def get(self, name: str, kind: type, default: Any = MISSING) -> Any:
        """Returns the value of a field.

        Raises:
          UserError: if the value is not a `kind`, or is missing and there is no default. An int is accepted
            as a float, and null if the default is None.
        """
        value = self._values.get(name, default)
        if kind is float and is_float(value):
            value = float(value)
        if value is None and default is None:
            return None
        if type(value) is not kind:
            shown = "it is missing" if value is MISSING else f"got {value!r}"
            raise UserError(f"{self.path}: expected {name} to be of type {kind.__name__}, but {shown}.")
        return value

    def require(self, name: str, expected: Any) -> None:
        """Raises a UserError if the file has a value of the field that differs from `expected`."""
        value = self._values.get(name, expected)
        if value != expected:
            raise UserError(
                f"{self.path}: expected {name} to be {expected!r}, got {value!r}. tfm has no such model."
            )

    def activation(self, name: str, default: Any = MISSING) -> tuple[str, bool]:
        """Returns the name of the activation in tfm, and whether it has a gate ("gated-" in T5)."""
        value = self.get(name, str, default)
        plain = value.removeprefix("gated-")
        gated = plain != value
        if plain not in ACTIVATIONS:
            raise UserError(
                f"{self.path}: expected {name} to be one of {', '.join(ACTIVATIONS)}, got {value!r}. tfm "
                "has no such model."
            )
        return "gelu_tanh" if gated and plain == "gelu" else ACTIVATIONS[plain], gated  # as T5 reads it
