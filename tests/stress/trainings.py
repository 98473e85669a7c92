"""Small trainings in children of one process that has imported everything: they begin at once, and say where they are.

Import it before any thread of torch has run: a fork copies none of them.
"""

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Imported so that no child loses its time on it: torch's optimisers import _dynamo when they are made.
import sacrebleu  # noqa: F401
import safetensors.torch  # noqa: F401
import torch
import torch._dynamo
from tests.translation.toy_trainings import make_corpus, make_recipe

from regard.errors import RegardError
from regard.translation import checkpoint, monitoring, training
from regard.translation.model_folder import TrainedModel
from regard.translation.recipe import Recipe
from regard.translation.training import train

STARTING, UPDATES, CHECKPOINT, VALIDATION, MODEL, LOG = range(6)
PLACES = ("start", "updates", "checkpoint", "validation", "model folder", "log")
MOST_SAID = 4096


class Child:
    """A process that trains into a folder; `place` says what it is doing, `said` with which error it ended."""

    def __init__(self, recipe: Recipe, out: Path, prepare: Callable[[], object] = lambda: None) -> None:
        self._shared = mmap.mmap(-1, 1 + MOST_SAID)
        self.id = os.fork()
        if self.id:
            return
        status = 3
        try:
            prepare()
            with _told(self._shared):
                train(recipe, make_corpus(), out)
            status = 0
        except RegardError as refusal:
            self._say(str(refusal))
            status = 2
        except BaseException as failure:
            self._say(f"{type(failure).__name__}: {failure}")
        finally:
            sys.stderr.flush()
            os._exit(status)

    @property
    def place(self) -> int:
        """One of PLACES, as it is now, or as it was when the child was killed."""
        return self._shared[0]

    @property
    def said(self) -> str:
        """The error it ended with."""
        return bytes(self._shared[1:]).rstrip(b"\0").decode(errors="replace")

    @property
    def is_running(self) -> bool:
        """Whether it still trains; its end is left for `wait`."""
        return os.waitid(os.P_PID, self.id, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def wait(self) -> int:
        """Its exit status: 0 trained, 2 refused with a sentence, 3 failed in another way, below 0 killed."""
        return os.waitstatus_to_exitcode(os.waitpid(self.id, 0)[1])

    def _say(self, text: str) -> None:
        content = text.encode()[:MOST_SAID]
        self._shared[1 : 1 + len(content)] = content


def killable(seed: int) -> Recipe:
    """Whatever draws at random or remembers: every dropout, two passes, averaging; a checkpoint after each update."""
    flags = {"epochs": 6, "save_every": 1, "average": 2, "r_drop": 1.0, "word_dropout": 0.1, "validate_every": 2}
    return make_recipe(seed=seed, **flags)


def result(out: Path) -> dict[str, Any]:
    """What a training leaves behind, but for times: the model, the log without its seconds, the last checkpoint."""
    state = checkpoint.load(out / training.STATE)
    assert state is not None
    log = [line.rpartition('"seconds"')[0] for line in (out / training.STATE / "log.jsonl").read_text().splitlines()]
    files = {name: (out / name).read_bytes() for name in ("model.safetensors", "source.vocabulary", "model.json")}
    return {**files, "log": log, "best": repr(state["best"]), "trainer": _bits(state["trainer"])}


def differences(found: dict[str, Any], whole: dict[str, Any]) -> list[str]:
    """The names of what is not the same, bit for bit."""
    return [name for name in whole if found.get(name) != whole[name]]


def _bits(state: object) -> object:
    """Tensors as their bytes, in the same containers; without the learning rate, which is set before each update."""
    if isinstance(state, torch.Tensor):
        return str(state.dtype), tuple(state.shape), state.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(state, dict):
        return {key: _bits(value) for key, value in state.items() if key != "lr"}
    if isinstance(state, list | tuple):
        return [_bits(value) for value in state]
    return repr(state)


@contextmanager
def _told(shared: mmap.mmap) -> Iterator[None]:
    """Run what is inside with a mark of where the training is; pictures show nothing here."""
    torch.set_num_threads(1)
    monitoring.can_draw = lambda: False

    def marked(owner: Any, name: str, place: int, after: int) -> None:
        plain = getattr(owner, name)

        def told(*given: Any, **named: Any) -> Any:
            shared[0] = place
            done = plain(*given, **named)
            shared[0] = after  # after an error it stays where it was
            return done

        setattr(owner, name, told)

    marked(checkpoint, "save", CHECKPOINT, UPDATES)
    marked(training, "validate", VALIDATION, UPDATES)
    marked(training, "best_length_penalty", VALIDATION, UPDATES)
    marked(TrainedModel, "save", MODEL, UPDATES)
    marked(training.EpochLog, "__init__", LOG, STARTING)  # it cuts the log back, when a training goes on
    marked(training.EpochLog, "add", LOG, UPDATES)
    marked(training._Run, "_run_epoch", UPDATES, UPDATES)
    yield
