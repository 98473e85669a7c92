"""The command as a shell runs it: its status, its speed, and its sentence without the extra."""

import os
import subprocess
import sys

import pytest


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


CALL = "import sys; sys.argv = ['regard', {argument!r}]; {before}; from regard.cli import main; main()"


def test_status_is_that_of_the_command():
    assert python(CALL.format(argument="--version", before="pass")).returncode == 0
    assert python(CALL.format(argument="--nonsense", before="pass")).returncode == 2


def test_help_does_not_wait_for_torch():
    asked = python("import sys; from regard.cli.app import run; run(['--help']); assert 'torch' not in sys.modules")
    assert asked.returncode == 0, asked.stderr


def test_help_comes_at_once():
    command = [sys.executable, "-m", "regard", "--help"]
    subprocess.run(command, capture_output=True, check=True)  # compiles what is not compiled yet
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    # Of the processor, so that a busy machine matters little: 0.3 where nobody else is.
    assert used.ru_utime + used.ru_stime < 0.8


@pytest.mark.parametrize("missing", ["cyclopts", "rich"])
def test_without_the_extra_one_sentence_names_it(missing):
    asked = python(CALL.format(argument="--help", before=f"sys.modules[{missing!r}] = None"))
    assert asked.returncode == 1
    assert asked.stderr == (f'regard: the command line needs {missing}; install it with pip install "regard[cli]".\n')
