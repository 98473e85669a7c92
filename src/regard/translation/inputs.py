"""What a translator may be given, and the refusal of everything else."""

from collections.abc import Iterable, Iterator, Sequence

import torch

from regard.errors import RegardError
from regard.translation.folder import Loaded

STRONGEST = 20  # a length penalty beyond it overflows, and ranks by length alone long before


def sentences_in(argument: str, texts: Iterable[str]) -> Iterator[str]:
    """The sentences one by one; a single string, or anything that is none, is refused."""
    if isinstance(texts, str):
        raise RegardError(
            argument, got="one string", needed="a list of sentences", repair="Pass [sentence] for a single one."
        )
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
    if strength is None:
        return 1.0
    if isinstance(strength, bool) or not isinstance(strength, int | float) or not abs(strength) <= STRONGEST:
        raise RegardError(
            "length_penalty",
            got=f"{strength!r}",
            needed=f"a number from -{STRONGEST} to {STRONGEST}",
            repair="0 ranks by probability alone, 1 nearly by the mean over tokens.",
        )
    return float(strength)


def check_batch_size(batch_size: int) -> None:
    """Refuse a batch of nothing."""
    if batch_size < 1:
        raise RegardError("batch_size", got=f"{batch_size}", needed="1 or more", repair="64 suits most machines.")


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
    """The device, if a tensor can be made on it."""
    try:
        wanted = torch.device(device)
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError):
        raise RegardError(
            "device",
            got=f"{str(device)!r}",
            needed="a device that torch can use here",
            repair='Pass "cpu", or see what regard doctor finds.',
        ) from None
    return wanted
