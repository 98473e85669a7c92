"""Break the code on purpose, one line at a time, and demand that its tests notice.

    python -m tests.mutants [--jobs 2] [--only WORD ...]

Each mutant of mutants.toml is a function, a piece of its text and what replaces it, or a file where it is no Python. It
is applied to a copy of src, and the tests it names run against the copy. Each mutant is printed as killed, SURVIVED,
or STALE if its text is no longer in its function; the exit status is 1 unless all are killed.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")
SECONDS = 900  # a mutant that makes its tests wait this long counts as killed


class Mutant(NamedTuple):
    """One change and the tests that must fail with it; function: its dotted name, or the path of a file."""

    what: str
    function: str
    old: str
    new: str
    tests: Sequence[str]


def mutants() -> list[Mutant]:
    """All mutants of the list."""
    return [Mutant(**row) for row in tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]]


def mutated(mutant: Mutant, root: Path = ROOT) -> tuple[Path, str]:
    """The file of a mutant, relative to the root, and its text after the change."""
    path, first, last = find(mutant.function, root)
    lines = (root / path).read_text(encoding="utf-8").splitlines(keepends=True)
    body = "".join(lines[first:last])
    if mutant.old not in body:
        raise LookupError(f"{mutant.what}: {mutant.old!r} is not in {mutant.function}")
    return path, "".join([*lines[:first], body.replace(mutant.old, mutant.new), *lines[last:]])


def find(function: str, root: Path) -> tuple[Path, int, int]:
    """The file of a function, and the lines that it takes there, as a slice."""
    if "/" in function:
        return Path(function), 0, len((root / function).read_text(encoding="utf-8").splitlines())
    parts = function.split(".")
    for cut in range(len(parts), 0, -1):
        stem = Path("src", *parts[:cut])
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if (root / path).is_file():
                node = ast.parse((root / path).read_text(encoding="utf-8"))
                for name in parts[cut:]:
                    node = next((n for n in ast.walk(node) if getattr(n, "name", None) == name), None)
                    if node is None:
                        raise LookupError(f"{function} is not in {path}")
                if cut == len(parts):
                    return path, 0, len((root / path).read_text(encoding="utf-8").splitlines())
                return path, node.lineno - 1, node.end_lineno
    raise LookupError(f"{function} is in no module")


def is_killed(mutant: Mutant) -> bool:
    """Whether a test of the mutant fails in a copy of the project with the change."""
    path, text = mutated(mutant)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "tests", "docs", "benchmarks", "recipes"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ROOT.iterdir():
            if file.is_file():
                shutil.copy(file, copy)
        (copy / path).write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
        environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
        try:
            done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return True
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.what}: pytest could not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def outcome(mutant: Mutant) -> str:
    """Either "killed", "SURVIVED", or "STALE" if the text is no longer in its function."""
    try:
        return "killed" if is_killed(mutant) else "SURVIVED"
    except LookupError:
        return "STALE"


def main() -> int:
    """Run the mutants and print the outcome of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="mutants whose description has one of these words")
    options = parser.parse_args()
    chosen = [m for m in mutants() if not options.only or any(word in m.what for word in options.only)]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = []
        for mutant, result in zip(chosen, pool.map(outcome, chosen), strict=True):
            results.append(result)
            print(f"{result:8}  {mutant.what}", flush=True)
    print(f"{results.count('killed')} of {len(results)} killed")
    return 0 if set(results) <= {"killed"} else 1


if __name__ == "__main__":
    sys.exit(main())
