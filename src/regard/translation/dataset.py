"""Sentence pairs: read from files or built in, checked line by line, and split into training, validation and test."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from regard.errors import RegardError
from regard.translation.text import MOST_BYTES, normalise, read_lines
from regard.translation.vocabulary import Unit, Vocabulary, VocabularySizeError, learn_vocabulary

if TYPE_CHECKING:
    from regard.translation.recipe import Recipe


class Span(NamedTuple):
    """One thing that is said on both sides.

    target: from start to end, in characters. source: one or more such stretches that say it.
    """

    target: tuple[int, int]
    source: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Example:
    """A pair and its true alignment; both sides are as `normalise` leaves them.

    spans: in the order of the target; what is in none of them has no counterpart. label: what kind of example it is,
    to report by.
    """

    source: str
    target: str
    spans: tuple[Span, ...]
    label: str


@dataclass(frozen=True)
class BuiltIn:
    """A corpus in three parts, and the units of text that suit it on each side."""

    train: tuple[Example, ...]
    valid: tuple[Example, ...]
    test: tuple[Example, ...]
    source_unit: Unit
    target_unit: Unit


class Reason(StrEnum):
    """Why a line cannot be used."""

    NO_TAB = "no tab between source and target"
    EMPTY = "an empty side"
    BROKEN = "broken UTF-8"
    RATIO = "one side absurdly longer than the other"
    LONG = "a side that is too long"
    ENDED = "no counterpart, since the other file has ended"


@dataclass(frozen=True)
class BadLine:
    """One line that cannot be used.

    file: its name. line: its number, the first is 1. detail: what of it is wrong, in print.

    >>> print(BadLine("pairs.tsv", 3, Reason.EMPTY, "no target"))
    pairs.tsv, line 3: an empty side (no target)
    """

    file: str
    line: int
    reason: Reason
    detail: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason} ({self.detail})"


class BadLines:
    """A count of bad lines by reason; pass its `add` as the `report` of a reader.

    >>> bad = BadLines()
    >>> bad.add(BadLine("pairs.tsv", 3, Reason.EMPTY, "no target"))
    >>> bad.add(BadLine("pairs.tsv", 8, Reason.EMPTY, "no source"))
    >>> print(bad)
    2 lines skipped: 2 with an empty side (first: line 3 of pairs.tsv)
    """

    def __init__(self) -> None:
        self.counts: Counter[Reason] = Counter()
        self.first: dict[Reason, BadLine] = {}

    def add(self, bad: BadLine) -> None:
        """Count one."""
        self.counts[bad.reason] += 1
        self.first.setdefault(bad.reason, bad)

    def __len__(self) -> int:
        return self.counts.total()

    def __str__(self) -> str:
        if not self:
            return "no lines skipped"
        reasons = ", ".join(
            f"{count} with {reason} (first: line {self.first[reason].line} of {self.first[reason].file})"
            for reason, count in self.counts.most_common()
        )
        return f"{len(self)} {'line' if len(self) == 1 else 'lines'} skipped: {reasons}"


MOST_RATIO = 9.0
MOST_CHARACTERS = 2000
MOST_OF_ALL = MOST_BYTES // 8 - 1  # two sides of so many characters fit into a line that is not cut off
SHOWN = 40  # bytes of a line that an error shows
SHORT = 10  # characters: a side shorter than this counts as this long when lengths are compared

Report = Callable[[BadLine], None]
StrPath = str | PathLike[str]


class Pair(NamedTuple):
    """A sentence and its translation, both as `normalise` leaves them."""

    source: str
    target: str


def read_pairs(
    path: StrPath,
    *,
    report: Report | None = None,
    strict: bool = False,
    reverse: bool = False,
    most_ratio: float = MOST_RATIO,
    most_characters: int = MOST_CHARACTERS,
) -> Iterator[Pair]:
    """Read the first two columns of a tab-separated file; further columns are ignored.

    Args:
        path: UTF-8, plain or gzipped.
        report: called with each bad line, which is then skipped; without it, the first bad line is refused.
        strict: refuse the first bad line, report or not.
        reverse: the second column is the source.
        most_ratio: a side may be so many times as long as the other, in characters (a side of less than ten counts as
            ten).
        most_characters: a side may have so many characters.
    """
    name = Path(path).name
    judge = _Judge("pairs", None if strict else report, most_ratio, most_characters)
    for number, line in enumerate(read_lines("pairs", path), start=1):
        first, tab, others = line.partition(b"\t")
        if first.strip() and not tab:
            judge.refuse(BadLine(name, number, Reason.NO_TAB, _shown(first)))
            continue
        second, _, _ = others.partition(b"\t")
        sides = (second, first) if reverse else (first, second)
        yield from judge.pair(sides, (name, name), number)


def read_parallel(
    source: StrPath,
    target: StrPath,
    *,
    report: Report | None = None,
    strict: bool = False,
    most_ratio: float = MOST_RATIO,
    most_characters: int = MOST_CHARACTERS,
) -> Iterator[Pair]:
    """Read two files of which each line translates the same line of the other; arguments as in `read_pairs`.

    Where one file has more lines, the first of them is reported, and the rest passed over.
    """
    names = (Path(source).name, Path(target).name)
    judge = _Judge("source, target", None if strict else report, most_ratio, most_characters)
    both = zip_longest(read_lines("source", source), read_lines("target", target))
    for number, (left, right) in enumerate(both, start=1):
        if left is None or right is None:
            longer, shorter = names if right is None else names[::-1]
            judge.refuse(BadLine(longer, number, Reason.ENDED, f"{shorter} has {number - 1} lines"))
            return
        yield from judge.pair((left, right), names, number)


@dataclass(frozen=True)
class _Judge:
    """Decides whether two sides are a pair; argument: what an error is about."""

    argument: str
    report: Report | None
    most_ratio: float
    most_characters: int

    def __post_init__(self) -> None:
        if not 1 <= self.most_characters <= MOST_OF_ALL:
            raise RegardError(
                "most_characters",
                got=str(self.most_characters),
                needed=f"1 to {MOST_OF_ALL}",
                repair="A pair is meant to be a sentence or two.",
            )

    def pair(self, sides: tuple[bytes, bytes], names: tuple[str, str], number: int) -> Iterator[Pair]:
        """The pair, if it is one; names: the file of each side. number: of the line."""
        texts = []
        for side, name, raw in zip(("source", "target"), names, sides, strict=True):
            text = self._text(raw, side)
            if isinstance(text, tuple):
                self.refuse(BadLine(name, number, *text))
                return
            texts.append(text)
        short, long = sorted(map(len, texts))
        if long > self.most_ratio * max(short, SHORT):
            detail = f"{len(texts[0])} characters against {len(texts[1])}"
            self.refuse(BadLine(names[0], number, Reason.RATIO, detail))
            return
        yield Pair(*texts)

    def _text(self, raw: bytes, side: str) -> str | tuple[Reason, str]:
        """The normalised text of a side, or what is wrong with it."""
        if len(raw) > 4 * self.most_characters:  # no character has more bytes
            return Reason.LONG, f"the {side} has {len(raw)} bytes or more, {_shown(raw)}"
        try:
            text = normalise(raw.decode())
        except UnicodeDecodeError as broken:
            return Reason.BROKEN, f"byte {broken.start + 1} of the {side}, {_shown(raw)}"
        if not text:
            return Reason.EMPTY, f"no {side}"
        if len(text) > self.most_characters:
            return Reason.LONG, f"the {side} has {len(text)} characters, {_shown(raw)}"
        return text

    def refuse(self, bad: BadLine) -> None:
        """Report the line, or raise where nobody is to be told."""
        if self.report is None:
            raise RegardError(
                self.argument,
                got=str(bad),
                needed="a sentence and its translation in every line",
                repair="Mend the line, or have bad lines skipped and reported.",
            )
        self.report(bad)


def _shown(raw: bytes) -> str:
    """The beginning of a line, in print."""
    text = raw[:SHOWN].decode(errors="replace")
    return repr(text) + ("..." if len(raw) > SHOWN else "")


BYTES = 8


class HasSource(Protocol):
    """A pair, or anything else with a source sentence."""

    @property
    def source(self) -> str:
        """The sentence that is translated."""
        ...


Paired = TypeVar("Paired", bound=HasSource)


@dataclass(frozen=True)
class Split(Generic[Paired]):
    """Three parts that share no source sentence, each in the order in which the pairs came."""

    train: tuple[Paired, ...]
    valid: tuple[Paired, ...]
    test: tuple[Paired, ...]


def split(pairs: Iterable[Paired], *, valid: float = 0.01, test: float = 0.01, seed: int = 0) -> Split[Paired]:
    """Put each pair into a part by its source sentence and the seed alone.

    Pairs with the same normalised source are always in the same part, and pairs added later do not move the others.

    Args:
        pairs: anything with a `source`.
        valid: about what share is for validation.
        test: about what share is for the test; 0 leaves a part empty.
        seed: another seed, another split.
    """
    _check_shares(valid, test)
    parts: dict[str, list[Paired]] = {"train": [], "valid": [], "test": []}
    count = 0
    for count, pair in enumerate(pairs, start=1):  # noqa: B007  (count is told in errors)
        at = _place(pair.source, seed)
        parts["test" if at < test else "valid" if at < test + valid else "train"].append(pair)
    for part, share in (("train", 1.0), ("valid", valid), ("test", test)):
        if share > 0 and not parts[part]:
            raise RegardError(
                "pairs" if part == "train" else part,
                got=f"no pair for {part} out of {count}",
                needed="at least one pair in every part",
                repair="Give more pairs, larger shares (0 for no test), or a file of your own for validation.",
            )
    return Split(*(tuple(part) for part in parts.values()))


def _place(source: str, seed: int) -> float:
    """Where in [0, 1) a sentence stands, evenly over sentences."""
    digest = blake2b(f"{seed}\n{normalise(source)}".encode(), digest_size=BYTES).digest()
    return int.from_bytes(digest) / 256**BYTES


def _check_shares(valid: float, test: float) -> None:
    for argument, share in (("valid", valid), ("test", test)):
        if not 0 <= share < 1:
            raise RegardError(
                argument, got=str(share), needed="a share from 0 to less than 1", repair="0.01 is one in a hundred."
            )
    if valid + test >= 1:
        raise RegardError(
            "valid, test", got=f"{valid} and {test}", needed="less than 1 together", repair="Leave some pairs to train."
        )


def check_sizes(train: int, valid: int, test: int, *, held_out: int | None = None) -> None:
    """Refuse parts that are empty, and more held out than the corpus can spare (`held_out`, None: no limit)."""
    for argument, size in (("train", train), ("valid", valid), ("test", test)):
        if size < 1:
            raise RegardError(
                argument, got=str(size), needed="at least one example", repair="Leave it out to get the usual number."
            )
    if held_out is not None and valid + test > held_out:
        raise RegardError(
            "valid, test",
            got=f"{valid} and {test}",
            needed=f"{held_out} examples or fewer together, so that enough are left to train on",
            repair="Ask for fewer.",
        )


@dataclass(frozen=True)
class Corpus:
    """Pairs for training and validation.

    name: of a built-in corpus, or of the file. test: what evaluation may look at once, if the corpus brings its own.
    """

    name: str
    train: Sequence[Pair | Example]
    valid: Sequence[Pair | Example]
    test: Sequence[Pair | Example] = ()

    def __post_init__(self) -> None:
        """Refuse a corpus that nothing can be learnt from."""
        for part, pairs in (("train", self.train), ("valid", self.valid)):
            if not pairs:
                raise RegardError(
                    part,
                    got=f"no pairs in {self.name}",
                    needed="at least one pair to train on and one to validate on",
                    repair="Check the files, or give a larger share to validation.",
                )

    @classmethod
    def of(cls, name: str, built_in: BuiltIn) -> Corpus:
        """A built-in corpus."""
        return cls(name, built_in.train, built_in.valid, built_in.test)

    def fingerprint(self) -> str:
        """A digest of the training pairs and the validation pairs: a resumed training must have the same of both."""
        digest = hashlib.sha256()
        for pairs in (self.train, self.valid):
            digest.update(f"{len(pairs)}\n".encode())  # a pair that moves from one to the other changes the digest
            for pair in pairs:
                digest.update(f"{pair.source}\t{pair.target}\n".encode())
        return digest.hexdigest()


def learn_vocabularies(recipe: Recipe, train: Iterable[Pair | Example]) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of source and target, from training data only; one object where they are joint."""
    data, pairs = recipe.data, list(train)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    try:
        if recipe.model.joint:
            joint = learn_vocabulary(data.source_unit, sources + targets, data.vocabulary_size)
            return joint, joint
        return learn_vocabulary(data.source_unit, sources, data.vocabulary_size), learn_vocabulary(
            data.target_unit, targets, data.vocabulary_size
        )
    except VocabularySizeError as refusal:
        raise refusal.about("vocabulary_size") from None


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
    from regard.translation.corpora import built_in  # which make pairs of this file

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
    sources: Sources, told: _Told, pairs: Path | None, source: Path | None, target: Path | None
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
