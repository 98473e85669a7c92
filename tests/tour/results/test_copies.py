"""The results that ship with the package are those of benchmarks/results."""

from pathlib import Path

import pytest

from regard.tour import results

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "src" / "regard" / "tour" / "results").glob("*.json"))
KEPT = ROOT / "benchmarks" / "results"


def test_some_ship():
    assert {path.stem for path in SHIPPED} == {
        "additive",
        "additive-cuda",
        "memory",
        "lab-comparison",
        "lab-state-size",
    }


@pytest.mark.skipif(not KEPT.exists(), reason="benchmarks/results is not part of this copy of the project")
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_copy_equals_its_original(path):
    repair = "copy it anew from benchmarks/results"
    assert path.read_bytes() == (KEPT / path.name).read_bytes(), repair
    assert results.read(path.stem)
