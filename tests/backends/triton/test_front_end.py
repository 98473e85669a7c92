"""Every kernel passes the front end of Triton's compiler, without a GPU and without its interpreter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import regard.backends.triton

SOURCE = Path(regard.backends.triton.__file__).parent


def launched():
    """Return the names of all kernels that the source launches."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    return {name for text in texts for name in re.findall(r"(?<!def )\b[lL]aunch\(\s*(\w+),", text)}


def test_every_kernel_passes_the_front_end():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.backends.triton.front_end"]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert set(run.stdout.split()) == launched()
