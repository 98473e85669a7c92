"""Aliases of moved modules are those modules, are used, and are gone when a version is released."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tests.moved import MOVED, install

import regard

TESTS = Path(__file__).parent


def test_an_alias_is_the_new_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "regard.former", None)
    monkeypatch.setitem(sys.modules, "regard.former.names", None)
    install({"regard.former": "regard.scores", "regard.former.names": "regard.scores.names"})
    assert import_module("regard.former.names") is sys.modules["regard.scores.names"]
    assert import_module("regard.former") is regard.scores
    monkeypatch.delattr(regard, "former", raising=False)


@pytest.mark.parametrize("old", MOVED)
def test_every_alias_is_used(old):
    parent, _, name = (re.escape(part) for part in old.rpartition("."))
    used = re.compile(rf"\b{parent}\.{name}\b|from {parent} import .*\b{name}\b")
    assert any(used.search(path.read_text(encoding="utf-8")) for path in TESTS.rglob("*.py") if path.name != "moved.py")


def test_no_alias_is_left_in_version_0_2():
    assert regard.__version__.startswith("0.1.") or not MOVED, f"rewrite the imports of {', '.join(MOVED)}"
