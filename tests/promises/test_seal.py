"""The seal of a process refuses every way out and lets the loopback pass; without it the same ways are open."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.promises.outsiders import HARMLESS, INSIDE, OUTSIDE

ROOT = Path(__file__).parents[2]


def told(state: str) -> dict[str, str]:
    command = [sys.executable, "-m", "tests.promises.outsiders", state]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def sealed() -> dict[str, str]:
    return told("sealed")


@pytest.fixture(scope="module")
def unsealed() -> dict[str, str]:
    return told("open")


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_way_out_is_refused(sealed, name):
    assert sealed[name].startswith(OUTSIDE[name][0] + " ")


@pytest.mark.parametrize("name", INSIDE)
def test_the_loopback_passes(sealed, name):
    assert sealed[name] == "word"


@pytest.mark.parametrize("name", HARMLESS)
def test_without_the_seal_it_would_have_passed(unsealed, name):
    assert unsealed[name] == "passed"
