"""Two processes that train into one folder: one is refused with a sentence, the other ends as if it were alone."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAIRS = 8
CODE = """
import sys
from pathlib import Path
import torch
from tests.translation.toy_trainings import make_corpus, make_recipe
from regard.errors import RegardError
from regard.translation import monitoring
from regard.translation.training import train
torch.set_num_threads(1)
pictures.can_draw = lambda: False
print("ready", flush=True)
sys.stdin.readline()
try:
    train(make_recipe(epochs=20, save_every=1), make_corpus(), Path(sys.argv[1]))
    print("trained")
except RegardError as refusal:
    print("refused" if "another process is training" in str(refusal) else refusal)
"""


def run(share: float, seconds: float, seed: int) -> dict[str, Any]:
    """Pairs of processes that begin at the same moment: `share` of them, at least one."""
    del seed
    end, wanted, pairs, lost, alone = time.perf_counter() + seconds, max(1, round(share * PAIRS)), 0, [], None
    with tempfile.TemporaryDirectory() as place:
        while pairs < wanted and time.perf_counter() < end:
            folder = Path(place) / str(pairs)
            said = sorted(_together(folder, 2))
            if alone is None:
                assert _together(Path(place) / "alone", 1) == ["trained"]
                alone = (Path(place) / "alone" / "model.safetensors").read_bytes()
            if said != ["refused", "trained"]:
                lost.append(f"said {said}")
            elif (folder / "model.safetensors").read_bytes() != alone:
                lost.append("the one that trained ended with other bytes than one alone")
            pairs += 1
    return {"counts": {"pairs": pairs}, "lost": lost}


def _together(folder: Path, count: int) -> list[str]:
    """The last words of so many processes that begin to train into one folder together."""
    command = [sys.executable, "-c", CODE, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(count)]
    for process in processes:
        process.stdout.readline()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    return [(process.communicate()[0].split("\n")[:-1] or ["nothing"])[-1] for process in processes]
