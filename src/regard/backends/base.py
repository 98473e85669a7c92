"""What a backend is given and what it answers: `Problem`, `Result`, `Plan`, `Refusal` and the `Backend` protocol."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.checks import accumulation_dtype, common_batch, is_autocast
from regard.masks.bound import BoundMask
from regard.scores.base import CallablePair, PairScore

Bias = Tensor | Callable[[Tensor, Tensor], Tensor]
BatchIndex = tuple[int | slice, ...]
Need = Literal["output", "log_mass", "weights"]
"""What a call needs; each includes the one before."""


class Problem(NamedTuple):
    """One call after preparation: sum_j softmax_j(pair score + bias, where the mask allows) value_j (eq. 1 and 3).

    Attributes:
        pair: score of the prepared queries and keys.
        value: (*batch, keys, value_dim).
        mask: the mask on the sizes of this call.
        bias: a tensor (*batch or 1, queries or 1, keys or 1), or a callable of query positions (queries,) and key
            positions (keys,) that returns a tile.
        dropout: probability with which a weight is dropped.
        tolerance: error allowed for each tanh of an additive score; None for the rounding of the dtype.
        sink: logits of one more key whose value is 0, (*heads); the heads are the last batch axes.
        first_query: position of the first query.
        padding_is_zero: whether the padding of key and value holds 0 already.
        has_one_batch: whether query, key and value have the same batch axes.
    """

    pair: PairScore
    value: Tensor
    mask: BoundMask | None = None
    bias: Bias | None = None
    dropout: float = 0.0
    tolerance: float | None = None
    sink: Tensor | None = None
    first_query: int = 0
    padding_is_zero: bool = False
    has_one_batch: bool = False

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.pair.query.shape[-2]

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.value.shape[-2]

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch shape that all inputs broadcast to."""
        pair = self.pair
        return common_batch(pair.query, pair.key, self.value, *pair.parameters(), argument="score")

    @property
    def elements(self) -> int:
        """How many numbers the textbook form holds at once: for each pair one, times the width of a difference."""
        return math.prod(self.batch) * self.queries * self.keys * self.pair.elements()

    @property
    def uses_callable(self) -> bool:
        """Whether a function of the user computes the scores or the bias."""
        return isinstance(self.pair, CallablePair) or callable(self.bias)

    def additive_bound(self, each: float) -> str:
        """Return the promise for an additive score whose tanh has an error of at most `each`."""
        (weight,) = self.pair.parameters()
        total = each * float(weight.detach().abs().sum(-1).max())
        return f"at most {each:.2g} for each tanh, {total:.2g} for the sum over hidden units"

    def select_batch(self, index: BatchIndex) -> "Problem":
        """Return the problem of a part of the batch; not for problems that use a callable."""
        batch = self.batch

        def pick(tensor: Tensor) -> Tensor:
            # An axis that is shared stays shared: a number takes its only entry, a slice leaves it alone.
            shared = [tensor.shape[axis] == 1 < size for axis, size in enumerate(batch)]
            own = [(0 if isinstance(i, int) else slice(None)) if shared[axis] else i for axis, i in enumerate(index)]
            return tensor[tuple(own)]

        mask = None if self.mask is None else self.mask.map(pick)
        bias = pick(self.bias) if isinstance(self.bias, Tensor) else None
        return self._replace(
            pair=self.pair.map(pick), value=pick(self.value), mask=mask, bias=bias, has_one_batch=False
        )


class Result(NamedTuple):
    """output (*batch, queries, value_dim), log_mass (*batch, queries), weights (*batch, queries, keys)."""

    output: Tensor
    log_mass: Tensor | None = None
    weights: Tensor | None = None


class Refusal(NamedTuple):
    """Why a backend does not run a problem."""

    backend: str
    reason: str


class Plan(NamedTuple):
    """The decision of a backend to run a problem.

    backend: its name. run: the computation. reads_padding: whether `run` reads keys and values that are padding.
    """

    backend: str
    run: Callable[[Problem], Result]
    reads_padding: bool = True


class Backend(ABC):
    """A way to compute attention.

    Attributes:
        name: the name for `backend=`.
    """

    name: str

    @abstractmethod
    def plan(self, problem: Problem, need: Need) -> Plan | Refusal:
        """Decide whether and how to run a problem; computes nothing."""

    def error_bound(self, problem: Problem) -> str:
        """Return the promised error of one score, as `regard.why` prints it."""
        accumulation = accumulation_dtype(problem.pair.query.dtype)
        if problem.pair.kind == "additive":
            return problem.additive_bound(torch.finfo(accumulation).eps)
        dtype = str(accumulation).removeprefix("torch.")
        return f"the rounding of {dtype}, in which scores, softmax and sums are formed"

    def refuse(self, reason: str) -> Refusal:
        """Return a refusal of this backend."""
        return Refusal(self.name, reason)


def full_precision(device: torch.device) -> AbstractContextManager:
    """Turn autocast off: scores and sums accumulate in float32, and the inputs were cast when they were prepared."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device) else nullcontext()
