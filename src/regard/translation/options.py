"""Options that are flags of a command and keyword arguments in Python: each a dataclass that checks its values.

This file imports no torch, so that the command line can build its help without waiting for it.
"""

import math
import operator
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from regard.errors import RegardError

MAX_BEAMS = 1000
MAX_BATCH_SIZE = 2**20
"""MAX_BEAMS and MAX_BATCH_SIZE keep a mistyped number from exhausting the memory."""
MAX_LENGTH = 100_000
"""Maximum number of tokens of a translation."""
EXAMPLES = {"train": "--corpus dates --out model", "evaluate": "model --corpus dates"}
"""What a command needs at least, for messages."""
MAX_LENGTH_PENALTY = 20
"""Larger values overflow. Far below this limit, the length alone decides the ranking."""


@dataclass(frozen=True)
class SearchOptions:
    """How to search for translations.

    Attributes:
        nbest: number of translations of each sentence, as lines "number ||| translation ||| score".
        beams: how many hypotheses the search follows; 1 is greedy search.
        length_penalty: how much long translations are favoured; the value stored with the model by default.
        shortest: the fewest tokens of a translation.
        longest: the most tokens of a translation;
            by default computed from the training data; at least 10 more than twice the tokens of the sentence.
        batch_size: how many sentences are translated at a time; 1 answers every line of a pipe as it comes.
    """

    nbest: int = 1
    beams: int = 5
    length_penalty: float | None = None
    shortest: int = 0
    longest: int | None = None
    batch_size: int = 64

    def __post_init__(self) -> None:
        """Check all values and convert them to plain numbers.

        Raises:
            RegardError: if a value is out of range, or two do not fit together.
        """
        beams = whole_number("beams", self.beams, 1, MAX_BEAMS, "1 is greedy search, 5 is usual.")
        shortest = whole_number("shortest", self.shortest, 0, MAX_LENGTH, "0 sets no minimum.")
        checked = {
            "beams": beams,
            "nbest": whole_number("nbest", self.nbest, 1, beams, "Raise beams to at least nbest."),
            "shortest": shortest,
            "batch_size": whole_number("batch_size", self.batch_size, 1, MAX_BATCH_SIZE, "64 suits most machines."),
        }
        if self.longest is not None:
            repair = "It is at least `shortest`. Leave it out for the default."
            checked["longest"] = whole_number("longest", self.longest, max(1, shortest), MAX_LENGTH, repair)
        for name, number in checked.items():
            object.__setattr__(self, name, number)
        if self.length_penalty is not None:
            object.__setattr__(self, "length_penalty", checked_length_penalty(self.length_penalty))


@dataclass(frozen=True)
class CorpusOptions:
    """Which sentence pairs to read: a built-in corpus, a file of pairs, or two parallel files.

    Attributes:
        corpus: dates, numbers or lists: a built-in corpus, which needs no file.
        language: de or fr, of the corpus numbers.
        pairs: a file with sentence, tab and translation in each line, plain or gzipped.
        reverse: the second column of --pairs is the source.
        source: a file with one sentence a line, plain or gzipped.
        target: its translation, line by line.
        strict: refuse a bad line; without it bad lines are named and left out.
    """

    corpus: str | None = None
    language: str | None = None
    pairs: Path | None = None
    reverse: bool = False
    source: Path | None = None
    target: Path | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        """Check that the options fit together; `check_one_corpus` checks that there is exactly one corpus.

        Raises:
            RegardError: if an option lacks another one that it needs.
        """
        check_both("source", self.source, "target", self.target)
        if self.language is not None and self.corpus != "numbers":
            raise RegardError("language", got=self.language, needed="the corpus numbers", repair="Leave it out.")
        if self.reverse and self.pairs is None:
            repair = "Exchange --source and --target instead."
            raise RegardError("reverse", got="no --pairs", needed="a file of two columns", repair=repair)

    def check_one_corpus(self, command: str) -> None:
        """Raise unless exactly one corpus is given; command: "train" or "evaluate", for the message."""
        count = sum(given is not None for given in (self.corpus, self.pairs, self.source))
        if count != 1:
            raise RegardError(
                command,
                got="several corpora" if count else "no sentence pairs",
                needed="--corpus, or --pairs, or --source and --target",
                repair=f"For example: regard {command} {EXAMPLES[command]}",
            )


