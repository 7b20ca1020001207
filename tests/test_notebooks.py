"""The notebooks are run from the first cell to the last, by the kernel of the environment that runs the tests."""

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.docs
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_a_picture(path, tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    environment = os.environ | {"SLOTNORM_CACHE": str(tmp_path / "cache"), "IPYTHONDIR": str(tmp_path / "ipython")}
    environment.pop("MPLBACKEND", None)  # a notebook shows its figures
    notebook = nbformat.read(path, as_version=4)
    # on a busy machine 60 and 4 seconds are short; a word that the kernel lost is waited for as long as the last
    patience = {"timeout": 600, "startup_timeout": 600, "iopub_timeout": 60}
    client = nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, **patience)
    with client.setup_kernel(env=environment):
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
    # what a slider draws goes into its widget, which holds outputs of its own
    shown = json.dumps([notebook.cells, client.widget_state])
    assert "image/png" in shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_kept_without_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert sum(len(cell["source"]) for cell in code) <= 80
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["effect", "layer", "your-images"]
