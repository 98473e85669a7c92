"""`regard evaluate`: how good a model is, or which of two is better: test data in, report, JSON and figure out."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regard.cli.output import check_can_write, spinner, write_text
from regard.errors import RegardError
from regard.translation.options import CorpusOptions, SearchOptions

EXAMPLES = (
    ("regard evaluate model --corpus dates", "on the test part of a built-in corpus"),
    ("regard evaluate model --source test.en --target test.de --out report.json", "on files, all numbers kept"),
    ("regard evaluate model other --pairs test.tsv", "which of two is better"),
    ("regard evaluate model --pairs test.tsv --json", "for a program"),
)


def evaluate(
    model: Path,
    other: Path | None = None,
    /,
    *,
    corpus: Annotated[CorpusOptions, Parameter(name="*", negative=())] = CorpusOptions(),  # noqa: B008 (frozen)
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
        corpus: the test data.
        tokenize: how BLEU cuts words: 13a, intl, char, zh, or none for tokenised text.
        beams: how many hypotheses the search follows.
        length_penalty: how much long translations are favoured; the value stored with the model by default.
        batch_size: how many sentences are translated at a time.
        device: cpu, cuda or cuda:1.
        out: JSON file for all numbers.
        figure: file for quality by length (.svg, .png or .pdf).
        json: print all numbers as JSON; the report for people goes to standard error.
    """
    search = SearchOptions(beams=beams, length_penalty=length_penalty, batch_size=batch_size)
    corpus.check_one_corpus("evaluate")
    check_can_write((model, other, corpus.source, corpus.target, corpus.pairs), out=out, figure=figure)
    models = (model,) if other is None else (model, other)
    with spinner(f"evaluating {model}"):
        _evaluate(models, corpus, tokenize, search, device, out, figure, json)


def _evaluate(
    models: tuple[Path, ...],
    corpus: CorpusOptions,
    tokenize: str,
    search: SearchOptions,
    device: str,
    out: Path | None,
    figure: Path | None,
    as_json: bool,
) -> None:
    """Evaluate and write; all options are checked before the test data and the models are read."""
    # The help does not wait for these.
    from regard.plots import check_format
    from regard.translation.dataset import read_test_pairs
    from regard.translation.evaluation import evaluate, save_figure
    from regard.translation.metrics import check_count, check_tokenizer, looks_tokenised
    from regard.translation.translator import Translator, usable_device

    check_tokenizer(tokenize)
    try:
        if figure is not None:
            check_format(figure)
    except RegardError as refusal:
        raise refusal.about("figure") from None
    if len(set(models)) < len(models):
        raise RegardError(
            "other", got="the same folder twice", needed="another model", repair="Leave it out to evaluate one."
        )
    place = usable_device(device)
    pairs = read_test_pairs(corpus)
    check_count(len(pairs))
    comparison = evaluate(
        {str(folder): Translator.load(folder, device=place) for folder in models},
        pairs,
        tokenize=tokenize,
        beams=search.beams,
        length_penalty=search.length_penalty,
        batch_size=search.batch_size,
    )
    report = sys.stderr if as_json else sys.stdout
    print(comparison, file=report)
    if tokenize != "none" and looks_tokenised([pair.target for pair in pairs]):
        print("note: the references look tokenised; --tokenize none counts their words as they are.", file=report)
    if out is not None:
        write_text("out", out, comparison.to_json())
        print(f"wrote {out}", file=report)
    if figure is not None:
        print(f"wrote {save_figure(comparison, figure)}", file=report)
    if as_json:
        print(comparison.to_json(), end="")
