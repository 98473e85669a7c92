"""Quality by the length of the source, the figure that made attention famous (arXiv 1409.0473, figure 2)."""

from collections.abc import Sequence
from dataclasses import dataclass

from regard.translation.evaluation.metrics import short_bleu

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
