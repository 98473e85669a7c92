"""`regard train`: from flags to a recipe and a corpus, a training, and what to try next.

This module is imported when the verb is used, because its flags are the names of the recipe, which imports torch.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

import torch
from cyclopts import Group, Parameter

from regard.cli.app import INTERRUPTED
from regard.cli.progress import training_progress
from regard.errors import RegardError
from regard.translation import checkpoint
from regard.translation.checkpoint import StopSignals, writing_file
from regard.translation.dataset import Corpus, Pair, print_to_stderr, read_corpus
from regard.translation.model import Architecture
from regard.translation.monitoring import Event, Listener, Started, TrainingResult
from regard.translation.options import CorpusOptions, HeldOutOptions, whole_number
from regard.translation.recipe import (
    Data,
    Recipe,
    Training,
    for_fine_tuning,
    load_init,
    preset,
    resolve_recipe,
    with_recipe_dropout,
)
from regard.translation.training import STATE
from regard.translation.training import train as train_model
from regard.translation.translator import usable_device

TEST = "test.tsv"
"""File of the pairs that were held out for a test, in the model folder."""
MAX_THREADS = 1024
TABLES = {
    "The model": Architecture,
    "Text and tokens": Data,
    "The training": Training,
}
FIELD_HELP = re.compile(r"^ {8}(\w+): (.*(?:\n {12,}.*)*)", re.MULTILINE)
"""An entry of the Attributes section of a docstring."""


def _recipe_flags() -> dict[str, Any]:
    """Return every name of a recipe with its type, and its help from the docstring of its table."""
    flags = {}
    for order, (title, table) in enumerate(TABLES.items(), start=1):
        group = Group(title, sort_key=order)
        helps = {name: " ".join(text.split()) for name, text in FIELD_HELP.findall(table.__doc__ or "")}
        for entry in fields(table):
            shown = "" if entry.default is None else f" [default: {entry.default}]"
            help_text = f"{helps[entry.name]}{shown}"
            flags[entry.name] = Annotated[entry.type, Parameter(group=group, help=help_text)]  # pyrefly: ignore
    return flags


# The mapping contains only what is given on the command line; the rest comes from a file or the corpus.
RecipeFlags = TypedDict("RecipeFlags", _recipe_flags(), total=False)  # pyrefly: ignore


@dataclass(frozen=True)
class TrainOptions:
    """What to train, and where.

    Attributes:
        out: the folder for the model.
        corpus: which pairs to read.
        held_out: which pairs to validate on, and which to keep for a test.
        recipe: a TOML file with tables [model], [data] and [training].
        init: the folder of a trained model to fine-tune: its weights and vocabularies are the beginning.
        device: cpu, cuda or cuda:1; a GPU by default, if there is one.
        threads: how many threads a CPU works with.
        flags: names of a recipe and their values.
    """

    out: Path
    corpus: CorpusOptions
    held_out: HeldOutOptions = HeldOutOptions()  # noqa: RUF009 (frozen)
    recipe: Path | None = None
    init: Path | None = None
    device: str | None = None
    threads: int | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainOutcome:
    """What a training has led to.

    Attributes:
        ended: the last event of the training.
        recipe: that was trained.
        corpus: that was trained on.
        test: the file of pairs that were held out for a test; None if there are none.
    """

    ended: TrainingResult
    recipe: Recipe
    corpus: Corpus
    test: Path | None


def train(
    *,
    out: Path,
    corpus: Annotated[CorpusOptions, Parameter(name="*", negative=())] = CorpusOptions(),  # noqa: B008 (frozen)
    held_out: Annotated[HeldOutOptions, Parameter(name="*")] = HeldOutOptions(),  # noqa: B008 (frozen)
    recipe: Path | None = None,
    init: Path | None = None,
    device: str | None = None,
    threads: int | None = None,
    **flags: Unpack[RecipeFlags],
) -> None:
    """Train a model on sentence pairs; `app` has the description for the help.

    Args:
        out: the folder for the model.
        corpus: which pairs to read.
        held_out: which pairs to validate on.
        recipe: a TOML file with tables [model], [data] and [training].
        init: the folder of a trained model to fine-tune: its weights and vocabularies are the beginning.
        device: cpu, cuda or cuda:1; a GPU by default, if there is one.
        threads: how many threads a CPU works with.
        **flags: every name of a recipe.
    """
    options = TrainOptions(out, corpus, held_out, recipe, init, device, threads, dict(flags))
    try:
        with training_progress() if is_main() else nullcontext() as on_event:
            result = run(options, on_event)
    except KeyboardInterrupt:
        if is_main():
            print(f"\nregard: interrupted; the same command {_after_interruption(out)}.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if is_main():
        print(_summary(result, options))


def run(options: TrainOptions, on_event: Listener | None = None) -> TrainOutcome:
    """Train; all options are checked before the pairs are read.

    Args:
        options: what to train.
        on_event: called with each event of the training; None for nothing.

    Returns:
        What the training has led to.

    Raises:
        RegardError: if an option is wrong, or a file cannot be read or written.
    """
    options.corpus.check_one_corpus("train")
    options.held_out.check_fits(options.corpus)
    _check_test_file_is_not_read(options.corpus, options.out / TEST)
    device = _device(options.device)
    if options.threads is not None:
        repair = "Leave it out for all cores."
        torch.set_num_threads(whole_number("threads", options.threads, 1, MAX_THREADS, repair))
    base = _default_recipe(options.corpus.corpus)
    init = None if options.init is None else load_init(options.init)
    if init is not None:
        base = for_fine_tuning(base, init)
    recipe = resolve_recipe(base, options.recipe, options.flags)
    if init is not None and options.init is not None:
        init = with_recipe_dropout(options.init, recipe, init)
    corpus = read_corpus(options.corpus, options.held_out, print_to_stderr if is_main() else lambda line: None)
    test = options.out / TEST if options.corpus.corpus is None and corpus.test else None

    def forward(event: Event) -> None:
        # At the start the folder is locked for this training, which may be interrupted later.
        if isinstance(event, Started) and test is not None:
            _write_pairs(test, corpus.test)
        if on_event is not None:
            on_event(event)

    ended = train_model(recipe, corpus, options.out, device=device, init=init, on_event=forward, signals=StopSignals())
    return TrainOutcome(ended, recipe, corpus, test)


def is_main() -> bool:
    """Return whether this process prints and writes: the only one, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def _default_recipe(corpus: str | None) -> Recipe:
    """Return the recipe that suits a built-in corpus, or sentences of a natural language."""
    return Recipe() if corpus is None else preset(corpus)


