"""The packages are as README describes them: light to import, each with tests, each file opening with a sentence."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "regard"
FILES = sorted(SOURCE.rglob("*.py"))
PACKAGES = {
    path.stem
    for path in SOURCE.iterdir()
    if path.name not in {"__init__.py", "__main__.py", "__pycache__"} and (path.is_dir() or path.suffix == ".py")
}
TRANSLATING = {"sentencepiece", "sacrebleu", "safetensors", "babel", "num2words"}
HEAVY = {"sklearn", "matplotlib", "triton", "starlette"} | TRANSLATING
SAYS_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc"}


def where(path):
    return str(path.relative_to(SOURCE))


def test_importing_regard_loads_nothing_heavy():
    code = f"import sys, regard; regard.attend; print(sorted(sys.modules.keys() & {HEAVY}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_the_tree_in_the_readme_is_the_tree_on_disk():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (tree,) = re.findall(r"## The packages\n.*?```\n(.*?)```", readme, flags=re.DOTALL)
    printed = [re.fullmatch(r"(\w+)  +(\S.*\.)", line) for line in tree.splitlines()]
    assert all(printed), "one line for each package: its name, two spaces or more, one sentence"
    assert {line[1] for line in printed if line} == PACKAGES


def test_every_package_has_tests():
    tested = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and [*path.glob("test_*.py")]}
    tested |= {path.stem.removeprefix("test_") for path in (ROOT / "tests").glob("test_*.py")}
    assert PACKAGES - tested == set()


def test_every_file_opens_with_a_sentence():
    first_lines = {path: (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "") for path in FILES}
    first_lines = {path: docstring.partition("\n")[0] for path, docstring in first_lines.items()}
    assert [where(path) for path, line in first_lines.items() if not re.fullmatch(r"\S.*[.]", line)] == []


def test_no_name_that_says_nothing():
    names = {path: path.relative_to(SOURCE).with_suffix("").parts for path in FILES}
    assert [where(path) for path, parts in names.items() if SAYS_NOTHING & set(parts)] == []


def test_the_modules_of_the_stress_runs_can_be_imported():
    """They run outside of `make test`, so a renamed function would go unnoticed."""
    for path in sorted((ROOT / "tests" / "stress").glob("[!_]*.py")):
        importlib.import_module(f"tests.stress.{path.stem}")


def test_packages_are_imported_when_first_used():
    """Each package is used in a fork of one process, because a package imports others."""
    packages = ["layers", "masks", "plots", "scores"]
    code = f"""
import os, regard
for package in {packages}:
    if os.fork() == 0:
        print(getattr(regard, package).__name__, flush=True)
        os._exit(0)
    os.wait()
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.split() == [f"regard.{package}" for package in packages]
