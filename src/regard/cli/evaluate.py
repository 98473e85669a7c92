"""`regard evaluate`: how good a model is, or which of two is better."""

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regard.cli.outputs import check_can_write
from regard.cli.waiting import waiting


def evaluate(
    model: Path,
    other: Path | None = None,
    /,
    *,
    source: Path | None = None,
    target: Path | None = None,
    pairs: Path | None = None,
    corpus: str | None = None,
    language: str | None = None,
    reverse: Annotated[bool, Parameter(negative=())] = False,
    strict: Annotated[bool, Parameter(negative=())] = False,
    tokenize: str = "13a",
    beams: int = 5,
    length_penalty: float | None = None,
    batch_size: int = 64,
    device: str = "cpu",
    out: Path | None = None,
    figure: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Translate a test set and report BLEU, chrF, perplexity and exact matches, also by length.

    Args:
        model: the folder of a trained model.
        other: the folder of another, to be compared with the first by a paired bootstrap.
        source: a file with one sentence a line, plain or gzipped.
        target: its translation, line by line.
        pairs: a file with sentence, tab and translation in each line, instead of two files.
        corpus: dates, numbers or lists: the test part of a built-in corpus, instead of files.
        language: de or fr, of the corpus numbers.
        reverse: the second column of --pairs is the source.
        strict: refuse a bad line; without it bad lines are named and left out.
        tokenize: how BLEU cuts words: 13a, intl, char, zh, or none for tokenised text.
        beams: how many hypotheses the search follows.
        length_penalty: how much long translations are favoured; the value stored with the model by default.
        batch_size: how many sentences are translated at a time.
        device: cpu, cuda or cuda:1.
        out: JSON file for all numbers.
        figure: file for quality by length (.svg, .png or .pdf).
        json: print all numbers as JSON; the report for people goes to standard error.
    """
    from regard.cli.report import Wishes, run

    check_can_write((model, other, source, target, pairs), out=out, figure=figure)
    wishes = Wishes(
        models=(model,) if other is None else (model, other),
        source=source,
        target=target,
        pairs=pairs,
        corpus=corpus,
        language=language,
        reverse=reverse,
        strict=strict,
        tokenize=tokenize,
        beams=beams,
        length_penalty=length_penalty,
        batch_size=batch_size,
        device=device,
        out=out,
        figure=figure,
    )
    with waiting(f"evaluating {model}"), redirect_stdout(sys.stderr) if json else nullcontext():
        comparison = run(wishes)
    if json:
        print(comparison.to_json(), end="")
