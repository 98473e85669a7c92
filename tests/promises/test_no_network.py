"""Nothing asks for an address beyond this machine: not when imported, not when it computes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.promises.outsiders import OUTSIDE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sealed() -> dict:
    command = [sys.executable, "-m", "tests.promises.sealed"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_nobody_asked_for_an_address(sealed):
    assert sealed["asked"] == []


def test_everything_was_done(sealed):
    files = [path for path in (ROOT / "src" / "regard").rglob("*.py") if path.name != "__main__.py"]
    done = sealed["done"]
    assert done["rooms"] == len(files) - 1, "every file of the library was imported; the first is regard itself"
    assert (done["operator"], done["fit"], done["translate"], done["commands"]) == (7, 40, 5, 4)


def test_the_studio_listens_to_this_machine_only(sealed):
    assert sealed["done"]["listen"] == "127.0.0.1"


def test_who_does_ask_is_seen(sealed):
    assert {name: told.partition(" ")[0] for name, told in sealed["refused"].items()} == {
        name: event for name, (event, _) in OUTSIDE.items()
    }
