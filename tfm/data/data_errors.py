"""Errors in the data. One message may report several."""

import contextlib
from collections.abc import Callable, Iterator

from tfm.errors import UserError, first_line
from tfm.io.files import io_error_message


class DataError(UserError):
    """One problem with the data, or several in one message.

    Attributes:
      problems: a message for each problem, each once.
    """

    def __init__(self, *problems: str):
        self.problems = list(dict.fromkeys(problems))
        message = self.problems[0]
        if len(self.problems) > 1:
            numbered = " ".join(f"({number}) {problem}" for number, problem in enumerate(self.problems, 1))
            message = f"There are {len(self.problems)} problems with the data. {numbered}"
        super().__init__(message)


class MissingFile(DataError):
    """The error of a split that does not exist, as opposed to a split that exists and is damaged."""


@contextlib.contextmanager
def collect(problems: list[str]) -> Iterator[None]:
    """Appends the message of a UserError or an I/O error to `problems` instead of raising it.

    A `DataError` appends each of its problems. I/O errors without an `io_error_message` are raised.
    """
    try:
        yield
    except DataError as error:
        problems.extend(error.problems)
    except UserError as error:
        problems.append(str(error))
    except OSError as error:
        message = io_error_message(error)
        if message is None:
            raise
        problems.append(message)


def raise_all(problems: list[str], kind: type[DataError] = DataError) -> None:
    """Raises one error with all problems, if there are problems.

    Raises:
      DataError: or another `kind` of it.
    """
    if problems:
        raise kind(*problems)


def damage_error(
    error: Exception, problem: str, advice: str, kind: Callable[[str], UserError] = UserError
) -> Exception:
    """Returns the error to raise in place of a library's error for damaged files.

    An OSError of the system has a number, and is returned itself, except for a missing file. PyArrow's
    OSErrors for a damaged file have no number. Otherwise, returns a `kind` with the text "PROBLEM (first line
    of the error): ADVICE."
    """
    if getattr(error, "errno", None) is not None and not isinstance(error, FileNotFoundError):
        return error
    return kind(f"{problem} ({first_line(error)}): {advice}.")
