"""What a search may write: the words that are refused, the shortest and the longest sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from torch import Tensor

from regard.checks import describe
from regard.errors import RegardError
from regard.translation.counts import count_of
from regard.translation.vocabulary import BEGIN, END, PAD

NEVER_WRITTEN = (PAD, BEGIN)
MOST_TOKENS = 100_000


@dataclass(frozen=True, eq=False)
class Limits:
    """The rules of one search; lengths count END, as the length penalty does.

    shortest: a sentence may not end with fewer tokens.
    longest: int64 (batch,); a sentence that has not ended at this length is cut off, unfinished.
    most: the largest of them.
    forbidden: int64 (words,), never written.
    """

    shortest: int
    longest: Tensor
    most: int
    forbidden: Tensor

    @classmethod
    def checked(
        cls, batch: int, shortest: int, longest: int | Tensor, forbidden: Sequence[int], device: torch.device | str
    ) -> Limits:
        """The rules as a user writes them."""
        shortest = count_of(
            "shortest",
            shortest,
            least=0,
            most=MOST_TOKENS,
            needed=f"0 to {MOST_TOKENS:,} tokens, END included",
            repair="0 lets all end.",
        )
        given = _lengths_of(longest, batch)
        # Where every sentence has its own longest length, a short one is cut off there all the same.
        if not given.ndim and shortest > int(given):
            raise RegardError(
                "longest",
                got=f"{int(given)}",
                needed=f"at least {shortest}, the shortest length",
                repair="Raise longest or lower shortest.",
            )
        forbidden = _words_of(forbidden)
        if END in forbidden:
            raise RegardError(
                "forbidden",
                got=f"{forbidden}, with END among them",
                needed="words other than END, which every sentence finishes with",
                repair="Use shortest to keep sentences from ending.",
            )
        each = given.to(device=device, dtype=torch.int64).expand(batch)
        words = torch.tensor(forbidden, dtype=torch.int64, device=device)
        return cls(shortest, each, int(given.max()) if batch else 0, words)

    def keep(self, rows: Tensor) -> Limits:
        """The rules for some of the sentences."""
        return replace(self, longest=self.longest[rows])

    def spare(self, length: int) -> int:
        """How many words may be refused at this length: so many more must be looked at."""
        return len(self.forbidden) + (length < self.shortest)

    def refused(self, tokens: Tensor, length: int) -> Tensor:
        """Which of the tokens may not be written as number `length` of their sentence (from 1); shaped as they are."""
        refused = torch.isin(tokens, self.forbidden)
        return refused | (tokens == END) if length < self.shortest else refused


def _words_of(forbidden: object) -> tuple[int, ...]:
    """Tokens, as any sequence of whole numbers."""
    repair = "Pass the ids of the words, for example (0, 2)."
    if not isinstance(forbidden, Iterable):
        raise RegardError("forbidden", got=f"{forbidden!r}", needed="a sequence of tokens", repair=repair)
    return tuple(count_of("forbidden", word, least=0, needed="tokens, from 0 on", repair=repair) for word in forbidden)


def _lengths_of(longest: int | Tensor, batch: int) -> Tensor:
    """One length, or one for each sentence, of any type of whole numbers."""
    if isinstance(longest, Integral) and longest > MOST_TOKENS:
        raise RegardError(
            "longest", got=f"{longest}", needed=f"up to {MOST_TOKENS:,} tokens", repair="No sentence is so long."
        )
    try:
        given = torch.as_tensor(longest)
    except (TypeError, ValueError, RuntimeError):
        given = None
    if given is None or not _are_lengths(given, batch):
        raise RegardError(
            "longest",
            got=f"{longest!r}" if given is None or not given.ndim else describe(given),
            needed=f"a length of at least 1, END included, or an integer tensor of {batch}, one a sentence",
            repair="For example twice the length of the source and ten more.",
        )
    return given


def _are_lengths(given: Tensor, batch: int) -> bool:
    is_whole = not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool)
    return is_whole and given.shape in ((), (batch,)) and (not batch or int(given.min()) >= 1)
