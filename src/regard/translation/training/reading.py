"""The corpus that a command names: a built-in one, or pairs out of files, with its bad lines told of."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.translation.bad_lines import BadLine, BadLines
from regard.translation.corpora import built_in
from regard.translation.pairs import Pair, read_pairs, read_parallel
from regard.translation.split import split
from regard.translation.training.corpus import Corpus

TOLD = 5  # bad lines that are told one by one
FLAGS = {"valid": "valid_share", "test": "test_share", "valid, test": "valid_share, test_share"}  # of `split`'s shares


@dataclass(frozen=True)
class Sources:
    """Where pairs come from, by the names of the flags.

    corpus: the name of a built-in one; language: of the corpus numbers. pairs: a tab-separated file; reverse: its
    second column is the source. source, target: two parallel files. valid_pairs, or valid_source and valid_target:
    files to validate on; without them valid_share and test_share of the pairs are held out. strict: refuse a bad line.
    """

    corpus: str | None = None
    language: str | None = None
    pairs: Path | None = None
    reverse: bool = False
    source: Path | None = None
    target: Path | None = None
    valid_pairs: Path | None = None
    valid_source: Path | None = None
    valid_target: Path | None = None
    valid_share: float = 0.01
    test_share: float = 0.01
    strict: bool = False


def read(sources: Sources, tell: Callable[[str], None] | None = None) -> Corpus:
    """Read everything; `tell` gets a line for each of the first bad lines and a summary; without it, standard error."""
    check(sources)
    if sources.corpus is not None:
        options: dict[str, Any] = {} if sources.language is None else {"language": sources.language}
        return Corpus.of(sources.corpus, built_in(sources.corpus, **options))
    told = _Told(tell or _to_stderr)
    pairs = _pairs(sources, told, sources.pairs, sources.source, sources.target)
    name = (sources.pairs or sources.source or Path()).name
    if sources.valid_pairs is None and sources.valid_source is None:
        try:
            parts = split(pairs, valid=sources.valid_share, test=sources.test_share)
        except RegardError as refusal:
            raise refusal.about(FLAGS.get(refusal.argument, refusal.argument)) from None
        corpus = Corpus(name, parts.train, parts.valid, parts.test)
    else:
        train = tuple(pairs)
        try:
            valid = tuple(_pairs(sources, told, sources.valid_pairs, sources.valid_source, sources.valid_target))
        except RegardError as refusal:  # of "pairs", or of "source, target"
            raise refusal.about(", ".join(f"valid_{name}" for name in refusal.argument.split(", "))) from None
        if not valid:
            given = {name: getattr(sources, name) for name in ("valid_pairs", "valid_source", "valid_target")}
            files = {name: str(path) for name, path in given.items() if path is not None}
            got = f"no pairs in {' and '.join(files.values())}"
            raise _refusal(", ".join(files), got, "at least one pair to validate on", "Check what is in there.")
        corpus = Corpus(name, train, valid)
    told.sum_up()
    return corpus


def check(sources: Sources) -> None:
    """Refuse what does not go together before a file is opened."""
    parallel = sources.source is not None or sources.target is not None
    if (sources.corpus is not None) + (sources.pairs is not None) + parallel != 1:
        is_none = sources.corpus is sources.pairs is None and not parallel
        example = "For example: regard train --corpus dates --out model/"
        got = "nothing to train on" if is_none else "several corpora"
        raise _refusal("train", got, "--corpus, or --pairs, or --source and --target", example)
    if sources.corpus is not None:
        usual = Sources(corpus=sources.corpus, language=sources.language, strict=sources.strict)
        for name in ("valid_pairs", "valid_source", "valid_target", "valid_share", "test_share"):
            if getattr(sources, name) != getattr(usual, name):
                needed = "pairs from files: a built-in corpus brings its own parts"
                raise _refusal(name, f"the corpus {sources.corpus}", needed, "Leave it out.")
    if sources.valid_pairs is not None or sources.valid_source is not None:
        for name in ("valid_share", "test_share"):
            if getattr(sources, name) != getattr(Sources, name):
                raise _refusal(name, "files to validate on", "pairs to hold out from", "Leave it out.")
    elif sources.valid_target is None and sources.valid_share == 0:
        needed = "a share of the pairs, or files, to validate on"
        raise _refusal("valid_share", "0", needed, "Leave it out, or add --valid-pairs.")
    for one, other in (("source", "target"), ("valid_source", "valid_target")):
        if (getattr(sources, one) is None) != (getattr(sources, other) is None):
            lacking = one if getattr(sources, one) is None else other
            both = f"both {_flag(one)} and {_flag(other)}"
            raise _refusal(lacking, "none", both, f"Add {_flag(lacking)}.")
    if sources.valid_pairs is not None and sources.valid_source is not None:
        raise _refusal("valid_pairs", "--valid-source too", "one of them", "Leave one out.")
    if sources.language is not None and sources.corpus != "numbers":
        raise _refusal("language", sources.language, "the corpus numbers", "Leave it out.")
    if sources.reverse and sources.pairs is None:
        raise _refusal("reverse", "no --pairs", "a file of two columns", "Exchange --source and --target instead.")


def _pairs(
    sources: Sources, told: "_Told", pairs: Path | None, source: Path | None, target: Path | None
) -> Iterable[Pair]:
    if pairs is not None:
        return read_pairs(pairs, report=told, strict=sources.strict, reverse=sources.reverse)
    assert source is not None
    assert target is not None
    return read_parallel(source, target, report=told, strict=sources.strict)


class _Told:
    """Tells of the first bad lines as they come, and of all of them at the end."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell, self.all = tell, BadLines()

    def __call__(self, bad: BadLine) -> None:
        self.all.add(bad)
        if len(self.all) <= TOLD:
            self.tell(f"skipped {bad}")

    def sum_up(self) -> None:
        if len(self.all) > TOLD:
            self.tell(str(self.all))


def _to_stderr(line: str) -> None:
    print(f"regard: {line}", file=sys.stderr)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _refusal(argument: str, got: str, needed: str, repair: str) -> RegardError:
    return RegardError(argument, got=got, needed=needed, repair=repair)
