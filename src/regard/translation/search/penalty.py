"""The length penalty, without which a search prefers short sentences."""

import math
from numbers import Real
from typing import TypeVar

import torch
from torch import Tensor

from regard.errors import RegardError

STRONGEST = 20  # a length penalty beyond it overflows, and ranks by length alone long before
Lengths = TypeVar("Lengths", float, Tensor)


def penalty(length: Lengths, strength: float) -> Lengths:
    """((5 + length) / 6) ** strength (Wu et al. 2016, arXiv 1609.08144, eq. 14): what a log-probability is divided by.

    length: of the hypothesis, END included; at 1 the penalty is 1.
    strength: 0 ranks by the log-probability alone; 1 nearly by its mean over the tokens.

    >>> penalty(7, 1.0)
    2.0
    """
    return ((5 + length) / 6) ** strength


def penalties(longest: int, strength: float, device: torch.device | str = "cpu") -> Tensor:
    """float64 (longest + 1,): the penalty of every length from 0 on.

    A search compares scores that it computed in different places: one table keeps them equal to the last bit.
    """
    each = [penalty(length, strength) for length in range(longest + 1)]
    return torch.tensor(each, dtype=torch.float64, device=device)


def checked_strength(strength: object) -> float:
    """Of a length penalty, if it is a number that does not overflow."""
    try:
        number = float(strength) if isinstance(strength, Real) and not isinstance(strength, bool) else math.nan
    except OverflowError:  # a whole number beyond the largest float
        number = math.inf
    if not abs(number) <= STRONGEST:
        raise RegardError(
            "length_penalty",
            got=f"{strength!r}",
            needed=f"a number from -{STRONGEST} to {STRONGEST}",
            repair="0 ranks by probability alone, 1 nearly by the mean over tokens.",
        )
    return number
