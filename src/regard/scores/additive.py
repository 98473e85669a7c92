"""The additive score of Bahdanau et al. (2015): a network with one hidden tanh layer on query and key (eq. 12)."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import Rows, check_int
from regard.scores.base import PairScore, Score, align_batch, check_dim, check_dtype
from regard.torch_compat import is_traced

LOGISTIC_ERROR = 4.0
"""Bound on the error of a tanh in `AdditivePair.scores`, in units of the dtype's eps."""
GRID = (*(step / 4 for step in range(4, 25)), 6.5, 7.0, 7.5, 8.0)
"""Possible bounds of the activations: from 1 to 6 in steps of 1/4, then to 8 in steps of 1/2."""
INITIAL_BOUND = 6.0
# A measurement takes two small reductions on the GPU. One call in 16 is measured, which hides their cost.
CALLS_PER_MEASUREMENT = 16
# One token in 64 may have activations outside the range, because correcting them costs less than a wider range.
TOKENS_PER_OUTLIER = 64


@dataclass(slots=True, eq=False)
class AdditivePair(PairScore):
    """w' tanh(a + b) for projected queries a and projected keys b (eq. 12).

    Attributes:
        query: (*batch, queries, hidden).
        key: (*batch, keys, hidden).
        weight: (*batch, 1, hidden), the vector w.
        reach: the range (bound of |a|, bound of |b|) in which a backend may approximate tanh. The score does not depend
            on it.
    """

    kind: ClassVar[str] = "additive"

    weight: Tensor
    reach: tuple[float, float]

    def scores(self, rows: Rows | None = None, allowed: Tensor | None = None) -> Tensor:
        """Return w' tanh(a + b).

        tanh x = 1 - 2 r, where r is the logistic function of -2x, which torch computes faster than a tanh.
        """
        del allowed
        query, key = self._tokens(rows)
        r = ((-2 * query).unsqueeze(-2) + (-2 * key).unsqueeze(-3)).sigmoid_()
        weight = self.weight.to(r.dtype)
        if weight.numel() == weight.shape[-1]:  # the batch shares one w, so one matrix-vector product is enough
            return torch.add(weight.sum(), r @ weight.flatten(), alpha=-2)
        return torch.add(weight.sum(-1, keepdim=True), (r @ weight.unsqueeze(-1)).squeeze(-1), alpha=-2)

    def parameters(self) -> tuple[Tensor, ...]:
        """Return w."""
        return (self.weight,)

    def replace(self, query: Tensor, key: Tensor, *parameters: Tensor) -> Self:
        """Return the same closed form for other tokens and, if given, another w."""
        (weight,) = parameters or (self.weight,)
        return type(self)(query, key, weight, self.reach)


