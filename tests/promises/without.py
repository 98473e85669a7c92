"""Processes in which named packages are not installed, for what the library says without them.

Run as a program it reads JSON, {name: [packages, code]}, imports torch once, forks a child for each name, hides the
packages there, runs the code, and prints {name: what was said and shown}.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import DistributionFinder
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Lacking:
    """A finder of modules that does not find some packages, neither their modules nor what pip wrote about them."""

    def __init__(self, finder, packages: set[str]) -> None:
        self.finder, self.packages = finder, packages

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in self.packages else self.finder.find_spec(name, path, target)

    def find_distributions(self, context=None):
        context = context or DistributionFinder.Context()
        asked = (context.name or "").replace("-", "_")
        if asked in self.packages or not hasattr(self.finder, "find_distributions"):
            return iter(())
        return self.finder.find_distributions(context)

    def __getattr__(self, name: str):
        return getattr(self.finder, name)


def run_all(cases: dict[str, tuple[list[str], str]]) -> dict[str, str]:
    """What each code printed, in a process of its own without its packages."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, str(Path(__file__))],
        input=json.dumps(cases), capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def _child(packages: list[str], code: str) -> str:
    with tempfile.TemporaryFile() as said:
        process = os.fork()
        if not process:
            for stream in (1, 2):
                os.dup2(said.fileno(), stream)
            hidden = set(packages)
            loaded = hidden & sys.modules.keys()
            sys.meta_path[:] = [Lacking(finder, hidden) for finder in sys.meta_path]
            try:
                assert not loaded, f"{loaded} was loaded before it could be hidden"
                exec(code, {"__name__": "__main__"})
            except BaseException as error:
                print(f"not caught: {type(error).__name__}: {error}")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(process, 0)
        said.seek(0)
        return said.read().decode()


if __name__ == "__main__":
    import sympy  # noqa: F401 (what every child needs, once: torch imports it for its operators)
    import torch  # noqa: F401

    given = json.load(sys.stdin)
    print(json.dumps({name: _child(packages, code) for name, (packages, code) in given.items()}))
