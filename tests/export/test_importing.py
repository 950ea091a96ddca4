"""Tests of the import of arrays from other programs as an export."""

import re

import numpy as np
import pytest

from tests.support import tiny_regression
from tfm.errors import UserError
from tfm.export.importing import import_parameters
from tfm.workdir import runs

CONFIG = tiny_regression.make_config()
ARRAYS = {"linear.weight": np.arange(4.0), "linear.bias": np.float64(3)}
PATTERNS = [
    ("linear", "a pattern fits only whole names"),
    (r"linear\.weight", "slope"),
    (r"(linear)\.bias", "offset"),
    (r".*", "never"),
]


def test_renamed_arrays_are_imported_as_an_export(tmp_path):
    import_parameters(CONFIG, ARRAYS, PATTERNS, str(tmp_path / "out"))
    run = runs.load(str(tmp_path / "out"))
    assert run.task.config == CONFIG
    np.testing.assert_array_equal(run.params["slope"], np.float32([0, 1, 2, 3]))
    assert (run.params["offset"], run.params["offset"].dtype) == (3, np.float32)


def test_function_may_split_arrays(tmp_path):
    joined = {"all": np.arange(5.0)}
    split = lambda arrays: {"slope": arrays["all"][:4], "offset": arrays["all"][4]}  # noqa: E731
    import_parameters(CONFIG, joined, split, str(tmp_path / "out"))
    assert runs.load(str(tmp_path / "out")).params["offset"] == 4


def test_error_lists_all_arrays_that_do_not_fit_and_nothing_is_written(tmp_path):
    arrays = {"slope": np.zeros((2, 2)), "offsets": np.zeros(()), "other": np.zeros(3)}
    with pytest.raises(UserError) as error:
        import_parameters(CONFIG, arrays, [], str(tmp_path / "out"))
    for part in (
        "offsets is no parameter (similar: offset)",
        "other is no parameter",
        "offset [] is missing (similar: offsets)",
        "slope must have the shape [4], got [2, 2]",
    ):
        assert part in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("offset", "message"),
    [(np.nan, "not finite.*offset"), (1e300, "not finite.*offset"), ("text", "offset must contain numbers")],
)
def test_arrays_that_no_model_can_have_are_an_error(offset, message, tmp_path):
    with pytest.raises(UserError, match=message):
        import_parameters(CONFIG, ARRAYS | {"linear.bias": np.array(offset)}, PATTERNS, str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


def test_two_arrays_with_the_same_name_are_an_error(tmp_path):
    with pytest.raises(UserError, match=r"same.*b"):
        import_parameters(CONFIG, {"a": 1, "b": 2}, [("a|b", "same")], str(tmp_path / "out"))


@pytest.mark.parametrize("pair", [("(a", "b"), ("a", r"\1"), ("a", r"\g<name>")])
def test_invalid_pair_is_an_error(tmp_path, pair):
    with pytest.raises(UserError, match=re.escape(f"{pair[0]!r} and {pair[1]!r}")):
        import_parameters(CONFIG, {"a": 1}, [pair], str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


def test_import_into_a_folder_with_files_is_an_error(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UserError, match=str(tmp_path)):
        import_parameters(CONFIG, ARRAYS, PATTERNS, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