class ActivationRange:
    """The range of activations: a bound of |Wq q| and a bound of |Wk k|, measured during training.

    A backend that approximates tanh needs the range of the activations before it sees the data. In evaluation the range
    must not depend on the batch, because an outlier would then change the results of other sequences in the batch. So
    the score stores the range: training updates it, evaluation uses it, and backends correct activations outside of it.
    A measurement is read some calls later, so that no call waits for the GPU. The range is pickled with the score, but
    it is not part of its state dict.

    Attributes:
        range: the bounds (query, key), values of `GRID`.
    """

    def __init__(self) -> None:
        """Start with a wide range."""
        self.range = (INITIAL_BOUND, INITIAL_BOUND)
        self._calls = 0
        self._pending: tuple[Tensor, torch.cuda.Event] | None = None

    def observe(self, query: Tensor, key: Tensor) -> None:
        """Start a measurement, and update the range if an earlier measurement has finished.

        Does nothing on a CPU, while the call is traced, and while a CUDA graph is captured.

        Args:
            query: (*batch, queries, hidden), projected queries.
            key: (*batch, keys, hidden), projected keys.
        """
        if is_traced():
            return
        if query.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return
        if not query.numel() or not key.numel():
            return
        if self._pending is not None and self._pending[1].query():
            self.update(*self._pending[0].tolist())
            self._pending = None
        if self._pending is None and self._calls % CALLS_PER_MEASUREMENT == 0:
            bounds = torch.stack([_activation_bound(query), _activation_bound(key)])
            bounds_on_cpu = torch.empty(2, device="cpu", pin_memory=True)
            bounds_on_cpu.copy_(bounds, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._pending = bounds_on_cpu, event
        self._calls += 1

    def update(self, query: float, key: float) -> None:
        """Set the range to the smallest values of `GRID` that are not below the measured bounds.

        Args:
            query: bound of |Wq q|.
            key: bound of |Wk k|.
        """
        self.range = round_up(query), round_up(key)

    def __getstate__(self) -> dict:
        """Return the state without the pending measurement, whose CUDA event cannot leave this process."""
        return {"range": self.range, "_calls": 0, "_pending": None}


def round_up(largest: float) -> float:
    """Return the smallest value of `GRID` that is at least `largest`, or the last value; the first value for NaN."""
    return next((step for step in GRID if not largest > step), GRID[-1])


def _activation_bound(tokens: Tensor) -> Tensor:
    """Return a bound that at most one token in TOKENS_PER_OUTLIER exceeds, without gradient."""
    largest = tokens.detach().abs().amax(-1).flatten().float()
    return largest.kthvalue(largest.numel() - largest.numel() // TOKENS_PER_OUTLIER).values


class Additive(Score):
    """The additive score w' tanh(Wq q + Wk k), for queries and keys of any sizes (eq. 12; Bahdanau et al. 2015).

    The parameters are Wq, Wk and w. `Additive.of_projected(hidden_dim, heads)` has only w and takes projected queries
    and keys, as in a multi-head layer whose projections are Wq and Wk.

    Args:
        query_dim: size of a query.
        key_dim: size of a key.
        hidden_dim: number of hidden units.

    Attributes:
        reach: the `ActivationRange`. With a large `tolerance` the GPU kernels approximate tanh inside this
            range and correct activations outside of it. Training on a GPU updates the range, evaluation does not.

    Raises:
        RegardError: if a size is not a positive integer.

    >>> Additive(3, 4, 8).weight.shape
    torch.Size([8])
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        """Draw Wq, Wk and w from the uniform distribution that torch.nn.Linear uses."""
        super().__init__()
        check_int("query_dim", query_dim)
        check_int("key_dim", key_dim)
        check_int("hidden_dim", hidden_dim)
        self.hidden_dim = hidden_dim
        self.query_weight: nn.Parameter | None = nn.Parameter(_uniform(hidden_dim, query_dim))
        self.key_weight: nn.Parameter | None = nn.Parameter(_uniform(hidden_dim, key_dim))
        self.weight = nn.Parameter(_uniform(hidden_dim))
        self.reach = ActivationRange()

    @classmethod
    def of_projected(cls, hidden_dim: int, heads: int | None = None) -> "Additive":
        """Return an additive score whose queries and keys are projected already.

        Args:
            hidden_dim: number of hidden units, which is the size of queries and keys.
            heads: number of heads, each with its own w; None for a single w. The heads are the last batch axis of a
                call.

        Returns:
            A score without Wq and Wk.

        Raises:
            RegardError: if a size is not a positive integer.

        >>> Additive.of_projected(8, heads=2).weight.shape
        torch.Size([2, 8])
        """
        # All draws but the last are discarded. Skipping them would change the w that a seed gives.
        score = cls(1, 1, hidden_dim)
        score.query_weight = score.key_weight = None
        if heads is not None:
            check_int("heads", heads)
            score.weight = nn.Parameter(_uniform(heads, hidden_dim))
        return score

    def prepare_query(self, query: Tensor, first: int = 0) -> Tensor:
        """Return Wq q, (*batch, queries, hidden)."""
        del first
        return self._project("query", query, self.query_weight)

    def prepare_key(self, key: Tensor, first: int = 0) -> Tensor:
        """Return Wk k, (*batch, keys, hidden)."""
        del first
        return self._project("key", key, self.key_weight)

    def pair(self, query: Tensor, key: Tensor) -> AdditivePair:
        """Return the closed form for projected queries and keys; training also updates the range."""
        if self.training and torch.is_grad_enabled():
            self.reach.observe(query, key)
        return AdditivePair(query, key, align_batch(self.weight, query), self.reach.range)

    def _project(self, argument: str, tokens: Tensor, weight: Tensor | None) -> Tensor:
        """Return projected tokens, or the tokens themselves without a weight, (*batch, tokens, hidden)."""
        if weight is None:
            check_dim(argument, tokens, self.hidden_dim, "Additive")
            return tokens
        check_dim(argument, tokens, weight.shape[-1], "Additive")
        check_dtype(argument, tokens, weight, "Additive")
        return functional.linear(tokens, weight)

    def extra_repr(self) -> str:
        """Return the sizes as text."""
        if self.query_weight is None or self.key_weight is None:
            return f"hidden_dim={self.hidden_dim}, projected"
        sizes = (self.query_weight.shape[-1], self.key_weight.shape[-1], self.hidden_dim)
        return "query_dim={}, key_dim={}, hidden_dim={}".format(*sizes)


def _uniform(*shape: int) -> Tensor:
    """Return numbers from the uniform distribution on [-1, 1] / sqrt(last size), as torch.nn.Linear draws them."""
    return (torch.rand(shape) * 2 - 1) / math.sqrt(shape[-1])
