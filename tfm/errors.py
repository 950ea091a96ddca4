"""The exception for mistakes that a user can fix: a typo, a missing file, a checkpoint of another shape."""

EXIT_CODE = 2  # of a command that a `UserError` or an I/O error ends


class UserError(ValueError):
    """A mistake of the user. Its message says what was expected, what was given, and what to do.

    The commands print the message and exit with `EXIT_CODE`. Python code that calls tfm may catch it.
    """

    def __init__(self, message: object):
        # Names and values from files may contain line ends, or control codes of a terminal.
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in str(message)))


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or the name of its type if the text is empty."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def install_extra(extra: str) -> str:
    """Returns the advice to install one of the extras of pyproject.toml, for the end of an error message.

    The advice is to install from a checkout, because on the package index the name tfm belongs to another
    project.
    """
    return f"run pip install '.[{extra}]' in a checkout of tfm"
