"""The additive score of Bahdanau: a dense network with one hidden tanh layer on query and key (eq. 12)."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import check_int
from regard.scores.base import PairScore, Rows, Score, align_batch, check_dim, check_dtype
from regard.torch_compat import is_traced

# The values that a bound of the activations can take: quarters up to 6, halves up to 8.
GRID = (*(step / 4 for step in range(4, 25)), 6.5, 7.0, 7.5, 8.0)
START = 6.0
# Measuring the activations costs two small reductions, so only one call in so many is measured.
CALLS_PER_MEASUREMENT = 16
# One token in so many may have activations beyond the range: correcting them costs less than a wider range.
TOKENS_PER_OUTLIER = 64


@dataclass(slots=True, eq=False)
class AdditivePair(PairScore):
    """w' tanh(a + b) for projected queries a and keys b (eq. 12).

    query: (*batch, queries, hidden). key: (*batch, keys, hidden). weight: (*batch, 1, hidden). reach: the
    largest |a| and |b| for which a backend may approximate tanh; it does not change the score.
    """

    kind: ClassVar[str] = "additive"

    weight: Tensor
    reach: tuple[float, float]

    def scores(self, rows: Rows | None = None, allowed: Tensor | None = None) -> Tensor:
        """Return w' tanh(a + b)."""
        del allowed
        query, key = self._tokens(rows)
        hidden = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh_()
        weight = self.weight.to(hidden.dtype)
        if weight.numel() == weight.shape[-1]:  # one w for the whole batch: one product forward, and one backward
            return hidden @ weight.flatten()
        return (hidden @ weight.unsqueeze(-1)).squeeze(-1)

    def parameters(self) -> tuple[Tensor, ...]:
        """Return w."""
        return (self.weight,)

    def replace(self, query: Tensor, key: Tensor, *parameters: Tensor) -> Self:
        """Return the same score for other tokens and, if given, another w."""
        (weight,) = parameters or (self.weight,)
        return type(self)(query, key, weight, self.reach)


class ActivationRange:
    """The expected largest |activation| of queries and of keys, measured during training.

    A backend that approximates tanh on a range needs the range before it sees the data. The range must not come from
    the batch in evaluation, where one outlier would change the results of the other sequences in the batch. So it
    belongs to the score: training updates it, evaluation uses it, and activations beyond it are corrected one by one.
    The measurement is read some calls later, so that no call waits for the GPU.

    Attributes:
        range: the bounds (query, key), values of `GRID`.
    """

    def __init__(self) -> None:
        """Start with a wide range."""
        self.range = (START, START)
        self._calls = 0
        self._pending: tuple[Tensor, torch.cuda.Event] | None = None

    def observe(self, query: Tensor, key: Tensor) -> None:
        """Measure projected tokens (*batch, tokens, hidden) on a GPU, and use what an earlier call measured."""
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
            with torch.no_grad():
                largest = torch.stack([_large_activation(query), _large_activation(key)])
            arrived = torch.empty(2, device="cpu", pin_memory=True)
            arrived.copy_(largest, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._pending = arrived, event
        self._calls += 1

    def update(self, query: float, key: float) -> None:
        """Set each bound to the value of `GRID` that includes this |activation|."""
        self.range = round_up(query), round_up(key)

    def __getstate__(self) -> dict:
        """Return the state without a pending measurement, which belongs to this process."""
        return {"range": self.range, "_calls": 0, "_pending": None}


def round_up(largest: float) -> float:
    """Return the smallest value of `GRID` that is not below `largest`, or the last; NaN gives the first."""
    return next((step for step in GRID if not largest > step), GRID[-1])


def _large_activation(tokens: Tensor) -> Tensor:
    """Return the largest |activation| after one token in TOKENS_PER_OUTLIER, the largest ones, is left out."""
    largest = tokens.detach().abs().amax(-1).flatten().float()
    return largest.kthvalue(largest.numel() - largest.numel() // TOKENS_PER_OUTLIER).values


class Additive(Score):
    """w' tanh(Wq q + Wk k), for queries and keys of any sizes (eq. 12).

    `Additive(query_dim, key_dim, hidden_dim)` has all three parameters. `Additive.of_projected(hidden_dim, heads)` has
    only w: its queries and keys are projected already, as in a multi-head layer whose projections are Wq and Wk.

    Args:
        query_dim: size of a query.
        key_dim: size of a key.
        hidden_dim: number of hidden units.

    Attributes:
        reach: the range of |Wq q| and |Wk k|. With a loose `tolerance` a GPU approximates tanh inside it and
            corrects what lies outside. Training on a GPU updates it, evaluation does not.

    Raises:
        RegardError: if a size is not a positive whole number.

    >>> Additive(3, 4, 8).weight.shape
    torch.Size([8])
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        """Draw the projections and w as a linear layer does."""
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
        """Return an additive score without projections; with `heads`, one w per head, the last batch axis."""
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
        """Return w' tanh(a + b) for projected queries a and keys b."""
        if self.training and torch.is_grad_enabled():
            self.reach.observe(query, key)
        return AdditivePair(query, key, align_batch(self.weight, query), self.reach.range)

    def _project(self, argument: str, tokens: Tensor, weight: Tensor | None) -> Tensor:
        if weight is None:
            check_dim(argument, tokens, self.hidden_dim, "Additive")
            return tokens
        check_dim(argument, tokens, weight.shape[-1], "Additive")
        check_dtype(argument, tokens, weight, "Additive")
        return functional.linear(tokens, weight)

    def extra_repr(self) -> str:
        """Return the sizes."""
        if self.query_weight is None or self.key_weight is None:
            return f"hidden_dim={self.hidden_dim}, projected"
        sizes = (self.query_weight.shape[-1], self.key_weight.shape[-1], self.hidden_dim)
        return "query_dim={}, key_dim={}, hidden_dim={}".format(*sizes)


def _uniform(*shape: int) -> Tensor:
    return (torch.rand(shape) * 2 - 1) / math.sqrt(shape[-1])
