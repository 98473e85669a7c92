"""The closed forms of a pair score: records of prepared tensors that a backend knows how to run.

A form says WHAT is computed for each pair of query and key, never how. Every tensor has the rank of the
batch plus two, with size 1 on the axes it is shared over.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from regard.scores.links import Link


class DotForm(NamedTuple):
    """scale * q'k, optionally bent by softcap * tanh(. / softcap).

    query: (*batch, queries, dim), key: (*batch, keys, dim).
    """

    query: Tensor
    key: Tensor
    scale: float
    softcap: float | None = None


class DistanceForm(NamedTuple):
    """link(|q - k|^2 / width^2), the logarithm of a radial kernel.

    query: (*batch, queries, dim), key: (*batch, keys, dim), width: (*batch, queries or 1, 1).
    """

    query: Tensor
    key: Tensor
    width: Tensor
    link: Link


class AdditiveForm(NamedTuple):
    """w' tanh(a + b) with a, b the projected query and key (eq. 12).

    query: (*batch, queries, hidden), key: (*batch, keys, hidden), weight: (*batch, 1, hidden). reach: up to which |a|
    and |b| a backend may approximate; it counts for nothing else.
    """

    query: Tensor
    key: Tensor
    weight: Tensor
    reach: tuple[float, float]


class CallableForm(NamedTuple):
    """A user's own function of (..., queries, dim) and (..., keys, dim) that returns (..., queries, keys).

    Each entry of the result may depend on its own pair only: backends call it on blocks.
    """

    query: Tensor
    key: Tensor
    function: Callable[[Tensor, Tensor], Tensor]


Form = DotForm | DistanceForm | AdditiveForm | CallableForm
