"""Runs everything that needs several processes, once for each number of them: `python -m tests.sharding.ranks`.

Starting processes takes seconds and a case milliseconds, so that one start serves all cases. What each of them found
comes back by its name: an empty text where nothing was wrong.
"""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing

ROOT = Path(__file__).parents[2]
PATIENCE = timedelta(seconds=40)


@cache
def outcomes(ranks: int) -> dict[str, str]:
    """What every case and story had to say, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "error", "-m", "tests.sharding.ranks", str(ranks), folder]
        threads = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=threads, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads((Path(folder) / "outcomes.json").read_text())


def _rank(rank: int, ranks: int, folder: str) -> None:
    # Loaded here: whoever asks for outcomes does not need them.
    from tests.sharding.cases import CASES
    from tests.sharding.judged import disagreements
    from tests.sharding.stories import STORIES

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks, timeout=PATIENCE
    )
    world = dist.group.WORLD
    asked: dict[str, Callable[[], object]] = {}
    asked |= {name: partial(disagreements, case, world) for name, case in CASES[ranks].items()}
    asked |= {name: partial(story, world) for name, story in STORIES[ranks].items()}
    found = {name: _outcome(ask) for name, ask in asked.items()}
    everyone: list = [None] * ranks
    dist.all_gather_object(everyone, found)
    if rank == 0:
        told = {name: "\n".join(dict.fromkeys(own[name] for own in everyone if own[name])) for name in found}
        (Path(folder) / "outcomes.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def _outcome(ask: Callable[[], object]) -> str:
    torch.manual_seed(20240229)
    try:
        return "\n".join(ask() or [])
    except Exception:
        return traceback.format_exc()


if __name__ == "__main__":
    # What all processes load is loaded once, in the process that they are copies of: also what torch loads by itself
    # with the first gradient.
    loaded = ["tests.sharding.judged", "tests.sharding.stories", "torch.fx.experimental.symbolic_shapes"]
    multiprocessing.set_forkserver_preload(loaded)
    arguments = int(sys.argv[1]), sys.argv[2]
    multiprocessing.start_processes(_rank, arguments, nprocs=arguments[0], start_method="forkserver")
