"""`regard train`: from flags to a trained model, in one process or in those that torchrun has started."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError
from regard.translation.checkpoint import StopSignals, writing_file
from regard.translation.dataset import Corpus, Example, Pair, Sources, check, read
from regard.translation.monitoring import Event, Listener, Started, TrainingResult
from regard.translation.recipe import Recipe, for_fine_tuning, load_init, preset, resolve_recipe, with_recipe_dropout
from regard.translation.training import train
from regard.translation.translator import usable_device

TEST = "test.tsv"
MAX_THREADS = 1024


@dataclass(frozen=True)
class Wishes:
    """The flags of the command, by their names.

    sources: where pairs come from. out: the model folder. recipe: a TOML file. init: the folder of a model to
    fine-tune. device: "cpu", "cuda" or "cuda:1"; without it a GPU if there is one. threads: of a CPU. flags: names of a
    recipe and their values.
    """

    sources: Sources
    out: Path
    recipe: Path | None = None
    init: Path | None = None
    device: str | None = None
    threads: int | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """What a training has led to.

    test: the file of pairs that were held out of it; None where the corpus is built in, or nothing was held out.
    """

    ended: TrainingResult
    recipe: Recipe
    corpus: Corpus
    test: Path | None


def run(wishes: Wishes, on_event: Listener | None = None) -> Done:
    """Train; what is wrong with the flags is refused before a file is read."""
    check(wishes.sources)
    _check_keeps(wishes.sources, wishes.out / TEST)
    device = _device(wishes.device)
    _set_threads(wishes.threads)
    base = _defaults(wishes.sources.corpus)
    init = None if wishes.init is None else load_init(wishes.init)
    if init is not None:
        base = for_fine_tuning(base, init)
    recipe = resolve_recipe(base, wishes.recipe, wishes.flags)
    if init is not None and wishes.init is not None:
        init = with_recipe_dropout(wishes.init, recipe, init)
    corpus = read(wishes.sources, None if leads() else _say_nothing)
    test = wishes.out / TEST if wishes.sources.corpus is None and corpus.test else None

    def hear(event: Event) -> None:
        if isinstance(event, Started) and test is not None:  # the folder is ours, and the training may be interrupted
            _write_pairs(test, corpus.test)
        if on_event is not None:
            on_event(event)

    ended = train(recipe, corpus, wishes.out, device=device, init=init, on_event=hear, signals=StopSignals())
    return Done(ended, recipe, corpus, test)


def _check_keeps(sources: Sources, test: Path) -> None:
    """Refuse to write what is held out over a file that is read."""
    for name in ("pairs", "source", "target"):  # with files to validate on, nothing is held out
        path = getattr(sources, name)
        if path is not None and os.path.realpath(path) == os.path.realpath(test):
            raise RegardError(
                "out",
                got=f"{test.parent}, whose {test.name} is read as {name}",
                needed="a folder in which the pairs that are held out may be written",
                repair=f"Choose another folder, or move {path} out of it.",
            )


def _defaults(corpus: str | None) -> Recipe:
    """What suits a built-in corpus, or sentences of a natural language."""
    return Recipe() if corpus is None else preset(corpus)


def leads() -> bool:
    """Whether this process prints and writes: the only one, or the first of those that torchrun has started."""
    return os.environ.get("RANK", "0") == "0"


def _device(name: str | None) -> torch.device:
    """The device of that name, or a GPU if there is one; each process of torchrun has its own GPU."""
    device = usable_device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        device = usable_device(f"cuda:{os.environ['LOCAL_RANK']}")
        torch.cuda.set_device(device)
    return device


def _set_threads(threads: int | None) -> None:
    if threads is None:
        return
    if not 1 <= threads <= MAX_THREADS:
        needed = f"a whole number from 1 to {MAX_THREADS}"
        raise RegardError("threads", got=str(threads), needed=needed, repair="Leave it out for all cores.")
    torch.set_num_threads(threads)


def _write_pairs(path: Path, pairs: Sequence[Pair | Example]) -> None:
    """As a file that reads back to the same pairs: reading undoes escapes, so what looks like one is escaped."""
    lines = (f"{pair.source}\t{pair.target}\n".replace("&", "&amp;") for pair in pairs)
    with writing_file(path):
        path.write_text("".join(lines), encoding="utf-8")


def _say_nothing(line: str) -> None:
    del line
