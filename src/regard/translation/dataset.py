"""Sentence pairs: read from files or built in, checked line by line, and split into training, validation and test.

Every text in a `Pair` is normalised. A line that is no pair is reported or refused, never silently skipped.
"""

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
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.errors import RegardError
from regard.translation.options import CorpusOptions, HeldOutOptions
from regard.translation.text import MAX_LINE_BYTES, normalise, read_lines
from regard.translation.vocabulary import Vocabulary, VocabularySizeError, learn_vocabulary

if TYPE_CHECKING:
    from regard.translation.recipe import Recipe

MAX_RATIO = 9.0
"""A side of a training pair may be this many times as long as the other, in characters."""
SHORT = 10
"""A side with fewer characters counts as this long when the lengths of a pair are compared."""
MAX_CHARACTERS = 2000
"""Maximum number of characters of a side of a training pair."""
MAX_CHARACTERS_OF_TEST = MAX_LINE_BYTES // 8 - 1
"""The same for a test pair: two sides of this length fit into a line that is not cut off."""
DEFAULT_SHARE = 0.01
"""Share of the pairs that is held out for validation, and for a test."""
SHOWN_BYTES = 40
"""Bytes of a bad line that a message shows."""
MAX_REPORTED = 5
"""Bad lines that are reported one by one."""
DIGEST_BYTES = 8


class Span(NamedTuple):
    """One thing that both sides of a pair say.

    Attributes:
        target: the first character of it in the target, and that after its last.
        source: one or more such ranges in the source.
    """

    target: tuple[int, int]
    source: tuple[tuple[int, int], ...]


