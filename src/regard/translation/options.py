"""Whole numbers as users write them, in Python, NumPy or PyTorch, and the refusal of everything else."""

import operator
from typing import Any

from regard.errors import RegardError


def count_of(argument: str, given: Any, *, least: int, needed: str, repair: str, most: int | None = None) -> int:
    """The number as an int, if it is a whole one from `least` to `most`; the other arguments are those of the error."""
    try:
        count = None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        count = None
    if count is None or count < least or (most is not None and count > most):
        raise RegardError(argument, got=f"{given!r}", needed=needed, repair=repair)
    return count
