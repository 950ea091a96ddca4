"""Several problems with the data in one error message."""

import contextlib
from collections.abc import Iterator

from tfm.errors import UserError
from tfm.io.files import io_error_message


@contextlib.contextmanager
def collect(problems: list[str]) -> Iterator[None]:
    """Appends the message of a UserError or an I/O error to `problems`; what follows then runs."""
    try:
        yield
    except UserError as error:
        problems.append(str(error))
    except OSError as error:
        message = io_error_message(error)
        if message is None:
            raise
        problems.append(message)


def raise_all(problems: list[str]) -> None:
    """
    Raises:
      UserError: there are problems; its message has each of them once.
    """
    unique = list(dict.fromkeys(problems))
    if len(unique) == 1:
        raise UserError(unique[0])
    if unique:
        numbered = " ".join(f"({number}) {problem}" for number, problem in enumerate(unique, 1))
        raise UserError(f"There are {len(unique)} problems with the data. {numbered}")
