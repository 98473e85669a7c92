"""A pair of sentences that knows which characters of its source say which characters of its target."""

from dataclasses import dataclass
from typing import NamedTuple

from regard.translation.vocabulary import Unit


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
