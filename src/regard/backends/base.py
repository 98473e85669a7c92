"""The interface of backends: `Problem`, `Result`, `Plan`, `Refusal` and the base class `Backend`."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.checks import accumulation_dtype, common_batch, is_autocast_enabled
from regard.masks.bound import BoundMask
from regard.scores.base import CallablePair, PairScore

Bias = Tensor | Callable[[Tensor, Tensor], Tensor]
"""A tensor that broadcasts to (*batch, queries, keys), or a callable of query and key positions that returns one."""
BatchIndex = tuple[int | slice, ...]
"""An index into the first batch axes, with one entry for each of these axes."""
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
        has_one_batch: whether query, key and value are known to have the same batch axes; False if they broadcast or if
            it is not known.
        seed: decides which weights dropout drops, int64 (); with torch.vmap it may have the mapped axes.
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
    seed: Tensor | None = None

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
        """The batch shape that query, key, value and the parameters of the score broadcast to."""
        pair = self.pair
        return common_batch(pair.query, pair.key, self.value, *pair.parameters(), argument="score")

    @property
    def elements(self) -> int:
        """Number of entries of the largest tensor of the reference: all pairs of tokens times `pair.elements()`."""
        return math.prod(self.batch) * self.queries * self.keys * self.pair.elements()

    @property
    def uses_callable(self) -> bool:
        """Whether a function of the user computes the scores or the bias."""
        return isinstance(self.pair, CallablePair) or callable(self.bias)

    @property
    def full_batch(self) -> tuple[int, ...]:
        """The batch shape that all tensors broadcast to, those of bias, mask and dropout included.

        It differs from `batch` only inside torch.vmap, where a bias, a mask or the seed of dropout may have a batch
        axis that queries, keys and values do not have.
        """
        seed, rank = self.seed, self.value.ndim
        tensors = self._replace(seed=None).all_tensors()
        if seed is not None and seed.ndim:
            tensors.append(seed.reshape(*seed.shape, *[1] * (rank - seed.ndim)))
        return common_batch(*tensors)

    def all_tensors(self) -> list[Tensor]:
        """Return query, key, the parameters of the score, value, bias, seed and the tensors of the mask."""
        seed = [] if self.seed is None else [self.seed]
        mask = [] if self.mask is None else self.mask.tensors()
        # Without sizes, which torch.jit.trace turns into tensors without axes.
        return [*self.operands(), *seed, *(tensor for tensor in mask if tensor.ndim)]

    def operands(self) -> list[Tensor]:
        """Return the tensors that can have a gradient: query, key, the parameters of the score, value and bias."""
        bias = [self.bias] if isinstance(self.bias, Tensor) else []
        return [self.pair.query, self.pair.key, *self.pair.parameters(), self.value, *bias]

    def additive_bound(self, tanh_error: float) -> str:
        """Describe the error bound of an additive score.

        Args:
            tanh_error: largest error of one tanh.

        Returns:
            The bound in words, as `regard.why` prints it.
        """
        (weight,) = self.pair.parameters()
        total = tanh_error * float(weight.detach().abs().sum(-1).max())
        return f"at most {tanh_error:.2g} for each tanh, {total:.2g} for the sum over hidden units"

    def select_batch(self, index: BatchIndex) -> "Problem":
        """Return the problem of a part of the batch, for computing its scores.

        The sink is not selected. A callable score or bias is not supported, because it expects the whole batch.

        Args:
            index: an integer or a slice for each of the first batch axes.

        Returns:
            The problem of the selected part.
        """
        batch = self.batch

        def pick(tensor: Tensor) -> Tensor:
            # In an axis of size 1 that is shared over the batch, an integer becomes 0 and a slice keeps the axis.
            is_shared = [tensor.shape[axis] == 1 < size for axis, size in enumerate(batch)]
            own_index = [
                (0 if isinstance(entry, int) else slice(None)) if is_shared[axis] else entry
                for axis, entry in enumerate(index)
            ]
            return tensor[tuple(own_index)]

        mask = None if self.mask is None else self.mask.map(pick)
        bias = pick(self.bias) if isinstance(self.bias, Tensor) else None
        return self._replace(
            pair=self.pair.map(pick), value=pick(self.value), mask=mask, bias=bias, has_one_batch=False
        )


class Result(NamedTuple):
    """What a backend computes for a problem.

    Attributes:
        output: (*batch, queries, value_dim).
        log_mass: (*batch, queries), or None if the call does not need it.
        weights: (*batch, queries, keys) before dropout, or None if the call does not need them.
    """

    output: Tensor
    log_mass: Tensor | None = None
    weights: Tensor | None = None


class Refusal(NamedTuple):
    """Why a backend does not run a problem.

    Attributes:
        backend: name of the backend.
        reason: why, as the end of "<backend> refuses: ...".
    """

    backend: str
    reason: str


class Plan(NamedTuple):
    """The decision of a backend to run a problem.

    Attributes:
        backend: name of the backend.
        run: the computation.
        reads_padding: whether `run` reads keys and values that are padding, so that they must be set to 0 before.
    """

    backend: str
    run: Callable[[Problem], Result]
    reads_padding: bool = True


class Backend(ABC):
    """A way to compute attention.

    Attributes:
        name: the name for `backend=`: "torch", "triton", "reference" or "blocked".
    """

    name: str

    @abstractmethod
    def plan(self, problem: Problem, need: Need) -> Plan | Refusal:
        """Decide whether and how to run a problem, without computing anything.

        Args:
            problem: the call after preparation.
            need: what the caller needs: the output, also log_mass, or also the weights.

        Returns:
            A plan, or a refusal with its reason.
        """

    def error_bound(self, problem: Problem) -> str:
        """Describe the promised error of one score.

        Args:
            problem: the call after preparation, with zeroed padding.

        Returns:
            The bound in words, as `regard.why` prints it.
        """
        accumulation = accumulation_dtype(problem.pair.query.dtype)
        if problem.pair.kind == "additive":
            return problem.additive_bound(torch.finfo(accumulation).eps)
        dtype = str(accumulation).removeprefix("torch.")
        return f"the rounding of {dtype}, the dtype of scores, softmax and sums"

    def refuse(self, reason: str) -> Refusal:
        """Return a refusal of this backend.

        Args:
            reason: why, as the end of "<backend> refuses: ...".

        Returns:
            The refusal.
        """
        return Refusal(self.name, reason)


def full_precision(device: torch.device) -> AbstractContextManager:
    """Return a context that disables autocast.

    Scores and sums accumulate in float32 even under autocast, which casts the inputs when they are prepared.
    """
    return torch.autocast(device.type, enabled=False) if is_autocast_enabled(device) else nullcontext()
