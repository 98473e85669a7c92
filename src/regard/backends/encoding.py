"""A problem as tensors, text and numbers, which is all that a custom operator of torch accepts.

The numbers are not part of the text, because they may be symbolic while torch traces the caller.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.backends.base import Problem
from regard.masks import bound
from regard.scores.additive import AdditivePair
from regard.scores.base import PairScore
from regard.scores.distance import DistancePair
from regard.scores.dot import DotPair
from regard.scores.kernels import KERNELS

Options = tuple[Any, ...]
"""What an operator decides about a problem before it runs: numbers and booleans."""

# Not a line break, because inductor of torch 2.11 writes it unquoted into the program that it generates.
SEPARATOR = "|"


@dataclass(frozen=True)
class Constants:
    """Everything of a problem that is not a tensor.

    Not a tuple, because torch.func would treat its entries as arguments. Not iterable either, because torch.compile of
    torch 2.11 cannot unpack an object by a method `__iter__` written in Python.

    Attributes:
        text: structure of the problem as JSON, `SEPARATOR`, and structure of its mask.
        numbers: floats, in the order of the text.
        sizes: integers of the mask.
    """

    text: str
    numbers: Sequence[float]
    sizes: Sequence[int]


def flatten(problem: Problem, options: Options = ()) -> tuple[list[Tensor], Constants]:
    """Return a problem as tensors, text and numbers.

    Args:
        problem: its pair score is a dot product, a distance or an additive score, and its bias is a tensor or None.
        options: decisions of an operator, which the text includes.

    Returns:
        The tensors, in the order of `Problem.all_tensors`, and the constants.
    """
    mask_text, _, sizes = ("", [], []) if problem.mask is None else bound.flatten(problem.mask)
    has_bias, has_seed = problem.bias is not None, problem.seed is not None
    settings = _flatten_score(problem.pair), has_bias, has_seed, float(problem.dropout), problem.tolerance, options
    numbers: list[float] = []
    text = f"{_encode(settings, numbers)}{SEPARATOR}{mask_text}"
    return problem.all_tensors(), Constants(text, numbers, sizes)


def unflatten(tensors: Sequence[Tensor], constants: Constants) -> tuple[Problem, Options]:
    """Return the problem and the options from what `flatten` returned."""
    settings, mask_text = constants.text.split(SEPARATOR)
    decoded = _decode(json.loads(settings), iter(constants.numbers))
    score_settings, has_bias, has_seed, dropout, tolerance, options = decoded
    pair, rest = _unflatten_score(score_settings, tensors)
    value, *rest = rest
    bias = rest.pop(0) if has_bias else None
    seed = rest.pop(0) if has_seed else None
    mask = bound.unflatten(mask_text, rest, constants.sizes) if mask_text else None
    problem = Problem(pair, value, mask, bias, dropout, tolerance, padding_is_zero=True, seed=seed)
    return problem, options


def _encode(constant: object, numbers: list[float]) -> str:
    """Return a constant as JSON, with "float" for each float, which is appended to `numbers`.

    Not json.dumps, because torch.compile cannot trace it.
    """
    if isinstance(constant, tuple):
        return f"[{','.join([_encode(part, numbers) for part in constant])}]"
    if isinstance(constant, float):
        numbers.append(constant)
        return '"float"'
    if isinstance(constant, str):
        return f'"{constant}"'
    if constant is None:
        return "null"
    if isinstance(constant, bool):
        return "true" if constant else "false"
    return str(constant)


def _decode(node: Any, numbers: Iterator[float]) -> Any:
    if isinstance(node, list):
        return tuple([_decode(part, numbers) for part in node])
    return next(numbers) if node == "float" else node


def _flatten_score(pair: PairScore) -> tuple[object, ...]:
    """Return the settings of a score: its kind and its constants."""
    if isinstance(pair, DotPair):
        return pair.kind, float(pair.scale), pair.softcap
    if isinstance(pair, DistancePair):
        return pair.kind, pair.kernel.name
    assert isinstance(pair, AdditivePair)
    return pair.kind, *pair.reach


def _unflatten_score(settings: Sequence[Any], tensors: Sequence[Tensor]) -> tuple[PairScore, list[Tensor]]:
    """Return the score, made from its settings and the first tensors, and the remaining tensors."""
    kind, *constants = settings
    query, key, *rest = tensors
    if kind == DotPair.kind:
        return DotPair(query, key, *constants), rest
    parameter, *rest = rest
    if kind == DistancePair.kind:
        return DistancePair(query, key, parameter, KERNELS[constants[0]]), rest
    return AdditivePair(query, key, parameter, (constants[0], constants[1])), rest
