"""The one exception for what a user can fix: a typo, a missing file, a checkpoint of another shape."""


class UserError(ValueError):
    """A mistake at the edge. Its message says what was expected, what came, and what to do.

    The command line programs print the message and exit with code 2; library callers may catch it.
    """

    def __init__(self, message: object):
        # Names and values out of files may hold line ends, or codes that a terminal obeys.
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in str(message)))


def install_extra(extra: str) -> str:
    """Returns the advice to install one of the extras of pyproject.toml, for the end of an error message.

    It names a checkout, because the package is not published: on the package index, tfm is another project.
    """
    return f"run pip install '.[{extra}]' in a checkout of tfm"
