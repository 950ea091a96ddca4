"""Helpers of the property tests: the check of a result, and JSON values."""

import tempfile

from hypothesis import strategies as st

from tfm.errors import UserError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
)


def answer(entry, *arguments):
    """Returns the result of a function, or the UserError that it raises. Its message must be printable."""
    try:
        return entry(*arguments)
    except UserError as error:
        message = str(error)
        assert message.strip()
        assert message.isprintable()
        return error


def in_folder(entry, *arguments):
    """Calls `answer` with a new temporary folder as the first argument of the function."""
    with tempfile.TemporaryDirectory() as folder:
        return answer(entry, folder, *arguments)
