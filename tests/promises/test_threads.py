"""Attention gives the same bits alone, in eight threads at once, after a fork and in a process started anew."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.promises.alike import CALLS, THREADS, TIMES, digest

ROOT = Path(__file__).parents[2]
COUNTS = {"alone": 1, "threads": THREADS * TIMES, "fork": 1, "spawn": 1}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, list[str]]]:
    command = [sys.executable, "-m", "tests.promises.alike"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("way", COUNTS)
def test_the_bits_are_the_same(found, way, call):
    assert found[way][call] == [digest(call)] * COUNTS[way]


def test_different_calls_have_different_bits():
    assert len({digest(call) for call in CALLS}) == len(CALLS)
