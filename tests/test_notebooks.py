"""Tests that the notebooks run and contain their output."""

import ast

import nbformat
import numpy as np
import pytest

from configs.quickstart import get_config
from tests.support.notebooks import FOLDER, run_notebook
from tests.support.random_runs import write_random_run
from tfm.commands.config_files import read_config_file

PATHS = sorted(FOLDER.glob("*.ipynb"))
MAX_BYTES = 260_000  # of a notebook with its pictures and its pages


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns the folder in which all notebooks run, because two of them share a tiny trained run."""
    found = tmp_path_factory.mktemp("notebooks")
    config = get_config()
    config.model.encoder_layers = config.model.decoder_layers = 1
    config.model.d_model, config.model.d_ff = 32, 64
    config.data.batch_tokens, config.data.vocabulary_pairs = 512, 4000
    config.validation_sentences = 4
    (found / "config.json").write_text(config.to_json(), encoding="utf-8")
    return found


def write_runs(folder):
    """Writes runs of the shipped configs with random parameters, because their training takes too long."""
    folder.mkdir(exist_ok=True)
    inputs = {
        "lm_pydoc": np.ones((1, 2), np.int32),
        "vit_digits": np.ones((1, 8, 8, 1), np.float32),
        "detr": np.ones((1, 24, 24, 1), np.float32),
    }
    for name, example in inputs.items():
        config, _ = read_config_file(name.removesuffix("_digits"))
        write_random_run(config, folder / name, (example,), {1: 0.0})


@pytest.mark.long
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebooks_run_with_fewer_steps(path, folder):
    parameters = {"CONFIG": "config.json", "STEPS": 12}
    if path.stem == "other_models":
        parameters = {"TRAIN": False}
        write_runs(folder / "runs")
    notebook = run_notebook(path, folder, **parameters)
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 1


def read_code_cells(path):
    """Returns the code cells of a notebook. Fails if the notebook's format is invalid."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_all_cells_of_a_notebook_ran_in_order(path):
    cells = read_code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_no_cell_of_a_notebook_failed(path):
    outputs = [output for cell in read_code_cells(path) for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebook_contains_no_path_of_a_machine(path):
    text = path.read_text(encoding="utf-8")
    assert [name for name in ("/home/", "/tmp/") if name in text] == []


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebook_is_a_small_file(path):
    assert path.stat().st_size < MAX_BYTES


def read_parameters(path):
    """Returns the parameters of a notebook, {name: value}. Fails if a value is not a constant."""
    cells = nbformat.read(path, as_version=4).cells
    [cell] = [cell for cell in cells if "parameters" in cell.metadata.get("tags", ())]
    assignments = ast.parse(cell.source).body
    return {assignment.targets[0].id: ast.literal_eval(assignment.value) for assignment in assignments}


def test_parameters_of_notebooks_are_constants():
    for path in PATHS:
        assert read_parameters(path)


def test_notebooks_train_the_whole_quick_start():
    """Otherwise they could not share a run with `tests.support.notebooks`, or with the command line."""
    steps = {
        parameters["STEPS"]
        for parameters in map(read_parameters, PATHS)
        if parameters.get("WORKDIR") == "runs/quickstart"
    }
    assert steps == {get_config().training.steps}
