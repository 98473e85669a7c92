"""`regard evaluate`: from model folders and a file of pairs, or a built-in corpus, to a report and its files."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.plots import check_format
from regard.translation.corpora import built_in
from regard.translation.dataset import MOST_OF_ALL, BadLine, Example, Pair, read_pairs, read_parallel
from regard.translation.evaluation import Comparison, evaluate, save_figure
from regard.translation.metrics import check_count, check_tokenizer, looks_tokenised
from regard.translation.options import SearchOptions
from regard.translation.translator import Translator

# A test set is taken as it is: only a line that is no pair at all is left out, and that is said.
ANY_RATIO = float("inf")


@dataclass(frozen=True)
class Wishes:
    """The flags of the command, by their names.

    models: one folder, or several to be compared with the first.
    source, target: two parallel files; or pairs: one of tab-separated pairs; or corpus: the name of a built-in one.
    language: of the corpus numbers.
    reverse: the second column of `pairs` is the source.
    strict: refuse a bad line instead of passing over it.
    """

    models: tuple[Path, ...]
    source: Path | None = None
    target: Path | None = None
    pairs: Path | None = None
    corpus: str | None = None
    language: str | None = None
    reverse: bool = False
    strict: bool = False
    tokenize: str = "13a"
    beams: int = 5
    length_penalty: float | None = None
    batch_size: int = 64
    device: str = "cpu"
    out: Path | None = None
    figure: Path | None = None


def run(wishes: Wishes) -> Comparison:
    """Evaluate, print the report, write what was asked for; what is wrong is refused before a model is loaded."""
    check_tokenizer(wishes.tokenize)
    SearchOptions(beams=wishes.beams, length_penalty=wishes.length_penalty, batch_size=wishes.batch_size)
    _check_figure(wishes.figure)
    if len(set(wishes.models)) < len(wishes.models):
        raise RegardError(
            "other", got="the same folder twice", needed="another model", repair="Leave it out to evaluate one."
        )
    pairs = _pairs(wishes)
    systems = {str(folder): Translator.load(folder, device=wishes.device) for folder in wishes.models}
    comparison = evaluate(
        systems,
        pairs,
        tokenize=wishes.tokenize,
        beams=wishes.beams,
        length_penalty=wishes.length_penalty,
        batch_size=wishes.batch_size,
    )
    print(comparison)
    if wishes.tokenize != "none" and looks_tokenised([pair.target for pair in pairs]):
        print("note: the references look tokenised; --tokenize none counts their words as they are.")
    if wishes.out is not None:
        _write(wishes.out, comparison)
        print(f"wrote {wishes.out}")
    if wishes.figure is not None:
        print(f"wrote {save_figure(comparison, wishes.figure)}")
    return comparison


def _pairs(wishes: Wishes) -> Sequence[Pair] | Sequence[Example]:
    parallel = wishes.source is not None or wishes.target is not None
    if parallel + (wishes.pairs is not None) + (wishes.corpus is not None) != 1:
        raise RegardError(
            "evaluate",
            got="no test data" if not parallel and wishes.pairs is wishes.corpus is None else "several test data",
            needed="--source and --target, or --pairs, or --corpus",
            repair="For example: regard evaluate model/ --source test.en --target test.de",
        )
    if wishes.language is not None and wishes.corpus != "numbers":
        raise RegardError("language", got=wishes.language, needed="the corpus numbers", repair="Leave it out.")
    if wishes.reverse and wishes.pairs is None:
        repair = "Exchange --source and --target instead."
        raise RegardError("reverse", got="no --pairs", needed="a file of two columns", repair=repair)
    if wishes.corpus is not None:
        options: dict[str, Any] = {} if wishes.language is None else {"language": wishes.language}
        return built_in(wishes.corpus, **options).test
    if wishes.pairs is not None:
        read = read_pairs(
            wishes.pairs,
            report=_report,
            strict=wishes.strict,
            reverse=wishes.reverse,
            most_ratio=ANY_RATIO,
            most_characters=MOST_OF_ALL,
        )
    elif wishes.source is not None and wishes.target is not None:
        read = read_parallel(
            wishes.source,
            wishes.target,
            report=_report,
            strict=wishes.strict,
            most_ratio=ANY_RATIO,
            most_characters=MOST_OF_ALL,
        )
    else:
        lacking = "target" if wishes.target is None else "source"
        raise RegardError(lacking, got="none", needed="both --source and --target", repair=f"Add --{lacking}.")
    pairs = list(read)
    check_count(len(pairs))
    return pairs


def _check_figure(path: Path | None) -> None:
    try:
        if path is not None:
            check_format(path)
    except RegardError as refusal:
        raise refusal.about("figure") from None


def _report(bad: BadLine) -> None:
    print(f"regard: left out {bad}", file=sys.stderr)


def _write(path: Path, comparison: Comparison) -> None:
    try:
        path.write_text(comparison.to_json(), encoding="utf-8")
    except OSError as refusal:
        raise RegardError(
            "out",
            got=f"{path} ({refusal.strerror})",
            needed="a file that can be written",
            repair="Choose another path.",
        ) from None
