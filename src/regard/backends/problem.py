"""One call of attention after preparation: the record that every backend is given."""

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from regard.masks.placed import Placed
from regard.scores.forms import AdditiveForm, CallableForm, DistanceForm, Form
from regard.shapes import broadcast_batch

Bias = Tensor | Callable[[Tensor, Tensor], Tensor]


class Problem(NamedTuple):
    """What to pool: sum_j softmax_j(form + bias, where the mask allows) value_j (eq. 1 and 3).

    value: (*batch, keys, value_dim). bias: a tensor of full rank, (*batch or 1, queries or 1, keys or 1), or a
    callable of positions (queries,) and (keys,) that returns a tile. first_query: the position of query 0.
    """

    form: Form
    value: Tensor
    mask: Placed | None = None
    bias: Bias | None = None
    dropout: float = 0.0
    tolerance: float | None = None
    first_query: int = 0

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.form.query.shape[-2]

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.value.shape[-2]

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch shape that all inputs broadcast to."""
        shape = tuple(self.form.query.shape[:-2])
        for tensor in (self.form.key, self.value, *self.parameters):
            if tuple(tensor.shape[:-2]) != shape:
                shape = broadcast_batch("score", shape, tensor.shape[:-2])
        return shape

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors of the form beside query and key."""
        match self.form:
            case DistanceForm(width=width):
                return (width,)
            case AdditiveForm(weight=weight):
                return (weight,)
        return ()

    @property
    def work(self) -> int:
        """How many elements the textbook form holds at once: pairs, times the hidden width if additive."""
        pairs = math.prod(self.batch) * self.queries * self.keys
        match self.form:
            case AdditiveForm(query=query):
                return pairs * query.shape[-1]
            case DistanceForm(query=query) | CallableForm(query=query):
                return pairs * query.shape[-1]
        return pairs
