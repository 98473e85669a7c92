"""Runs everything that needs several processes, once in a test run: `python -m tests.sharding.ranks FOLDER`.

Starting processes takes seconds and a case milliseconds, so that one start serves all cases, and what it found serves
all of pytest's own processes. It comes back by the case's name: an empty text where nothing was wrong.
"""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import multiprocessing

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
RANKS = (2, 4)
PATIENCE = timedelta(seconds=40)
FOUND = "outcomes of {} ranks.json"


def outcomes(ranks: int, factory: "pytest.TempPathFactory") -> dict[str, str]:
    """What every case and story had to say, by its name; factory: pytest's, whose folders its processes share."""
    own = factory.getbasetemp()
    return _kept(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)[ranks]


@cache
def _kept(folder: Path) -> dict[int, dict[str, str]]:
    """Whoever comes first runs everything, the others wait for it and read; a failure is kept too."""
    failure = folder / "ranks.failure"
    with (folder / "ranks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not failure.exists() and not all((folder / FOUND.format(ranks)).exists() for ranks in RANKS):
            command = [sys.executable, "-W", "error", "-m", "tests.sharding.ranks", str(folder)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            pipes = {"capture_output": True, "text": True}
            try:
                done = subprocess.run(command, cwd=ROOT, env=environment, timeout=400, check=False, **pipes)
                said = done.stderr if done.returncode else ""
            except subprocess.TimeoutExpired as late:
                said = str(late)
            if said:
                failure.write_text(said, encoding="utf-8")
    assert not failure.exists(), failure.read_text(encoding="utf-8")
    return {ranks: json.loads((folder / FOUND.format(ranks)).read_text()) for ranks in RANKS}


def _rank(rank: int, ranks: int, meeting: str, folder: str) -> None:
    # Loaded here: whoever asks for outcomes does not need them.
    from tests.sharding.cases import CASES
    from tests.sharding.judged import disagreements
    from tests.sharding.scenarios import SCENARIOS

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=PATIENCE)
    world = dist.group.WORLD
    asked: dict[str, Callable[[], object]] = {}
    asked |= {name: partial(disagreements, case, world) for name, case in CASES[ranks].items()}
    asked |= {name: partial(story, world) for name, story in SCENARIOS[ranks].items()}
    found = {name: _outcome(ask) for name, ask in asked.items()}
    everyone: list = [None] * ranks
    dist.all_gather_object(everyone, found)
    if rank == 0:
        told = {name: "\n".join(dict.fromkeys(own[name] for own in everyone if own[name])) for name in found}
        (Path(folder) / FOUND.format(ranks)).write_text(json.dumps(told))
    dist.destroy_process_group()


def _outcome(ask: Callable[[], object]) -> str:
    torch.manual_seed(20240229)
    try:
        return "\n".join(ask() or [])
    except Exception:
        return traceback.format_exc()


if __name__ == "__main__":
    # What all ranks load is loaded once, in the process that they are copies of: also what torch loads by itself with
    # the first gradient and with the first operator of ours.
    for module in ("tests.sharding.judged", "tests.sharding.scenarios", "torch.fx.experimental.symbolic_shapes"):
        import_module(module)
    import_module("torch._dynamo")
    for number in RANKS:
        with tempfile.TemporaryDirectory() as place:
            arguments = (number, f"{place}/meeting", sys.argv[1])
            multiprocessing.start_processes(_rank, arguments, nprocs=number, start_method="fork")
