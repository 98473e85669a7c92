"""Every kernel gets through the front end of Triton's compiler, without a GPU and without its interpreter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import regard.backends.fused

SOURCE = Path(regard.backends.fused.__file__).parent


def launched():
    """The names of all kernels that the source launches."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    found = {name for text in texts for name in re.findall(r"(?:launch|run_programs)\(\s*(\w+),", text)}
    return found - {"kernel"}


def test_every_kernel_gets_through_the_front_end():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.backends.fused.compiling"]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert set(run.stdout.split()) == launched()
