"""A Python process in which named packages are not installed: `run("sklearn", code)` gives what it says and how it ends.

Run as a program it hides the packages of its first argument (separated by commas) and executes its second.
"""

import subprocess
import sys
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


def run(packages: str, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Execute code in a fresh process without the packages; its standard output and error are kept apart."""
    command = [sys.executable, "-W", "error", str(Path(__file__)), packages, code]
    given = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=given, timeout=120, check=False)


if __name__ == "__main__":
    hidden = set(sys.argv[1].split(","))
    sys.meta_path[:] = [Lacking(finder, hidden) for finder in sys.meta_path]
    exec(sys.argv[2], {"__name__": "__main__"})
