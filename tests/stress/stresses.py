"""The list of stresses: what each promises, how long it may take, and how they run in processes of their own.

`python -m tests.stress.stresses NAME SHARE SECONDS SEED` runs one and prints what it found as JSON.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
GRACE = 60.0  # seconds beyond its time, after which a stress is taken to hang
LEAST = 0.9  # of a count: in a run with a share, rounding may leave a little less


class Stress(NamedTuple):
    """module: of this folder, with `run(share, seconds, seed)`. promised: the counts of a whole run. seconds: its time.

    prefix: the command that its process is started by, found out when it starts.
    """

    module: str
    promised: dict[str, int]
    seconds: float
    prefix: Callable[[], tuple[str, ...]] = tuple


def _private() -> tuple[str, ...]:
    return import_module("tests.stress.disk_full").command()


# The longest first: two at a time they end together.
STRESSES = {
    "properties": Stress("properties", {"examples": 100_000}, 1500),
    "kills": Stress("kills", {"kills": 300}, 900),
    "readers": Stress("readers", {"contents": 20_000}, 400),
    "studio": Stress("studio", {"at once": 1_000, "hostile": 1_000}, 500),
    "memory": Stress("growth", {"calls of attend": 10_000, "requests": 1_000}, 300),
    "full disk": Stress("disk_full", {"times": 40}, 240, _private),
    "threads and processes": Stress("together", {"in threads": 4_096, "forks": 64, "spawns": 8}, 240),
    "two trainings": Stress("two_trainings", {"pairs": 8}, 240),
}


def side_by_side(names: Sequence[str], share: float, seed: int, jobs: int) -> dict[str, dict[str, Any]]:
    """What each stress found, so many of them at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(names, pool.map(lambda name: _apart(name, share, seed), names), strict=True))


def _apart(name: str, share: float, seed: int) -> dict[str, Any]:
    """One stress in a process of its own, within its time; less than promised is a loss."""
    stress, begin, load = STRESSES[name], time.perf_counter(), os.getloadavg()[0]
    asked = [name, str(share), str(stress.seconds), str(seed)]
    command = [*stress.prefix(), sys.executable, "-m", "tests.stress.stresses", *asked]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    try:
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=stress.seconds + GRACE,
            check=False,
        )
        found = json.loads(ended.stdout.splitlines()[-1]) if ended.returncode == 0 else {
            "counts": {}, "lost": [f"it failed: {ended.stderr[-2000:]}"]
        }  # fmt: skip
    except subprocess.TimeoutExpired:
        found = {"counts": {}, "lost": [f"it did not end within {stress.seconds + GRACE:g} seconds"]}
    for what, promised in stress.promised.items():
        least = promised if share == 1.0 else int(LEAST * share * promised)
        if (count := found["counts"].get(what, 0)) < least:
            found["lost"].append(f"{what}: {count} instead of {least}")
    found |= {"promised": stress.promised, "seconds": round(time.perf_counter() - begin, 1), "load": round(load, 2)}
    print(f"{name}: {json.dumps(found)[:2000]}", flush=True)
    return found


if __name__ == "__main__":
    name, share, seconds, seed = sys.argv[1:]
    run = import_module(f"tests.stress.{STRESSES[name].module}").run
    print(json.dumps(run(float(share), float(seconds), int(seed))))