@dataclass(frozen=True)
class HeldOutOptions:
    """Which pairs to validate on, and which to keep for a test.

    Attributes:
        valid_pairs: pairs to validate on.
        valid_source: sentences to validate on.
        valid_target: their translations.
        valid_share: the share of the pairs that is held out for validation, where no file is; 0.01 by default.
        test_share: likewise for the test; it is written to test.tsv in the model folder. 0.01 by default.
    """

    valid_pairs: Path | None = None
    valid_source: Path | None = None
    valid_target: Path | None = None
    valid_share: float | None = None
    test_share: float | None = None

    @property
    def has_files(self) -> bool:
        """Whether there are files to validate on."""
        return self.valid_pairs is not None or self.valid_source is not None

    def __post_init__(self) -> None:
        """Check that the options fit together.

        Raises:
            RegardError: if they do not.
        """
        check_both("valid_source", self.valid_source, "valid_target", self.valid_target)
        if self.valid_pairs is not None and self.valid_source is not None:
            raise RegardError("valid_pairs", got="--valid-source too", needed="one of them", repair="Leave one out.")
        if self.has_files:
            self._check_not_given(("valid_share", "test_share"), "files to validate on", "pairs to hold out from")
        elif self.valid_share == 0:
            needed = "a share of the pairs, or files, to validate on"
            raise RegardError("valid_share", got="0", needed=needed, repair="Leave it out, or add --valid-pairs.")

    def check_fits(self, corpus: CorpusOptions) -> None:
        """Raise if something is held out of a built-in corpus, which brings its own parts."""
        if corpus.corpus is not None:
            names = ("valid_pairs", "valid_source", "valid_target", "valid_share", "test_share")
            needed = "pairs from files: a built-in corpus brings its own parts"
            self._check_not_given(names, f"the corpus {corpus.corpus}", needed)

    def _check_not_given(self, names: tuple[str, ...], got: str, needed: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise RegardError(name, got=got, needed=needed, repair="Leave it out.")


def whole_number(argument: str, given: Any, least: int, most: int, repair: str) -> int:
    """Return a whole number of Python, NumPy or PyTorch as an int.

    Args:
        argument: name of the argument for the error message.
        given: the value to check.
        least: the smallest number that is allowed.
        most: the largest one.
        repair: how to fix the call.

    Raises:
        RegardError: if it is not a whole number, or out of range.

    >>> whole_number("beams", 3, 1, 1000, "5 is usual.")
    3
    """
    try:
        number = None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise RegardError(
            argument, got=f"{given!r}", needed=f"a whole number from {least:,} to {most:,}", repair=repair
        )
    return number


def checked_length_penalty(given: object) -> float:
    """Return the strength of a length penalty as a float.

    Raises:
        RegardError: if it is not a number, or so large that the penalty would overflow.
    """
    try:
        strength = float(given) if isinstance(given, Real) and not isinstance(given, bool) else math.nan
    except OverflowError:  # a whole number larger than the largest float
        strength = math.inf
    if not abs(strength) <= MAX_LENGTH_PENALTY:
        raise RegardError(
            "length_penalty",
            got=f"{given!r}",
            needed=f"a number from -{MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}",
            repair="0 ranks by probability alone, 1 nearly by the mean over tokens.",
        )
    return strength


def check_both(first: str, one: object, second: str, other: object) -> None:
    """Raise if one of two options that belong together is missing."""
    if (one is None) != (other is None):
        missing = first if one is None else second
        flags = [f"--{name.replace('_', '-')}" for name in (first, second, missing)]
        raise RegardError(missing, got="none", needed=f"both {flags[0]} and {flags[1]}", repair=f"Add {flags[2]}.")
