"""Every mutant still has a line to change and tests to run, so that a move or a rename cannot empty the list."""

import ast
from pathlib import Path

import pytest
from tests.mutants.__main__ import Mutant, mutants, mutated

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.what.replace(" ", "-"))
def test_mutant_changes_code_that_exists(mutant: Mutant):
    path, text = mutated(mutant)
    assert text != (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".py":
        ast.parse(text)
    files = [name.partition("::")[0] for name in mutant.tests if name.startswith("tests/")]
    assert files
    assert all((ROOT / name).exists() for name in files)
