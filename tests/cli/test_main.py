"""The command as a shell runs it: its status, its imports, and its sentence without the extra."""

import subprocess
import sys

import pytest


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


CALL = "import sys; sys.argv = ['regard', {argument!r}]; {before}; from regard.cli import main; main()"


def test_status_is_that_of_the_command():
    assert python(CALL.format(argument="--version", before="pass")).returncode == 0
    assert python(CALL.format(argument="--nonsense", before="pass")).returncode == 2


def test_help_imports_few_modules_and_no_large_library():
    """Counted instead of timed, because a busy machine changes every time."""
    command = [sys.executable, "-X", "importtime", "-m", "regard", "--help"]
    asked = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {
        line.rpartition("|")[2].strip() for line in asked.stderr.splitlines() if line.startswith("import time:")
    }
    assert "regard.cli.app" in imported
    assert not imported & {"torch", "numpy", "scipy", "sklearn", "matplotlib", "pandas", "starlette"}
    assert len(imported) < 700


@pytest.mark.parametrize("missing", ["cyclopts", "rich"])
def test_without_the_extra_one_sentence_names_it(missing):
    asked = python(CALL.format(argument="--help", before=f"sys.modules[{missing!r}] = None"))
    assert asked.returncode == 1
    assert asked.stderr == (f'regard: the command line needs {missing}; install it with pip install "regard[cli]".\n')
