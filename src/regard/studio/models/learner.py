"""A process that trains one model and tells of it, a JSON object a line: `python -m regard.studio.models.learner`.

It is a process of its own so that the page stays quick while a model learns, and so that it can be stopped.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.studio.models.cache import Cache
from regard.studio.models.frames import Frame, Looks
from regard.studio.models.wanted import CORPUS, Wanted
from regard.translation.checkpoint import FolderLockedError
from regard.translation.corpora import built_in_corpus
from regard.translation.monitoring import EpochEnded, Event, Started, TrainingProgress, TrainingResult
from regard.translation.training import STATE, train

Tell = Callable[[dict[str, Any]], None]
POLITE = 10  # how far this process steps back behind others


def learn(wanted: Wanted, cache: Cache, tell: Tell) -> None:
    """Train the model into the cache; go on where an earlier process was stopped."""
    corpus = built_in_corpus(CORPUS, **wanted.options)
    looks = Looks(wanted.recipe, corpus)
    teller = _Teller(cache.part(wanted), looks, tell)
    tell({"kind": "sentences", "sentences": looks.sentences()})
    teller.show(looks.at_first())
    train(wanted.recipe, corpus, cache.part(wanted), on_event=teller)
    cache.keep(wanted, {"sentences": looks.sentences(), "frames": [asdict(frame) for frame in teller.frames]})
    tell({"kind": "kept"})


class _Teller:
    """Listens to a training and passes on what the page shows."""

    def __init__(self, part: Path, looks: Looks, tell: Tell) -> None:
        self.part, self.looks, self.tell = part, looks, tell
        self.frames: list[Frame] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.tell({"kind": "started", "updates": event.updates, "update": event.done, "pairs": event.pairs,
                       "parameters": event.parameters})  # fmt: skip
        elif isinstance(event, TrainingProgress):
            self.tell({"kind": "advanced", "update": event.update, "loss": event.loss})
            self._look(event.loss)
        elif isinstance(event, EpochEnded):
            self.tell({"kind": "epoch", "update": event.update, "loss": event.loss, "exact": event.exact})
            self._look(event.loss)
        elif isinstance(event, TrainingResult):
            self.tell({"kind": "ended", "exact": event.exact})

    def show(self, frame: Frame | None) -> None:
        """Keep and tell a look, unless it is the last one again."""
        if frame is not None and (not self.frames or frame.update > self.frames[-1].update):
            self.frames.append(frame)
            self.tell({"kind": "frame", "frame": asdict(frame)})

    def _look(self, loss: float) -> None:
        self.show(self.looks.at(self.part / STATE, loss))


def main() -> int:
    """Read what is wanted from standard input; tell on standard output."""
    told = json.loads(sys.stdin.read())
    wanted, cache = Wanted.from_dict(told["wanted"]), Cache(Path(told["cache"]))

    def tell(said: dict[str, Any]) -> None:
        try:
            print(json.dumps(said), flush=True)
        except BrokenPipeError:  # the studio is gone: the next one goes on from the checkpoint
            os._exit(1)

    os.nice(POLITE)
    try:
        learn(wanted, cache, tell)
    except RegardError as refusal:
        tell({"kind": "refused", "sentence": str(refusal), "held": isinstance(refusal, FolderLockedError)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
