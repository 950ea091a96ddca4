"""Tests of the search as a StableHLO program, in this process and in a process without tfm."""

import dataclasses
import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

import tfm
from tests.support.processes import LIMIT
from tests.support.tiny import randomize_weights
from tfm.commands import export
from tfm.data.tokenizers.protocol import EOS_ID
from tfm.decoding.translate import translate_ids
from tfm.devices import backend
from tfm.errors import UserError
from tfm.export import stablehlo
from tfm.export.write import write_bundle
from tfm.workdir import runs
from tfm.workdir.bundle import flatten

TEXTS = ["red dog", "big green bird sleeps", "small blue cat runs red", "dog \U0001f600"]
SHAPE = (4, 24)
# In JAX 0.12, an exported program rounds to bfloat16 at other places than the original program.
BFLOAT16_RTOL = 1e-5 if jax.__version_info__ < (0, 12) else 0.03


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


@pytest.mark.parametrize(
    "text", ["16", "0x4", "4x0", "4x-1", "axb", "4x4x4", "", "٤x٤", "1x65537", "9" * 5000 + "x1"]
)
def test_parse_shape_accepts_only_rows_x_length(text):
    assert export.parse_shape("16x64") == (16, 64)
    with pytest.raises(UserError, match="ROWSxLENGTH"):
        export.parse_shape(text)


def padded(run, texts):
    """Returns source ids, padded to the shape of the program."""
    inputs = np.zeros(SHAPE, np.int32)
    for row, ids in zip(inputs, run.task.tokenizer.encode(texts), strict=True):
        row[: len(ids) + 1] = [*ids, EOS_ID]
    return inputs


def check_search(run, texts, tokens, scores, lengths, rtol=1e-5):
    """Checks that the result of a program equals the result of the translator."""
    found = [run.task.tokenizer.decode(row[:length]) for row, length in zip(tokens, lengths, strict=True)]
    assert len(set(found)) > 1
    assert found == tfm.Translator(run).translate(texts)
    sources = [[*ids, EOS_ID] for ids in run.task.tokenizer.encode(texts)]
    expected = [
        each[0] for each in translate_ids(run.task.model, run.params, sources, run.task.config.decoding)
    ]
    assert [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)] == [
        ids for ids, _ in expected
    ]
    np.testing.assert_allclose(scores, [score for _, score in expected], rtol=rtol)


@pytest.fixture(scope="module")
def program(run):
    tfm.Translator(run).translate(TEXTS)  # an earlier trace must not add its source locations to the program
    return stablehlo.search_program(run, *SHAPE)


@pytest.mark.long
def test_program_equals_the_translator(run, program):
    found = program.call(flatten({"params": run.params}), padded(run, TEXTS))
    check_search(run, TEXTS, *map(np.asarray, found))


@pytest.mark.long
def test_program_has_the_decoding_dtype(run, program, monkeypatch):
    inputs, parameters = padded(run, TEXTS), flatten({"params": run.params})
    decoding = dataclasses.replace(run.task.config.decoding, dtype="bfloat16")
    monkeypatch.setattr(run.task, "config", dataclasses.replace(run.task.config, decoding=decoding))
    found = stablehlo.search_program(run, *SHAPE).call(parameters, inputs)
    check_search(run, TEXTS, *map(np.asarray, found), rtol=BFLOAT16_RTOL)
    assert (found[1] != program.call(parameters, inputs)[1]).all()


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_programs_call_no_library(dtype, run, monkeypatch):
    decoding = dataclasses.replace(run.task.config.decoding, dtype=dtype)
    monkeypatch.setattr(run.task, "config", dataclasses.replace(run.task.config, decoding=decoding))
    module = stablehlo.search_program(run, *SHAPE).mlir_module()
    assert ("bf16" in module) == (dtype == "bfloat16")
    assert "tfm_onednn" not in module


@pytest.mark.long
def test_program_contains_no_source_file_names(program):
    assert set(program.platforms) == {"cpu", "cuda"}
    assert not re.findall(rb"[\w./-]*\.py\b", program.mlir_module_serialized)


@pytest.mark.long
def test_program_contains_no_kernel_of_one_platform(run, monkeypatch):
    """The attention auto would choose cuDNN's kernel for this model on a GPU."""
    model = run.task.model
    config = dataclasses.replace(model.config, dtype="bfloat16")
    monkeypatch.setattr(backend, "cuda_capability", lambda: 9.0)
    monkeypatch.setattr(run.task, "model", model.clone(config=config))
    assert "cudnn" not in stablehlo.search_program(run, *SHAPE).mlir_module()


@pytest.mark.long
@pytest.mark.parametrize(
    ("section", "fields", "advice"),
    [
        ("model", {"attention": "cudnn", "dtype": "bfloat16"}, r"--config\.model\.attention=xla"),
        ("decoding", {"samples": 3}, r"--config\.decoding\.samples=0"),
    ],
)
def test_error_of_an_unsupported_option_advises_another_value(section, fields, advice, run):
    before = run.task.config
    changed = dataclasses.replace(getattr(before, section), **fields)
    run.task.config = dataclasses.replace(before, **{section: changed})
    try:
        with pytest.raises(UserError, match=advice):
            stablehlo.search_program(run, *SHAPE)
    finally:
        run.task.config = before


@pytest.mark.long
def test_error_of_a_missing_package_advises_installing_it(program, monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    monkeypatch.delitem(sys.modules, "jax._src.export.serialization", raising=False)
    with pytest.raises(UserError, match=r"pip install '\.\[stablehlo\]'"):
        stablehlo.serialized(program)


ALONE = """
import sys
import numpy as np
from jax import export
from safetensors.numpy import load_file

folder = sys.argv[1]
search = export.deserialize(bytearray(open(f"{folder}/translate-4x24.stablehlo", "rb").read()))
found = search.call(load_file(f"{folder}/model.safetensors"), np.load(f"{folder}/inputs.npy"))
assert not {"tfm", "flax"} & sys.modules.keys()
np.savez(f"{folder}/found.npz", *found)
"""


@pytest.mark.long
def test_program_runs_without_tfm(run, tiny_run, tmp_path):
    written = export.programs(run, ["4x24", "1x8"])
    write_bundle(run, str(tmp_path / "out"), workdir=str(tiny_run), programs=written)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "`translate-1x8.stablehlo`, `translate-4x24.stablehlo`" in card
    np.save(tmp_path / "out" / "inputs.npy", padded(run, TEXTS))
    result = subprocess.run(
        [sys.executable, "-c", ALONE, "."],
        cwd=tmp_path / "out",
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert result.returncode == 0, result.stderr
    with np.load(tmp_path / "out" / "found.npz") as found:
        check_search(run, TEXTS, *(found[f"arr_{i}"] for i in range(3)))