def _device(name: str | None) -> torch.device:
    """Return the device of that name, or a GPU if there is one; each process of torchrun has its own GPU."""
    device = usable_device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        device = usable_device(f"cuda:{os.environ['LOCAL_RANK']}")
        torch.cuda.set_device(device)
    return device


def _check_test_file_is_not_read(corpus: CorpusOptions, test: Path) -> None:
    """Raise if the pairs that are held out would be written over a file that is read."""
    for name in ("pairs", "source", "target"):  # with files to validate on, nothing is held out
        path = getattr(corpus, name)
        if path is not None and os.path.realpath(path) == os.path.realpath(test):
            raise RegardError(
                "out",
                got=f"{test.parent}, whose {test.name} is read as {name}",
                needed="a folder in which the pairs that are held out may be written",
                repair=f"Choose another folder, or move {path} out of it.",
            )


def _write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write a file that reads back to the same pairs: reading undoes escapes, so what looks like one is escaped."""
    lines = (f"{pair.source}\t{pair.target}\n".replace("&", "&amp;") for pair in pairs)
    with writing_file(path):
        path.write_text("".join(lines), encoding="utf-8")


def _after_interruption(out: Path) -> str:
    """Return what the same command will do."""
    if checkpoint.exists(out / STATE):
        return "goes on from the last checkpoint"
    return "begins anew, as there is no checkpoint yet"


def _summary(result: TrainOutcome, options: TrainOptions) -> str:
    """Return what was reached, where it is, and what to try next."""
    ended, out = result.ended, shlex.quote(str(options.out))
    sentence = min(result.corpus.valid[:100], key=lambda pair: len(pair.source)).source
    return "\n".join(
        (
            f"The best epoch was {ended.best_epoch} of {ended.epochs}: BLEU {ended.bleu:.1f}, "
            f"{ended.exact:.1f}% exact on validation data.",
            f"The model is in {options.out}, its log and pictures in {options.out / STATE}. Try",
            f"  regard translate {out} {'-- ' if sentence.startswith('-') else ''}{shlex.quote(sentence)}",
            f"  regard evaluate {out} {_test_data(result, options.corpus)}",
        )
    )


def _test_data(result: TrainOutcome, corpus: CorpusOptions) -> str:
    if corpus.corpus is not None:
        return f"--corpus {corpus.corpus}" + (f" --language {corpus.language}" if corpus.language else "")
    if result.test is not None:
        return f"--pairs {shlex.quote(str(result.test))}"
    return "--source YOUR_TEST_SOURCE --target YOUR_TEST_TARGET"
