"""BLEU and chrF by sacrebleu with bootstrap intervals, exact matches, and quality by length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import RegardError
from regard.translation.extras import extra

# Those of sacrebleu that need neither a download nor a further library.
TOKENIZERS = ("13a", "intl", "char", "zh", "none")
RESAMPLES = 1000
# sacrebleu holds every resample at once, about 80 kB for each pair: so many take 2.4 GB.
MOST_PAIRS = 30_000


@dataclass(frozen=True)
class Metric:
    """One score of one system.

    name: "BLEU" or "chrF2".
    score: from 0 to 100, of the whole corpus.
    mean: over resampled corpora.
    half_width: of the 95% interval around the mean.
    p_value: that a system no better or worse than the first would differ from it as much; None for the first.
    signature: sacrebleu's, with which others can repeat the measurement.
    """

    name: str
    score: float
    mean: float
    half_width: float
    p_value: float | None
    signature: str

    def __str__(self) -> str:
        """As a report prints it."""
        compared = "" if self.p_value is None else f", p = {self.p_value:.4f}"
        low, high = self.mean - self.half_width, self.mean + self.half_width
        return f"{self.score:.2f} (95%: {low:.2f} to {high:.2f}{compared})"


def measure(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], *, tokenize: str = "13a"
) -> dict[str, tuple[Metric, ...]]:
    """BLEU and chrF of every system; those after the first are compared with it by a paired bootstrap.

    All systems are resampled alike, 1,000 times, from sacrebleu's own seed (the signature tells it).

    Args:
        systems: by name, the translations of each.
        references: one for each translation.
        tokenize: how BLEU cuts words: "13a" (sacrebleu's default), "intl", "char", "zh", or "none" for text that
            is tokenised already.
    """
    check_tokenizer(tokenize)
    check_count(len(references))
    _check_lengths(systems, references)
    sacrebleu = extra("sacrebleu", "evaluate")
    paired = extra("sacrebleu.significance", "evaluate").PairedTest
    metrics = {"BLEU": sacrebleu.BLEU(tokenize=tokenize, force=True), "chrF": sacrebleu.CHRF()}
    numbered = [(str(number), list(said)) for number, said in enumerate(systems.values())]
    signatures, results = paired(numbered, metrics, [list(references)], "bs", RESAMPLES)()
    return {
        system: tuple(
            _metric(name, results[name][number], results[name][0], str(signatures[name])) for name in signatures
        )
        for number, system in enumerate(systems)
    }


def short_bleu(said: Sequence[str], references: Sequence[str], tokenize: str) -> float:
    """BLEU of a few sentences, which may all be shorter than four words: of the orders that occur."""
    bleu = extra("sacrebleu", "evaluate").BLEU(tokenize=tokenize, force=True, effective_order=True)
    return _number(bleu.corpus_score(list(said), [list(references)]).score)


def looks_tokenised(references: Sequence[str]) -> bool:
    """Whether most sentences end with a full stop that stands alone, as tokenisers leave it."""
    return sum(reference.endswith(" .") for reference in references) > len(references) / 2


def check_tokenizer(tokenize: str) -> None:
    """Refuse what sacrebleu could not do at once."""
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
        p_value = 1.0  # sacrebleu counts resamples that differ MORE than the systems do: of equal systems none
    return Metric(name, score, mean, half_width, p_value, signature)


def _number(score: float) -> float:
    """sacrebleu's sums of logarithms end a hair above 100."""
    return min(float(score), 100.0)


def check_count(pairs: int) -> None:
    """Refuse no pairs at all, and more than can be resampled."""
    if not 1 <= pairs <= MOST_PAIRS:
        raise RegardError(
            "pairs",
            got=f"{pairs} pairs of sentences",
            needed=f"1 to {MOST_PAIRS}, as many as a bootstrap holds in memory",
            repair="Check the file, or evaluate a part of it.",
        )


def _check_lengths(systems: Mapping[str, Sequence[str]], references: Sequence[str]) -> None:
    for name, said in systems.items():
        if len(said) != len(references):
            raise RegardError(
                "systems",
                got=f"{len(said)} translations of {name} for {len(references)} references",
                needed="one translation for each reference",
                repair="Translate every sentence once.",
            )


STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
MOST_GROUPS = 12


@dataclass(frozen=True)
class LengthGroup:
    """The sentences whose length lies from `first` to `last`, both included.

    bleu: of these sentences alone, of the n-gram orders that occur in them (sacrebleu's effective order).
    exact: the share that is the reference to the letter.
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
    lengths: Sequence[int], said: Sequence[str], references: Sequence[str], *, tokenize: str = "13a"
) -> tuple[LengthGroup, ...]:
    """Groups of equal width, at most twelve, short sentences first; groups without a sentence are left out.

    lengths: of each source; an empty one counts as of length 1.
    """
    groups: dict[int, list[int]] = {}
    width = _width(max(lengths, default=1))
    for row, length in enumerate(lengths):
        groups.setdefault((max(length, 1) - 1) // width, []).append(row)
    return tuple(_group(number, width, rows, said, references, tokenize) for number, rows in sorted(groups.items()))


def _group(
    number: int, width: int, rows: list[int], said: Sequence[str], references: Sequence[str], tokenize: str
) -> LengthGroup:
    ours, theirs = [said[row] for row in rows], [references[row] for row in rows]
    return LengthGroup(
        first=number * width + 1,
        last=(number + 1) * width,
        count=len(rows),
        bleu=short_bleu(ours, theirs, tokenize),
        exact=exact_share(ours, theirs),
    )


def exact_share(said: Sequence[str], references: Sequence[str]) -> float:
    """The share of translations that are the reference to the letter."""
    return sum(ours == theirs for ours, theirs in zip(said, references, strict=True)) / len(references)


def _width(longest: int) -> int:
    for width in STEPS:
        if longest <= width * MOST_GROUPS:
            return width
    return -(-longest // MOST_GROUPS)
