"""`regard train`: from sentence pairs to a trained model."""

import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Unpack

from cyclopts import Parameter

from regard.cli.progress import progress
from regard.cli.recipe_flags import RecipeFlags
from regard.cli.statuses import INTERRUPTED
from regard.translation import checkpoint
from regard.translation.dataset import Sources
from regard.translation.train_procedure import Done, Wishes, leads, run
from regard.translation.training import STATE


def train(
    *,
    out: Path,
    corpus: str | None = None,
    language: str | None = None,
    pairs: Path | None = None,
    reverse: Annotated[bool, Parameter(negative=())] = False,
    source: Path | None = None,
    target: Path | None = None,
    valid_pairs: Path | None = None,
    valid_source: Path | None = None,
    valid_target: Path | None = None,
    valid_share: float = 0.01,
    test_share: float = 0.01,
    strict: Annotated[bool, Parameter(negative=())] = False,
    recipe: Path | None = None,
    init: Path | None = None,
    device: str | None = None,
    threads: int | None = None,
    **flags: Unpack[RecipeFlags],
) -> None:
    """Train a model on sentence pairs; what the help says of it stands where the verbs are listed.

    Args:
        out: the folder for the model.
        corpus: dates, numbers or lists: a built-in corpus, which needs no file.
        language: de or fr, of the corpus numbers.
        pairs: a file with sentence, tab and translation in each line, plain or gzipped.
        reverse: the second column of --pairs is the source.
        source: a file with one sentence a line, plain or gzipped.
        target: its translation, line by line.
        valid_pairs: pairs to validate on.
        valid_source: sentences to validate on.
        valid_target: their translations.
        valid_share: the share of the pairs that is held out for validation, where no file is.
        test_share: likewise for the test; it is written to test.tsv in the model folder.
        strict: refuse a bad line; without it bad lines are named and left out.
        recipe: a TOML file with tables [model], [data] and [training].
        init: the folder of a trained model to fine-tune: its weights and vocabularies are the beginning.
        device: cpu, cuda or cuda:1; a GPU by default, if there is one.
        threads: how many threads a CPU works with.
        **flags: every name of a recipe.
    """
    sources = Sources(
        corpus=corpus,
        language=language,
        pairs=pairs,
        reverse=reverse,
        source=source,
        target=target,
        valid_pairs=valid_pairs,
        valid_source=valid_source,
        valid_target=valid_target,
        valid_share=valid_share,
        test_share=test_share,
        strict=strict,
    )
    wishes = Wishes(sources, out, recipe=recipe, init=init, device=device, threads=threads, flags=dict(flags))
    try:
        with progress() if leads() else nullcontext() as on_event:
            done = run(wishes, on_event)
    except KeyboardInterrupt:
        if leads():
            print(f"\nregard: interrupted; the same command {_after_interruption(out)}.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if leads():
        print(_summary(done, wishes))


def _after_interruption(out: Path) -> str:
    """What the same command will do."""
    if checkpoint.exists(out / STATE):
        return "goes on from the last checkpoint"
    return "begins anew, as there is no checkpoint yet"


def _summary(done: Done, wishes: Wishes) -> str:
    """What was reached, where it is, and what to try next."""
    ended, out = done.ended, shlex.quote(str(wishes.out))
    sentence = min(done.corpus.valid[:100], key=lambda pair: len(pair.source)).source
    return "\n".join(
        (
            f"The best epoch was {ended.best_epoch} of {ended.epochs}: BLEU {ended.bleu:.1f}, "
            f"{ended.exact:.1f}% exact on validation data.",
            f"The model is in {wishes.out}, its log and pictures in {wishes.out / 'training'}. Try",
            f"  regard translate {out} {'-- ' if sentence.startswith('-') else ''}{shlex.quote(sentence)}",
            f"  regard evaluate {out} {_test_data(done, wishes)}",
        )
    )


def _test_data(done: Done, wishes: Wishes) -> str:
    sources = wishes.sources
    if sources.corpus is not None:
        return f"--corpus {sources.corpus}" + (f" --language {sources.language}" if sources.language else "")
    if done.test is not None:
        return f"--pairs {shlex.quote(str(done.test))}"
    return "--source YOUR_TEST_SOURCE --target YOUR_TEST_TARGET"