class Pair(NamedTuple):
    """A sentence and its translation, both normalised.

    Attributes:
        source: the sentence.
        target: its translation.
        spans: the true alignment, if it is known, in the order of the target.
        label: the kind of pair, to report by; "" for none.
    """

    source: str
    target: str
    spans: tuple[Span, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Corpus:
    """Pairs for training, validation and test.

    Attributes:
        name: of a built-in corpus, or of the file.
        train: the pairs to learn from.
        valid: the pairs to validate on.
        test: the pairs to evaluate on once; empty if there are none.

    Raises:
        RegardError: if there is no pair to train or to validate on.
    """

    name: str
    train: Sequence[Pair]
    valid: Sequence[Pair]
    test: Sequence[Pair] = ()

    def __post_init__(self) -> None:
        """Raise if the corpus has no pair to train or to validate on."""
        for part, pairs in (("train", self.train), ("valid", self.valid)):
            if not pairs:
                raise RegardError(
                    part,
                    got=f"no pairs in {self.name}",
                    needed="at least one pair to train on and one to validate on",
                    repair="Check the files, or give a larger share to validation.",
                )

    def fingerprint(self) -> str:
        """Return a digest of the training and validation pairs: a resumed training must have the same of both."""
        digest = hashlib.sha256()
        for pairs in (self.train, self.valid):
            digest.update(f"{len(pairs)}\n".encode())  # a pair that moves from one part to the other changes the digest
            for pair in pairs:
                digest.update(f"{pair.source}\t{pair.target}\n".encode())
        return digest.hexdigest()


def learn_vocabularies(recipe: Recipe, train: Iterable[Pair]) -> tuple[Vocabulary, Vocabulary]:
    """Return the vocabularies of source and target, learnt from training pairs; one object if they are joint.

    Args:
        recipe: its units and vocabulary size are used, and whether the vocabulary is joint.
        train: the training pairs.

    Raises:
        RegardError: if nothing can be learnt from the pairs, or the vocabulary size is too small.
    """
    data, pairs = recipe.data, list(train)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    try:
        if recipe.model.joint:
            joint = learn_vocabulary(data.source_unit, sources + targets, data.vocabulary_size)
            return joint, joint
        source = learn_vocabulary(data.source_unit, sources, data.vocabulary_size)
        return source, learn_vocabulary(data.target_unit, targets, data.vocabulary_size)
    except VocabularySizeError as refusal:
        raise refusal.about("vocabulary_size") from None


# --- A corpus from the options of a command -------------------------------------------------------------------------


def read_corpus(
    options: CorpusOptions, held_out: HeldOutOptions | None = None, report: Callable[[str], None] | None = None
) -> Corpus:
    """Return the corpus to train on.

    Args:
        options: a built-in corpus, or the files of the pairs.
        held_out: files to validate on, or the shares that are held out; None for the defaults.
        report: called with a line for each of the first bad lines, and a summary; None prints to standard error.

    Returns:
        The corpus; its test part is empty if there are files to validate on.

    Raises:
        RegardError: if options do not fit together, a file cannot be read, or a part would be empty.
    """
    held_out = HeldOutOptions() if held_out is None else held_out
    options.check_one_corpus("train")
    held_out.check_fits(options)
    if options.corpus is not None:
        return _built_in(options)
    bad_lines = BadLineReporter(report or print_to_stderr)
    pairs = _read_files(options, options.pairs, options.source, options.target, bad_lines)
    name = (options.pairs or options.source or Path()).name
    if held_out.has_files:
        train = tuple(pairs)
        corpus = Corpus(name, train, _read_validation(options, held_out, bad_lines))
    else:
        valid, test = (
            DEFAULT_SHARE if share is None else share for share in (held_out.valid_share, held_out.test_share)
        )
        flags = {"valid": "valid_share", "test": "test_share", "valid, test": "valid_share, test_share"}
        try:
            corpus = Corpus(name, *split(pairs, valid=valid, test=test))
        except RegardError as refusal:
            raise refusal.about(flags.get(refusal.argument, refusal.argument)) from None
    bad_lines.summarise()
    return corpus


def read_test_pairs(options: CorpusOptions, report: Callable[[str], None] | None = None) -> Sequence[Pair]:
    """Return the pairs to evaluate on: the test part of a built-in corpus, or all pairs of a file.

    A test set is taken as it is: only a line that is no pair at all is skipped, and reported.

    Args:
        options: a built-in corpus, or the files of the pairs.
        report: see `read_corpus`.

    Raises:
        RegardError: if options do not fit together, or a file cannot be read.
    """
    options.check_one_corpus("evaluate")
    if options.corpus is not None:
        return _built_in(options).test
    bad_lines = BadLineReporter(report or print_to_stderr)
    limits = {"max_ratio": float("inf"), "max_characters": MAX_CHARACTERS_OF_TEST}
    pairs = list(_read_files(options, options.pairs, options.source, options.target, bad_lines, **limits))
    bad_lines.summarise()
    return pairs


def print_to_stderr(line: str) -> None:
    """Print a line to standard error, as the commands do."""
    print(f"regard: {line}", file=sys.stderr)


def _built_in(options: CorpusOptions) -> Corpus:
    from regard.translation.corpora import built_in_corpus  # imports this file

    assert options.corpus is not None
    arguments: dict[str, Any] = {} if options.language is None else {"language": options.language}
    return built_in_corpus(options.corpus, **arguments)


def _read_files(
    options: CorpusOptions,
    pairs: Path | None,
    source: Path | None,
    target: Path | None,
    report: Callable[[BadLine], None],
    **limits: Any,
) -> Iterator[Pair]:
    if pairs is not None:
        return read_pairs(pairs, report=report, strict=options.strict, reverse=options.reverse, **limits)
    assert source is not None
    assert target is not None
    return read_parallel(source, target, report=report, strict=options.strict, **limits)


def _read_validation(
    options: CorpusOptions, held_out: HeldOutOptions, report: Callable[[BadLine], None]
) -> tuple[Pair, ...]:
    files = {
        name: path
        for name in ("valid_pairs", "valid_source", "valid_target")
        if (path := getattr(held_out, name)) is not None
    }
    try:
        pairs = tuple(_read_files(options, held_out.valid_pairs, held_out.valid_source, held_out.valid_target, report))
    except RegardError as refusal:  # about "pairs", or about "source, target"
        raise refusal.about(", ".join(f"valid_{name}" for name in refusal.argument.split(", "))) from None
    if not pairs:
        got = f"no pairs in {' and '.join(map(str, files.values()))}"
        needed = "at least one pair to validate on"
        raise RegardError(", ".join(files), got=got, needed=needed, repair="Check what is in there.")
    return pairs


# --- Splitting ------------------------------------------------------------------------------------------------------


def split(
    pairs: Iterable[Pair], *, valid: float = DEFAULT_SHARE, test: float = DEFAULT_SHARE, seed: int = 0
) -> tuple[tuple[Pair, ...], tuple[Pair, ...], tuple[Pair, ...]]:
    """Split pairs into training, validation and test, each in the given order.

    The part of a pair depends only on its normalised source and the seed. So pairs with the same source are in the
    same part, and pairs that are added later do not move the others.

    Args:
        pairs: the pairs.
        valid: approximate share for validation.
        test: approximate share for the test; 0 leaves the part empty.
        seed: another seed gives another split.

    Returns:
        The three parts.

    Raises:
        RegardError: if the shares are no shares, or a part with a share is empty.
    """
    _check_shares(valid, test)
    parts: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    for pair in pairs:
        at = _position(pair.source, seed)
        parts["test" if at < test else "valid" if at < test + valid else "train"].append(pair)
    for part, share in (("train", 1.0), ("valid", valid), ("test", test)):
        if share > 0 and not parts[part]:
            raise RegardError(
                "pairs" if part == "train" else part,
                got=f"no pair for {part} out of {sum(map(len, parts.values()))}",
                needed="at least one pair in every part",
                repair="Give more pairs, larger shares (0 for no test), or a file of your own for validation.",
            )
    return tuple(parts["train"]), tuple(parts["valid"]), tuple(parts["test"])


def _position(source: str, seed: int) -> float:
    """Return the position of a sentence in [0, 1), distributed evenly over sentences."""
    digest = blake2b(f"{seed}\n{normalise(source)}".encode(), digest_size=DIGEST_BYTES).digest()
    return int.from_bytes(digest) / 256**DIGEST_BYTES


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


def check_sizes(train: int, valid: int, test: int, *, max_held_out: int | None = None) -> None:
    """Raise if a part of a built-in corpus would be empty, or more would be held out than it has to spare.

    Args:
        train: number of training pairs.
        valid: number of validation pairs.
        test: number of test pairs.
        max_held_out: maximum of `valid` and `test` together; None for no limit.
    """
    for argument, size in (("train", train), ("valid", valid), ("test", test)):
        if size < 1:
            raise RegardError(
                argument, got=str(size), needed="at least one example", repair="Leave it out to get the usual number."
            )
    if max_held_out is not None and valid + test > max_held_out:
        raise RegardError(
            "valid, test",
            got=f"{valid} and {test}",
            needed=f"{max_held_out} examples or fewer together, so that enough are left to train on",
            repair="Ask for fewer.",
        )


# --- Reading files --------------------------------------------------------------------------------------------------


def read_pairs(
    path: str | PathLike[str],
    *,
    report: Callable[[BadLine], None] | None = None,
    strict: bool = False,
    reverse: bool = False,
    max_ratio: float = MAX_RATIO,
    max_characters: int = MAX_CHARACTERS,
) -> Iterator[Pair]:
    """Read the first two columns of a tab-separated file; further columns are ignored.

    Args:
        path: UTF-8, plain or gzipped.
        report: called with each bad line, which is then skipped; None refuses the first bad line.
        strict: refuse the first bad line even with `report`.
        reverse: the second column is the source.
        max_ratio: a side may be this many times as long as the other, in characters; a side with fewer than ten
            counts as ten.
        max_characters: maximum number of characters of a side.

    Returns:
        An iterator over the pairs.

    Raises:
        RegardError: if the file cannot be read, or for a bad line.
    """
    name = Path(path).name
    pair_filter = PairFilter("pairs", None if strict else report, max_ratio, max_characters)
    for number, line in enumerate(read_lines("pairs", path), start=1):
        first, tab, others = line.partition(b"\t")
        if first.strip() and not tab:
            pair_filter.refuse(BadLine(name, number, BadLineReason.NO_TAB, _shown(first)))
            continue
        second, _, _ = others.partition(b"\t")
        sides = (second, first) if reverse else (first, second)
        yield from pair_filter.pair(sides, (name, name), number)


def read_parallel(
    source: str | PathLike[str],
    target: str | PathLike[str],
    *,
    report: Callable[[BadLine], None] | None = None,
    strict: bool = False,
    max_ratio: float = MAX_RATIO,
    max_characters: int = MAX_CHARACTERS,
) -> Iterator[Pair]:
    """Read two files of which each line translates the same line of the other.

    If one file has more lines, the first of them is reported, and the rest is not read.

    Args:
        source: UTF-8, plain or gzipped.
        target: the translations, line by line.
        report: see `read_pairs`.
        strict: see `read_pairs`.
        max_ratio: see `read_pairs`.
        max_characters: see `read_pairs`.

    Returns:
        An iterator over the pairs.

    Raises:
        RegardError: if a file cannot be read, or for a bad line.
    """
    names = (Path(source).name, Path(target).name)
    pair_filter = PairFilter("source, target", None if strict else report, max_ratio, max_characters)
    both = zip_longest(read_lines("source", source), read_lines("target", target))
    for number, (left, right) in enumerate(both, start=1):
        if left is None or right is None:
            longer, shorter = names if right is None else names[::-1]
            pair_filter.refuse(BadLine(longer, number, BadLineReason.ENDED, f"{shorter} has {number - 1} lines"))
            return
        yield from pair_filter.pair((left, right), names, number)


@dataclass(frozen=True)
class PairFilter:
    """Decides whether two sides are a pair.

    Attributes:
        argument: name of the argument for error messages.
        report: called with each bad line; None refuses it.
        max_ratio: see `read_pairs`.
        max_characters: see `read_pairs`.
    """

    argument: str
    report: Callable[[BadLine], None] | None
    max_ratio: float
    max_characters: int

    def __post_init__(self) -> None:
        """Raise if `max_characters` is out of range."""
        if not 1 <= self.max_characters <= MAX_CHARACTERS_OF_TEST:
            raise RegardError(
                "max_characters",
                got=str(self.max_characters),
                needed=f"1 to {MAX_CHARACTERS_OF_TEST}",
                repair="A pair is meant to be a sentence or two.",
            )

    def pair(self, sides: tuple[bytes, bytes], names: tuple[str, str], number: int) -> Iterator[Pair]:
        """Yield the pair, if the sides are one; names: the file of each side. number: of the line."""
        texts = []
        for side, name, raw in zip(("source", "target"), names, sides, strict=True):
            text = self._text(raw, side)
            if isinstance(text, tuple):
                self.refuse(BadLine(name, number, *text))
                return
            texts.append(text)
        short, long = sorted(map(len, texts))
        if long > self.max_ratio * max(short, SHORT):
            detail = f"{len(texts[0])} characters against {len(texts[1])}"
            self.refuse(BadLine(names[0], number, BadLineReason.RATIO, detail))
            return
        source, target = texts
        yield Pair(source, target)

    def _text(self, raw: bytes, side: str) -> str | tuple[BadLineReason, str]:
        """Return the normalised text of a side, or what is wrong with it."""
        if len(raw) > 4 * self.max_characters:  # no character has more bytes
            return BadLineReason.LONG, f"the {side} has {len(raw)} bytes or more, {_shown(raw)}"
        try:
            text = normalise(raw.decode())
        except UnicodeDecodeError as broken:
            return BadLineReason.BROKEN, f"byte {broken.start + 1} of the {side}, {_shown(raw)}"
        if not text:
            return BadLineReason.EMPTY, f"no {side}"
        if len(text) > self.max_characters:
            return BadLineReason.LONG, f"the {side} has {len(text)} characters, {_shown(raw)}"
        return text

    def refuse(self, bad: BadLine) -> None:
        """Report the line; raise if there is no `report`."""
        if self.report is None:
            raise RegardError(
                self.argument,
                got=str(bad),
                needed="a sentence and its translation in every line",
                repair="Mend the line, or have bad lines skipped and reported.",
            )
        self.report(bad)


def _shown(raw: bytes) -> str:
    """Return the beginning of a line, in print."""
    text = raw[:SHOWN_BYTES].decode(errors="replace")
    return repr(text) + ("..." if len(raw) > SHOWN_BYTES else "")


# --- Bad lines ------------------------------------------------------------------------------------------------------


class BadLineReason(StrEnum):
    """Why a line cannot be used."""

    NO_TAB = "no tab between source and target"
    EMPTY = "an empty side"
    BROKEN = "broken UTF-8"
    RATIO = "one side much longer than the other"
    LONG = "a side that is too long"
    ENDED = "no counterpart, since the other file has ended"


@dataclass(frozen=True)
class BadLine:
    """One line that cannot be used.

    Attributes:
        file: the name of its file.
        line: its number; the first is 1.
        reason: why it cannot be used.
        detail: the part that is wrong, in print.

    >>> print(BadLine("pairs.tsv", 3, BadLineReason.EMPTY, "no target"))
    pairs.tsv, line 3: an empty side (no target)
    """

    file: str
    line: int
    reason: BadLineReason
    detail: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason} ({self.detail})"


class BadLineCounts:
    """Counts bad lines by reason; pass its `add` as the `report` of a reader.

    >>> bad = BadLineCounts()
    >>> bad.add(BadLine("pairs.tsv", 3, BadLineReason.EMPTY, "no target"))
    >>> bad.add(BadLine("pairs.tsv", 8, BadLineReason.EMPTY, "no source"))
    >>> print(bad)
    2 lines skipped: 2 with an empty side (first: line 3 of pairs.tsv)
    """

    def __init__(self) -> None:
        self.counts: Counter[BadLineReason] = Counter()
        self.first: dict[BadLineReason, BadLine] = {}

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


class BadLineReporter:
    """Reports the first bad lines as they are found, and a summary if there are more.

    Args:
        report: called with each line of text.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report, self.counts = report, BadLineCounts()

    def __call__(self, bad: BadLine) -> None:
        """Count a bad line, and report it if it is one of the first."""
        self.counts.add(bad)
        if len(self.counts) <= MAX_REPORTED:
            self.report(f"skipped {bad}")

    def summarise(self) -> None:
        """Report the summary, if some bad lines were not reported."""
        if len(self.counts) > MAX_REPORTED:
            self.report(str(self.counts))
