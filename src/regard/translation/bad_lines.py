"""What can be wrong with a line of a corpus, where it is, and how often it happened."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum


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
