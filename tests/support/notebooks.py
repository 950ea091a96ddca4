"""A function that runs the notebooks of docs/notebooks.

`python -m tests.support.notebooks` also stores the output in the notebooks.

The cell with the tag "parameters" contains the settings as constants, one on each line.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import nbclient
import nbformat

from tests.support.paths import ROOT
from tests.support.processes import LIMIT

FOLDER = ROOT / "docs" / "notebooks"
TRAIN = ["-m", "tfm", "train", "--config=quickstart", "--workdir=runs/quickstart"]


def run_notebook(path, folder, seconds=LIMIT, **parameters):
    """Runs a notebook in `folder` with some of its parameters replaced. Returns it with its output.

    Raises:
      nbclient.exceptions.CellExecutionError: if a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    [cell] = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
    for name, value in parameters.items():
        assignment = re.compile(rf"^{name} = .*$", re.MULTILINE)
        cell.source, found = assignment.subn(f"{name} = {value!r}", cell.source)
        assert found == 1, f"{path} has no parameter {name}"
    client = nbclient.NotebookClient(
        notebook, timeout=seconds, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    return client.execute()


def main():
    with tempfile.TemporaryDirectory() as folder:
        # The notebooks share this run. A notebook that trained it would store its whole progress bar.
        subprocess.run([sys.executable, *TRAIN], cwd=folder, check=True)
        for path in sorted(FOLDER.glob("*.ipynb")):
            notebook = run_notebook(path, pathlib.Path(folder), seconds=3600)
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)  # times
                for output in cell.get("outputs", ()):
                    output.update({"text": output.text.replace(f"{folder}/", "")} if "text" in output else {})
            nbformat.write(notebook, path)
            print(path)


if __name__ == "__main__":
    main()
