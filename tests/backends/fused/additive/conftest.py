"""Small tiles, so that a few tokens make several of them: the interpreter's time goes by programs, not by numbers."""

import pytest

from regard.backends.fused import INTERPRETED
from regard.backends.fused.additive import plan, tables
from regard.backends.fused.additive.tables import Tile


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Blocks of 16 tokens, and a lift however few there are."""
    monkeypatch.setattr(tables, "BLOCK", 16)
    monkeypatch.setattr(tables, "SCORE", Tile(16, 16, 4))
    for name in ("POOL", "GRADE"):
        monkeypatch.setattr(tables, name, (Tile(16, 16, 4, 1), Tile(16, 16, 4, 1)))
    monkeypatch.setattr(tables, "PULL", Tile(16, 16, 4, 1))
    monkeypatch.setattr(tables, "PULL_UNITS", 4)
    monkeypatch.setattr(tables, "SPAN", 2)
    monkeypatch.setattr(plan, "LEAST_TOKENS", 1)
    monkeypatch.setattr(plan, "LEAST_WORK", 1)


@pytest.fixture
def small_slabs(monkeypatch):
    """Slabs of 16 queries, for 17 to 48 keys."""
    monkeypatch.setattr(tables, "SLAB", (16 * 48, 16 * 48))


@pytest.fixture(autouse=True, scope="session")
def _prepared_once():
    """Triton's interpreter prepares its language in each call of a function in a kernel; here once for each launch.

    It is more than half of its time, and the second time changes nothing.
    """
    if not INTERPRETED:
        yield
        return
    from triton import language
    from triton.runtime import interpreter

    prepare, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    prepared = set()

    def prepare_once(function):
        seen = [part for part in function.__globals__.values() if part is language or part is language.core]
        if (modules := frozenset(map(id, seen))) not in prepared:
            prepared.add(modules)
            return prepare(function)
        return None

    def launch_anew(*given, **named):
        prepared.clear()
        return launch(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", prepare_once)
        patch.setattr(interpreter.GridExecutor, "__call__", launch_anew)
        yield
