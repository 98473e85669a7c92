"""What a picture is drawn from: tensors of any device and dtype, arrays and lists, as NumPy arrays or one float."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from regard.errors import RegardError

Numbers = Tensor | np.ndarray | Sequence[float] | Sequence[Sequence[float]] | Sequence[Tensor]


def as_array(argument: str, numbers: Numbers, *, axes: tuple[str, ...]) -> np.ndarray:
    """The numbers as float64, refused unless they have exactly the named axes, none of them empty."""
    if isinstance(numbers, tuple | list) and any(isinstance(part, Tensor) for part in numbers):
        numbers = [_as_plain(part) for part in numbers]
    numbers = _as_plain(numbers)
    try:
        array = np.asarray(numbers, dtype=np.float64)
    except (TypeError, ValueError):
        raise _refusal(argument, type(numbers).__name__, axes) from None
    if array.ndim != len(axes) or array.size == 0:
        raise _refusal(argument, f"shape {array.shape}", axes)
    return array


def as_number(given: object) -> float:
    """A single number, of NumPy or torch too; NaN for anything else, so that it lies in no range.

    >>> as_number(np.float32(0.5)), as_number("a")
    (0.5, nan)
    """
    if isinstance(given, Tensor | np.ndarray) and given.ndim == 0:
        given = given.item()
    if isinstance(given, bool) or not isinstance(given, Real):
        return math.nan
    try:
        return float(given)
    except OverflowError:
        return math.nan


def _as_plain(numbers: object) -> Any:
    return numbers.detach().to_dense().cpu().double().numpy() if isinstance(numbers, Tensor) else numbers


def _refusal(argument: str, got: str, axes: tuple[str, ...]) -> RegardError:
    if len(axes) == 1:
        repair = f"Choose one entry of each other axis first, for example {argument}[:, 0]."
    else:
        repair = f"Choose one batch entry and one head first, for example {argument}[0, 0]; a record has weights()."
    needed = f"numbers of shape ({', '.join(axes)}), at least one along each axis"
    return RegardError(argument, got=got, needed=needed, repair=repair)
