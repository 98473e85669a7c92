"""`regard bench`: the library against its peers, where the benchmarks are."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from regard.errors import RegardError

Suite = Literal["dot", "multihead", "additive", "lengths", "memory", "regression", "imports", "distance", "map"]

EXAMPLES = (
    ("regard bench", "all suites; minutes"),
    ("regard bench dot additive", "some of them"),
    ("regard bench --cuda distance", "on a GPU"),
)


def bench(*suites: Suite, cuda: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Time the library against its peers and write the tables of the README anew.

    The benchmarks belong to a checkout of the project, not to the installed package. Nothing is timed before the
    backends are found to agree.

    Args:
        suites: which to run; all of them by default.
        cuda: on a GPU.
    """
    root = checkout()
    if root is None:
        raise RegardError(
            "bench",
            got="an installed package, which has no benchmarks",
            needed="a checkout of the project, installed from there",
            repair="Clone it and run make bench.",
        )
    if cuda:
        _check_cuda()
    command = [sys.executable, "-m", "benchmarks", *suites, *(["--cuda"] if cuda else [])]
    ended = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, check=False)
    if ended.returncode:
        sys.exit(ended.returncode)


def checkout() -> Path | None:
    """The folder of the project that this package was installed from, if that is where it still lies."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "benchmarks" / "__main__.py").is_file() else None


def _check_cuda() -> None:
    import torch  # the help does not wait for it

    if not torch.cuda.is_available():
        raise RegardError(
            "cuda",
            got="a machine on which torch finds no GPU",
            needed="one with CUDA",
            repair="Leave --cuda out, or see what regard doctor finds.",
        )
