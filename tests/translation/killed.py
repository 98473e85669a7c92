"""Trainings in processes of their own, for what only a process can show: being killed, and working together.

Run as a program it imports everything once and forks: a child that trains starts in no time.
`python -m tests.translation.killed FOLDER` kills one many times; `… shared FOLDER` has two share the work.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

# Imported so that no child loses its time on it: torch's optimisers import _dynamo when they are made.
import sacrebleu  # noqa: F401
import safetensors.torch  # noqa: F401
import torch
import torch._dynamo
from tests.translation.toy_trainings import make_corpus, make_recipe

from regard.translation import checkpoint, monitoring
from regard.translation.accelerator import Processes
from regard.translation.training import train

KILLS = 30
FEW_UPDATES = 2


def killable():
    """Dropout of everything, two passes, averaging: whatever draws at random or remembers."""
    return make_recipe(epochs=8, save_every=1, average=2, r_drop=1.0, word_dropout=0.1, validate_every=2)


def shared():
    return make_recipe(epochs=3, embedding_dropout=0.0, state_dropout=0.0, readout_dropout=0.0, label_smoothing=0.1)


def fork(recipe, out, **environment):
    """The id of a process that trains and leaves with 0."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.environ.update(environment)
        torch.set_num_threads(1)
        monitoring.can_draw = lambda: False  # to be killed while drawing would show nothing
        Processes.close = close_quietly
        train(recipe, make_corpus(), out)
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def close_quietly(processes, close=Processes.close):
    """Close, and fail if a thread of the group is left: it can abort a process that ends, or never let it end."""
    close(processes)
    if processes.size > 1:
        assert [thread.name for thread in Path("/proc/self/task").iterdir()] == [str(os.getpid())]


def wait(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_often(folder):
    """One training undisturbed, one killed again and again; prints from how many different places it went on."""
    begin = time.perf_counter()
    assert wait(fork(killable(), folder / "whole")) == 0
    longest = (time.perf_counter() - begin) / 8
    draw, places = random.Random(7), [0]
    for _ in range(KILLS):
        child = fork(killable(), folder / "killed")
        time.sleep(draw.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        if wait(child) != -signal.SIGKILL:
            break
        state = checkpoint.load(folder / "killed" / "training")
        places.append(0 if state is None else state["trainer"]["update"])
        # A machine whose speed changes would let it end too soon, or never begin.
        advanced = places[-1] - places[-2]
        longest *= 1.5 if advanced == 0 else 0.5 if advanced > FEW_UPDATES else 1.0
    assert wait(fork(killable(), folder / "killed")) == 0
    print(len(set(places[1:])))


def share(folder, port):
    """One training in one process, the same in two."""
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    pair = [fork(shared(), folder / "two", RANK=str(rank), **meeting) for rank in range(2)]
    alone = fork(shared(), folder / "one")
    assert [wait(child) for child in (*pair, alone)] == [0, 0, 0]


if __name__ == "__main__":
    if sys.argv[1] == "shared":
        share(Path(sys.argv[2]), sys.argv[3])
    else:
        kill_often(Path(sys.argv[1]))
