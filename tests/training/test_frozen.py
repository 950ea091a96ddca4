"""Tests of the frozen models of other runs: their file, and its copy into the folder of a new run."""

import json

import numpy as np
import pytest
import safetensors.numpy

from tfm.errors import UserError
from tfm.training import frozen

VARIABLES = {
    "params": {"dense/kernel": {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}},
    "batch_stats": {"norm": {"count": np.array(3, np.int32)}},
}


def test_frozen_model_keeps_config_names_dtypes_and_values(tmp_path):
    frozen.write_frozen(str(tmp_path / "judge.safetensors"), {"name": "vit", "layers": 2}, VARIABLES)
    model = frozen.read_frozen(str(tmp_path), "judge")
    assert model.model == {"name": "vit", "layers": 2}
    np.testing.assert_array_equal(model.variables["params"]["dense/kernel"]["a"], np.arange(6).reshape(2, 3))
    assert model.variables["batch_stats"]["norm"]["count"].dtype == np.int32


def test_fingerprint_changes_with_a_single_number(tmp_path):
    fingerprints = set()
    for value in (1.0, 1.0, 2.0):
        frozen.write_frozen(str(tmp_path / "judge.safetensors"), {}, {"params": {"x": np.float32([value])}})
        fingerprints.add(frozen.read_frozen(str(tmp_path), "judge").fingerprint)
    assert len(fingerprints) == 2


def test_missing_model_is_an_error_that_names_the_field(tmp_path):
    with pytest.raises(UserError, match=r"config\.judge"):
        frozen.read_frozen(str(tmp_path), "judge")


def _file(metadata, arrays):
    return safetensors.numpy.save(arrays, metadata)


PATHS = json.dumps({"model": {}, "paths": [["params", "x"]]})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        _file({}, {"0": np.zeros(1)}),
        _file({"tfm": "{"}, {"0": np.zeros(1)}),
        _file({"tfm": "[]"}, {"0": np.zeros(1)}),
        _file({"tfm": json.dumps({"model": {}, "paths": 3})}, {"0": np.zeros(1)}),
        _file({"tfm": json.dumps({"model": 3, "paths": [["params", "x"]]})}, {"0": np.zeros(1)}),
        _file({"tfm": PATHS}, {"1": np.zeros(1)}),
        _file({"tfm": PATHS}, {"0": np.full(1, np.nan)}),
    ],
)
def test_damaged_files_are_an_error_that_names_the_file(content, tmp_path):
    (tmp_path / "judge.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"judge\.safetensors"):
        frozen.read_frozen(str(tmp_path), "judge")


def test_transposed_array_keeps_its_values(tmp_path):
    """The file contains the memory of an array, and a transposed array has another order in memory."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    frozen.write_frozen(str(tmp_path / "judge.safetensors"), {}, {"params": {"x": array}})
    np.testing.assert_array_equal(frozen.read_frozen(str(tmp_path), "judge").variables["params"]["x"], array)
