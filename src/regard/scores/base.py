"""What a score is: work per token (`Score`), and the equation of a pair of tokens (`PairScore`)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor, nn

from regard.checks import accumulation_dtype, broadcast_batch, describe, is_cast
from regard.errors import RegardError

Rows = slice | Tensor
"""Positions along an axis: a slice with start and stop, or an int64 tensor."""


@dataclass(slots=True, eq=False)
class PairScore(ABC):
    """The score of prepared queries and keys: their tensors, and the equation of one pair.

    Every tensor has one axis for each batch axis, of size 1 where it is shared, and two more. To add a closed form,
    write a subclass: `reference` and `blocked` run it as it is. Backends with code of their own for a form find it by
    its `kind`.

    Attributes:
        query: (*batch, queries, dim).
        key: (*batch, keys, dim).
        kind: name of the closed form.
    """

    kind: ClassVar[str] = "custom"

    query: Tensor
    key: Tensor

    @abstractmethod
    def scores(self, rows: Rows | None = None, allowed: Tensor | None = None) -> Tensor:
        """Return the score of each pair, in the accumulation dtype.

        Args:
            rows: which queries; all by default.
            allowed: bool, broadcastable to the result; what the mask allows. Forbidden pairs may get any score.

        Returns:
            (*batch, rows, keys).
        """

    @abstractmethod
    def replace(self, query: Tensor, key: Tensor, *parameters: Tensor) -> Self:
        """Return the same score for other tensors; `parameters` replace those of `parameters()`, in that order."""

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the tensors beside query and key."""
        return ()

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the same score with every tensor changed."""
        return self.replace(change(self.query), change(self.key), *map(change, self.parameters()))

    def elements(self) -> int:
        """Return how many numbers the textbook form holds for one pair."""
        return self.query.shape[-1]

    def _tokens(self, rows: Rows | None) -> tuple[Tensor, Tensor]:
        """Return the chosen queries and all keys, in the accumulation dtype."""
        dtype = accumulation_dtype(self.query.dtype)
        query = self.query if rows is None else self.query[..., rows, :]
        return query.to(dtype), self.key.to(dtype)


@dataclass(slots=True, eq=False)
class CallablePair(PairScore):
    """A user's function of (..., queries, dim) and (..., keys, dim) that returns (..., queries, keys) (eq. 3).

    Each score may depend on its own pair only, because backends call the function on blocks.
    """

    kind: ClassVar[str] = "callable"

    function: Callable[[Tensor, Tensor], Tensor]

    def scores(self, rows: Rows | None = None, allowed: Tensor | None = None) -> Tensor:
        """f(q, k)."""
        del allowed
        query = self.query if rows is None else self.query[..., rows, :]
        return self.function(query, self.key).to(accumulation_dtype(self.query.dtype))

    def replace(self, query: Tensor, key: Tensor, *parameters: Tensor) -> Self:
        """Return the same function of other tokens."""
        return type(self)(query, key, self.function)


class Score(nn.Module, ABC):
    """A scoring function f(q, k) of eq. 3, split into work per token and work per pair.

    `prepare_query` and `prepare_key` run once per token (projections, scalings, positions) under ordinary autograd; a
    decoder keeps what `prepare_key` returned and never computes it again. `pair` returns the closed form of the rest,
    which is the only part that a backend computes for each pair.

    A plain callable of (..., queries, dim) and (..., keys, dim) needs none of this: pass it as it is.
    """

    @property
    def can_round_tokens(self) -> bool:
        """Whether autocast may round queries and keys to half precision before this score compares them."""
        return True

    def prepare_query(self, query: Tensor, first: int = 0) -> Tensor:
        """Return prepared queries.

        Args:
            query: (*batch, queries, query_dim).
            first: position of the first query.

        Returns:
            (*batch, queries, dim).
        """
        del first
        return query

    def prepare_key(self, key: Tensor, first: int = 0) -> Tensor:
        """Return prepared keys.

        Args:
            key: (*batch, keys, key_dim).
            first: position of the first key.

        Returns:
            (*batch, keys, dim).
        """
        del first
        return key

    def sink_logits(self) -> Tensor | None:
        """Return the logits of one more key that every query sees and whose value is 0, (heads,); None without one."""
        return None

    @abstractmethod
    def pair(self, query: Tensor, key: Tensor) -> PairScore:
        """Return the closed form for prepared queries and keys."""


def check_equal_dims(query: Tensor, key: Tensor, score: str) -> None:
    """Raise unless queries and keys have the same size."""
    if query.shape[-1] != key.shape[-1]:
        raise RegardError(
            "key",
            got=f"dim {key.shape[-1]}, while query has dim {query.shape[-1]}",
            needed=f"equal last axes: {score} compares query and key entry by entry",
            repair="Use Bilinear or Additive, which take query and key of different sizes, or project one.",
        )


def check_dim(argument: str, tensor: Tensor, dim: int, score: str) -> None:
    """Raise unless tokens have the size the score was built for."""
    if tensor.shape[-1] != dim:
        raise RegardError(
            argument,
            got=f"dim {tensor.shape[-1]}",
            needed=f"dim {dim}, as this {score} was built",
            repair=f"Build the {score} for {tensor.shape[-1]}, or pass the {argument} it was built for.",
        )


def check_dtype(argument: str, tokens: Tensor, parameter: Tensor, score: str) -> None:
    """Raise unless tokens have the dtype and device of the parameters; autocast converts all dtypes but float64."""
    if tokens.dtype != parameter.dtype and not (is_cast(tokens) and is_cast(parameter)):
        raise RegardError(
            argument,
            got=f"{describe(tokens)}",
            needed=f"{parameter.dtype}, the dtype of the parameters of this {score}",
            repair=f"Move the score with score.to({tokens.dtype}), or convert the {argument}.",
        )
    if tokens.device != parameter.device:
        raise RegardError(
            argument,
            got=f"{describe(tokens)}",
            needed=f"{parameter.device}, where the parameters of this {score} are",
            repair=f'Move the score with score.to("{tokens.device}"), or move the {argument}.',
        )


def align_batch(parameter: Tensor, tokens: Tensor) -> Tensor:
    """Return a parameter (*axes, dim) with the rank of prepared tokens, (1, ..., *axes, 1, dim)."""
    aligned = parameter.unsqueeze(-2)
    if aligned.ndim > tokens.ndim:
        raise RegardError(
            "score",
            got=f"a parameter with {parameter.ndim - 1} batch axes",
            needed=f"at most {tokens.ndim - 2}, the batch axes of the query",
            repair="Give query, key and value one batch axis for each axis of the score's parameters.",
        )
    aligned = aligned.reshape((1,) * (tokens.ndim - aligned.ndim) + aligned.shape)
    broadcast_batch("score", tokens.shape[:-2], aligned.shape[:-2])
    return aligned
