"""A notebook, run from top to bottom in a kernel of its own."""

import os
from typing import NamedTuple

import pytest
from tests.docs.pages import NOTEBOOKS


class Ran(NamedTuple):
    """What a notebook left. printed: all of it. drawn: how many pictures. complaints: what went to stderr."""

    printed: str
    drawn: int
    complaints: str


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a notebook by its name. Each has a file of tests for itself, so that they run side by side."""
    import nbclient
    from myst_nb.core.read import read_myst_markdown_notebook

    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")

    def run_(name):
        (path,) = (path for path in NOTEBOOKS if path.stem == name)
        notebook = read_myst_markdown_notebook(path.read_text(encoding="utf-8"))
        place = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(notebook, timeout=120, shutdown_kernel="immediate", resources=place).execute()
        outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
        streams = {
            name: "".join(output.text for output in outputs if output.get("name") == name)
            for name in ("stdout", "stderr")
        }
        pictures = [output for output in outputs if "image/png" in output.get("data", {})]
        return Ran(streams["stdout"], len(pictures), streams["stderr"])

    return run_
