"""The three notebooks run from top to bottom in a kernel, each within its minute."""

import os

import nbclient
import pytest
from myst_nb.core.read import read_myst_markdown_notebook
from tests.docs.pages import NOTEBOOKS, name_of


def test_they_are_named_like_the_sections_of_the_notes():
    assert [path.stem for path in NOTEBOOKS] == ["bahdanau", "multi-head", "pooling"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_notebook_runs_and_draws(path, tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    notebook = read_myst_markdown_notebook(path.read_text(encoding="utf-8"))
    client = nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    drawn = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(drawn) >= 3
    assert not [output for output in outputs if output.output_type == "stream" and output.name == "stderr"]
