"""The exception for mistakes that a user can fix, and checks of arguments that raise it."""

import dataclasses
import difflib
import importlib.util
import os
import reprlib
from collections.abc import Iterable
from typing import Any

MAX_MESSAGE_CHARACTERS = 20_000  # a message may quote the files of others
DISTRIBUTION = "tfm-jax"  # name of the package in pyproject.toml
# Modules of the packages of the extra `train`, which the commands, the data and the figures need.
TRAIN_MODULES = (
    "array_record",
    "etils",
    "fsspec",
    "grain",
    "importlib_resources",
    "matplotlib",
    "ml_collections",
    "orbax",
    "PIL",
    "pyarrow",
    "rich",
    "sacrebleu",
    "sacremoses",
    "safetensors",
    "scipy",
    "sentencepiece",
    "tensorboardX",
    "tensorflow_datasets",
    "yaml",
)
WARNING_MARK = "warning: "  # begins a warning in the log of a command
EXIT_CODE = 2  # of a command that a `UserError` or an I/O error ends


class UserError(ValueError):
    """A mistake of the user. Its message says what was expected, what was given, and what to do.

    The message is the given text after `escape`. The middle of a text that is too long becomes " ... ".
    The commands print the message and exit with `EXIT_CODE`. Python code that calls tfm may catch it.
    """

    def __init__(self, message: object):
        text = escape(message)
        half = MAX_MESSAGE_CHARACTERS // 2
        super().__init__(text if len(text) <= 2 * half else f"{text[:half]} ... {text[-half:]}")


def escape(text: object) -> str:
    """Returns a text on one line, in which characters that a terminal cannot print are escapes such as \\x1b.

    Names and values from the files of others may contain line ends, or control codes of a terminal.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or the name of its type if the text is empty."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def install_extra(extra: str) -> str:
    """Returns the advice to install one of the extras of pyproject.toml, for the end of an error message.

    pip reads the packages of the extra in the metadata of the installed tfm, so the advice works for a wheel
    from anywhere.
    """
    if os.path.isfile(os.path.join(os.path.dirname(os.path.dirname(__file__)), "pyproject.toml")):
        return f"run pip install -e '.[{extra}]' in your checkout of tfm"
    return f"run pip install '{DISTRIBUTION}[{extra}]'"


def check_train_extra(part: str) -> None:
    """Checks that the packages of the extra `train` are installed.

    They are looked up, not imported, so that the check is fast and comes before any work.

    Args:
      part: what needs the packages, such as "tfm train", for the error message.

    Raises:
      UserError: if a package is missing.
    """
    for module in TRAIN_MODULES:
        if importlib.util.find_spec(module) is None:
            raise UserError(
                f"{part} needs the extra train, but its package {module} is not installed: "
                f"{install_extra('train')}."
            )


def check_texts(name: str, given: Iterable[str]) -> list[str]:
    """Returns the argument `name` as a list of texts. A single text would become a list of its letters.

    Raises:
      UserError: if the argument is a single text, no iterable, or contains something else.
    """
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise UserError(
            f"Expected a list of texts as {name}, got {reprlib.repr(given)}: put a single text in brackets."
        )
    texts = list(given)
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"Expected texts in {name}, got {reprlib.repr(text)} among them: leave it out.")
    return texts


def replace_fields(section: Any, fields: dict[str, Any]) -> Any:
    """Returns a dataclass with other values of some fields.

    Raises:
      UserError: if a field does not exist, or a value is invalid.
    """
    known = [field.name for field in dataclasses.fields(section)]
    for name in fields:
        if name not in known:
            raise UserError(f"There is no option {name!r}: {suggest(name, known)}")
    return dataclasses.replace(section, **fields)


def suggest(name: str, known: Iterable[str]) -> str:
    """Returns "did you mean 'NEAREST'?", or "expected one of A, B." if none of the names is similar."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}."


def check_count(name: str, given: Any, what: str) -> None:
    """Checks that the argument `name`, a number of `what`, is an integer of at least 1.

    Raises:
      UserError: if it is smaller, or is not an `int` of Python. Booleans and NumPy's integers are not
        accepted.
    """
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UserError(f"Expected at least 1 {what} as {name}, got {given!r}.")
