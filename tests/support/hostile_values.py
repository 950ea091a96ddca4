"""Helpers of the property tests: the Hypothesis profile, the check of a result, and JSON values."""

import tempfile

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tfm.errors import UserError

settings.register_profile(
    "tfm", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("tfm")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
)


def answer(entry, *arguments):
    """Returns the result of a function, or None if it raises a UserError with a printable message."""
    sentences = []
    try:
        return entry(*arguments)
    except UserError as error:
        sentences.append(str(error))
    assert all(sentence.strip() and sentence.isprintable() for sentence in sentences)
    return None


def in_folder(entry, *arguments):
    """Calls `answer` with a new temporary folder as the first argument of the function."""
    with tempfile.TemporaryDirectory() as folder:
        return answer(entry, folder, *arguments)
