"""What a translator may be given, and the refusal of everything else."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from regard.errors import RegardError
from regard.translation.counts import count_of
from regard.translation.folder import Loaded
from regard.translation.search import MOST_TOKENS, Limits, checked_strength, width_of

# What a command takes.
MOST_AT_ONCE, MOST_BEAMS = 2**20, 1000


@dataclass(frozen=True)
class Search:
    """How to search, as `Translator.translate` explains it; strength: of the length penalty."""

    beams: int
    nbest: int
    strength: float
    shortest: int
    longest: int | None
    batch_size: int

    @classmethod
    def checked(
        cls, beams: int, nbest: int, strength: object, shortest: int, longest: int | None, batch_size: int
    ) -> Self:
        """As a user writes it: refused at once, and not only when a sentence comes."""
        limits = Limits.checked(1, shortest, MOST_TOKENS if longest is None else longest, (), "cpu")
        return cls(
            *width_of(beams, nbest),
            strength=strength_of(strength),
            shortest=limits.shortest,
            longest=None if longest is None else limits.most,
            batch_size=batch_size_of(batch_size),
        )


def sentences_in(argument: str, texts: Iterable[str]) -> Iterator[str]:
    """The sentences one by one; a single string, or anything that is none, is refused."""
    try:
        coming = None if isinstance(texts, str) else iter(texts)
    except TypeError:
        coming = None
    if coming is None:
        raise RegardError(
            argument,
            got="one string" if isinstance(texts, str) else type(texts).__name__,
            needed="a list of sentences",
            repair="Pass [sentence] for a single one.",
        )
    return _strings_in(argument, coming)


def _strings_in(argument: str, texts: Iterator[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise RegardError(
                argument,
                got=f"{type(text).__name__} at number {number}",
                needed="sentences as strings",
                repair="Read files as UTF-8 text and leave out missing values.",
            )
        yield text


def strength_of(strength: object) -> float:
    """Of a length penalty; 1 where none is given."""
    return 1.0 if strength is None else checked_strength(strength)


def batch_size_of(batch_size: int) -> int:
    """Of a batch with a sentence in it."""
    return count_of("batch_size", batch_size, least=1, needed="1 or more", repair="64 suits most machines.")


def check_effort(beams: int, batch_size: int) -> None:
    """Refuse what a command would not come back from."""
    for argument, number, most, usual in (
        ("batch_size", batch_size, MOST_AT_ONCE, 64),
        ("beams", beams, MOST_BEAMS, 5),
    ):
        if not 1 <= number <= most:
            raise RegardError(
                argument, got=str(number), needed=f"from 1 to {most:,}", repair=f"Leave it out for {usual}."
            )


def check_models(models: Sequence[Loaded]) -> None:
    """Refuse models that cannot vote on one word."""
    if not models:
        raise RegardError("models", got="none", needed="at least one model", repair="Pass a model folder.")
    first = models[0]
    for number, other in enumerate(models[1:], 2):
        for side in ("source", "target"):
            mine, its = (getattr(loaded, f"{side}_vocabulary") for loaded in (first, other))
            if mine.to_bytes() != its.to_bytes():
                raise RegardError(
                    "models",
                    got=f"another {side} vocabulary in model {number} than in the first",
                    needed="one vocabulary for all models of an ensemble",
                    repair="Train them on the same data with different seeds.",
                )


def usable_device(device: torch.device | str) -> torch.device:
    """The device, if numbers can be written to it and read back."""
    try:
        wanted = torch.device(device)
        torch.zeros(1, device=wanted).item()
    except (RuntimeError, AssertionError):
        raise RegardError(
            "device",
            got=f"{str(device)!r}",
            needed="a device that torch can use here",
            repair='Pass "cpu", or see what regard doctor finds.',
        ) from None
    return wanted
