"""BLEU and chrF by sacrebleu with bootstrap intervals, exact matches, and quality by length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import RegardError
from regard.extras import require

TOKENIZERS = ("13a", "intl", "char", "zh", "none")
"""Those of sacrebleu that need neither a download nor another library."""
RESAMPLES = 1000
MAX_PAIRS = 30_000
"""sacrebleu holds all resamples at once, about 80 kB for each pair: these take 2.4 GB."""


@dataclass(frozen=True)
class Metric:
    """One score of one system.

    Attributes:
        name: "BLEU" or "chrF2".
        score: from 0 to 100, of the whole corpus.
        mean: over resampled corpora.
        half_width: of the 95% interval around the mean.
        p_value: of the paired bootstrap test against the first system; None for the first.
        signature: sacrebleu's, with which others can repeat the measurement.
    """

    name: str
    score: float
    mean: float
    half_width: float
    p_value: float | None
    signature: str

    def __str__(self) -> str:
        """Return the score with its interval, as a report prints it."""
        compared = "" if self.p_value is None else f", p = {self.p_value:.4f}"
        low, high = self.mean - self.half_width, self.mean + self.half_width
        return f"{self.score:.2f} (95%: {low:.2f} to {high:.2f}{compared})"


def score_systems(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], *, tokenize: str = "13a"
) -> dict[str, tuple[Metric, ...]]:
    """Return BLEU and chrF of every system; those after the first are compared with it by a paired bootstrap.

    All systems are resampled alike, 1,000 times, with sacrebleu's own seed, which is in the signature.

    Args:
        systems: by name, the translations of each.
        references: one for each translation.
        tokenize: how BLEU cuts words: "13a" (sacrebleu's default), "intl", "char", "zh", or "none" for text that
            is tokenised already.

    Returns:
        The metrics of each system, by name.

    Raises:
        RegardError: if the tokenizer is unknown, or there are too many pairs or other numbers of translations.
    """
    check_tokenizer(tokenize)
    check_count(len(references))
    _check_lengths(systems, references)
    sacrebleu = require("sacrebleu", "translation", "evaluate")
    paired = require("sacrebleu.significance", "translation", "evaluate").PairedTest
    metrics = {"BLEU": sacrebleu.BLEU(tokenize=tokenize, force=True), "chrF": sacrebleu.CHRF()}
    numbered = [(str(number), list(translations)) for number, translations in enumerate(systems.values())]
    signatures, results = paired(numbered, metrics, [list(references)], "bs", RESAMPLES)()
    return {
        system: tuple(
            _metric(name, results[name][number], results[name][0], str(signatures[name])) for name in signatures
        )
        for number, system in enumerate(systems)
    }


def effective_bleu(translations: Sequence[str], references: Sequence[str], tokenize: str) -> float:
    """Return BLEU over the n-gram orders that occur, for few sentences that may all be shorter than four words."""
    bleu = require("sacrebleu", "translation", "evaluate").BLEU(tokenize=tokenize, force=True, effective_order=True)
    return _number(bleu.corpus_score(list(translations), [list(references)]).score)


def looks_tokenised(references: Sequence[str]) -> bool:
    """Return whether most sentences end with a separate full stop, as tokenisers write it."""
    return sum(reference.endswith(" .") for reference in references) > len(references) / 2


def check_tokenizer(tokenize: str) -> None:
    """Raise unless sacrebleu has the tokenizer and can use it without a download."""
    if tokenize not in TOKENIZERS:
        raise RegardError(
            "tokenize",
            got=repr(tokenize),
            needed="one of " + ", ".join(TOKENIZERS),
            repair="13a is sacrebleu's default; none is for text that is tokenised already.",
        )


def _metric(name: str, result: Any, first: Any, signature: str) -> Metric:
    score, mean, half_width = _number(result.score), _number(result.mean), float(result.ci)
    p_value = None if result.p_value is None else float(result.p_value)
    if p_value is not None and (result.score, result.mean, result.ci) == (first.score, first.mean, first.ci):
        # sacrebleu counts resamples that differ more than the systems do; for equal systems there are none.
        p_value = 1.0
    return Metric(name, score, mean, half_width, p_value, signature)


def _number(score: float) -> float:
    """Return the score as a float; sums of logarithms can exceed 100 by their rounding."""
    return min(float(score), 100.0)


def check_count(pairs: int) -> None:
    """Raise if there are no pairs, or more than can be resampled in memory."""
    if not 1 <= pairs <= MAX_PAIRS:
        raise RegardError(
            "pairs",
            got=f"{pairs} pairs of sentences",
            needed=f"1 to {MAX_PAIRS}, as many as a bootstrap holds in memory",
            repair="Check the file, or evaluate a part of it.",
        )


def _check_lengths(systems: Mapping[str, Sequence[str]], references: Sequence[str]) -> None:
    for name, translations in systems.items():
        if len(translations) != len(references):
            raise RegardError(
                "systems",
                got=f"{len(translations)} translations of {name} for {len(references)} references",
                needed="one translation for each reference",
                repair="Translate every sentence once.",
            )


GROUP_WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
MAX_GROUPS = 12


@dataclass(frozen=True)
class LengthGroup:
    """The sentences whose length is from `first` to `last`.

    Attributes:
        first: the smallest length.
        last: the largest length.
        count: number of sentences.
        bleu: of these sentences, over the n-gram orders that occur in them (sacrebleu's effective order).
        exact: the share of translations that equal the reference.
    """

    first: int
    last: int
    count: int
    bleu: float
    exact: float

    @property
    def name(self) -> str:
        """Such as "11-20", or "7"."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def by_length(
    lengths: Sequence[int], translations: Sequence[str], references: Sequence[str], *, tokenize: str = "13a"
) -> tuple[LengthGroup, ...]:
    """Return quality by length, in at most twelve groups of equal width, as in figure 2 of arXiv 1409.0473.

    Args:
        lengths: of each source; an empty one counts as length 1.
        translations: the translations.
        references: one for each translation.
        tokenize: see `score_systems`.

    Returns:
        The groups that have sentences, short ones first.
    """
    groups: dict[int, list[int]] = {}
    width = _width(max(lengths, default=1))
    for row, length in enumerate(lengths):
        groups.setdefault((max(length, 1) - 1) // width, []).append(row)
    return tuple(
        _group(number, width, rows, translations, references, tokenize) for number, rows in sorted(groups.items())
    )


def _group(
    number: int, width: int, rows: list[int], translations: Sequence[str], references: Sequence[str], tokenize: str
) -> LengthGroup:
    ours, theirs = [translations[row] for row in rows], [references[row] for row in rows]
    return LengthGroup(
        first=number * width + 1,
        last=(number + 1) * width,
        count=len(rows),
        bleu=effective_bleu(ours, theirs, tokenize),
        exact=exact_match(ours, theirs),
    )


def exact_match(translations: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of translations that equal the reference."""
    return sum(ours == theirs for ours, theirs in zip(translations, references, strict=True)) / len(references)


def _width(longest: int) -> int:
    for width in GROUP_WIDTHS:
        if longest <= width * MAX_GROUPS:
            return width
    return -(-longest // MAX_GROUPS)
