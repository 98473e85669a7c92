"""The base classes of scores: `Score` prepares tokens, `PairScore` computes the score of each pair of tokens."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor, nn

from regard.checks import Rows, accumulation_dtype, broadcast_batch, describe, is_cast_by_autocast
from regard.errors import RegardError


@dataclass(slots=True, eq=False)
class PairScore(ABC):
    """The closed form of a score for prepared queries and keys: their tensors and the equation of a pair.

    All tensors have the same rank: the batch axes, each of its full size or 1, and two more. To add a closed form,
    write a subclass with `scores` and `replace`, and with `parameters` if it has tensors beside query and key; the
    backends `reference` and `blocked` can then run it. Backends with kernels for a closed form recognise it by its
    `kind`.

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
            rows: positions of the queries to score; None for all queries.
            allowed: bool, broadcastable to the result, True where the mask allows a pair. The scores of other pairs are
                ignored, so they may have any value.

        Returns:
            (*batch, rows, keys).
        """

    @abstractmethod
    def replace(self, query: Tensor, key: Tensor, *parameters: Tensor) -> Self:
        """Return the same closed form for other tensors.

        Args:
            query: (*batch, queries, dim).
            key: (*batch, keys, dim).
            *parameters: new values for the tensors of `parameters()`, in the same order; without them the old values
                are kept.

        Returns:
            A new closed form of the same class.
        """

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the tensors of the closed form other than query and key."""
        return ()

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the same closed form with `change` applied to every tensor."""
        return self.replace(change(self.query), change(self.key), *map(change, self.parameters()))

    def elements(self) -> int:
        """Return how many numbers the reference materialises for each pair; by default dim, as for q - k."""
        return self.query.shape[-1]

    def _tokens(self, rows: Rows | None) -> tuple[Tensor, Tensor]:
        """Return the selected queries and all keys, in the accumulation dtype."""
        dtype = accumulation_dtype(self.query.dtype)
        return self._queries(rows).to(dtype), self.key.to(dtype)

    def _queries(self, rows: Rows | None) -> Tensor:
        """Return the selected queries, or all of them for None."""
        return self.query if rows is None else self.query[..., rows, :]


@dataclass(slots=True, eq=False)
class CallablePair(PairScore):
    """The scores of a user's function (eq. 3).

    Backends call the function on blocks of queries, so each score must depend on its own query and key only.

    Attributes:
        function: takes (..., queries, dim) and (..., keys, dim) and returns (..., queries, keys).
    """

    kind: ClassVar[str] = "callable"

    function: Callable[[Tensor, Tensor], Tensor]

    def scores(self, rows: Rows | None = None, allowed: Tensor | None = None) -> Tensor:
        """Return the scores that the function computes."""
        del allowed
        return self.function(self._queries(rows), self.key).to(accumulation_dtype(self.query.dtype))

    def replace(self, query: Tensor, key: Tensor, *parameters: Tensor) -> Self:
        """Return the same function with other tokens."""
        return type(self)(query, key, self.function)


class Score(nn.Module, ABC):
    """Base class of scoring functions f(q, k) (eq. 3), split into work per token and work per pair.

    `prepare_query` and `prepare_key` do the work per token, such as projections, scaling and positions, under ordinary
    autograd. A `Memory` stores prepared keys, so that a decoder prepares each key once. `pair` returns the closed form,
    which backends compute for each pair of a query and a key.

    A function of queries and keys does not need this class: pass any callable that takes (..., queries, dim) and
    (..., keys, dim) and returns (..., queries, keys) as `score`.
    """

    @property
    def can_round_tokens(self) -> bool:
        """Whether autocast may convert queries and keys to half precision before this score compares them."""
        return True

    def prepare_query(self, query: Tensor, first: int = 0) -> Tensor:
        """Return prepared queries; the default returns them unchanged.

        Args:
            query: (*batch, queries, query_dim).
            first: position of the first query in the sequence.

        Returns:
            (*batch, queries, dim).
        """
        del first
        return query

    def prepare_key(self, key: Tensor, first: int = 0) -> Tensor:
        """Return prepared keys; the default returns them unchanged.

        Args:
            key: (*batch, keys, key_dim).
            first: position of the first key in the sequence.

        Returns:
            (*batch, keys, dim).
        """
        del first
        return key

    def sink_logits(self) -> Tensor | None:
        """Return the logits of the attention sink, (heads,), or None if the score has no sink.

        An attention sink is one extra key with its own logit and value 0, so that the weights of a query sum to less
        than 1.
        """
        return None

    @abstractmethod
    def pair(self, query: Tensor, key: Tensor) -> PairScore:
        """Return the closed form for prepared queries and keys.

        Args:
            query: (*batch, queries, dim), returned by `prepare_query`.
            key: (*batch, keys, dim), returned by `prepare_key`.

        Returns:
            The tensors and the equation of each pair, which a backend computes.
        """


def check_equal_dims(query: Tensor, key: Tensor, score_name: str) -> None:
    """Raise unless the last axes of queries and keys have equal sizes.

    Args:
        query: (*batch, queries, query_dim).
        key: (*batch, keys, key_dim).
        score_name: name of the score for the error message.

    Raises:
        RegardError: if query_dim and key_dim differ.
    """
    if query.shape[-1] != key.shape[-1]:
        raise RegardError(
            "key",
            got=f"dim {key.shape[-1]}, while query has dim {query.shape[-1]}",
            needed=f"equal last axes, because {score_name} combines entry i of the query with entry i of the key",
            repair="Use Bilinear or Additive, which accept query and key of different sizes, or project one of them.",
        )


def check_dim(argument: str, tokens: Tensor, dim: int, score_name: str) -> None:
    """Raise unless the last axis of the tokens has the size for which the score was built.

    Args:
        argument: name of the argument for the error message, "query" or "key".
        tokens: (*batch, tokens, _).
        dim: the size that is needed.
        score_name: name of the score for the error message.

    Raises:
        RegardError: if the last axis has another size.
    """
    if tokens.shape[-1] != dim:
        raise RegardError(
            argument,
            got=f"dim {tokens.shape[-1]}",
            needed=f"dim {dim}, for which this {score_name} was built",
            repair=f"Build the {score_name} for dim {tokens.shape[-1]}, or pass a {argument} with dim {dim}.",
        )


def check_dtype(argument: str, tokens: Tensor, parameter: Tensor, score_name: str) -> None:
    """Raise unless tokens and a parameter have one device and one dtype, or dtypes that autocast converts.

    Args:
        argument: name of the argument for the error message, "query" or "key".
        tokens: (*batch, tokens, dim).
        parameter: a parameter of the score.
        score_name: name of the score for the error message.

    Raises:
        RegardError: if the dtypes differ and autocast does not convert both, or if the devices differ.
    """
    if tokens.dtype != parameter.dtype and not (is_cast_by_autocast(tokens) and is_cast_by_autocast(parameter)):
        raise RegardError(
            argument,
            got=describe(tokens),
            needed=f"{parameter.dtype}, the dtype of the parameters of this {score_name}",
            repair=f"Convert the score with score.to({tokens.dtype}), or convert the {argument}.",
        )
    if tokens.device != parameter.device:
        raise RegardError(
            argument,
            got=describe(tokens),
            needed=f"{parameter.device}, the device of the parameters of this {score_name}",
            repair=f'Move the score with score.to("{tokens.device}"), or move the {argument}.',
        )


def align_batch(parameter: Tensor, tokens: Tensor) -> Tensor:
    """Return a parameter with the rank of tokens, so that it broadcasts against them.

    Args:
        parameter: (*axes, dim), whose axes are the last batch axes.
        tokens: (*batch, tokens, dim), prepared queries or keys.

    Returns:
        (1, ..., *axes, 1, dim).

    Raises:
        RegardError: if the parameter has more batch axes than the tokens, or if they do not broadcast.
    """
    aligned = parameter.unsqueeze(-2)
    if aligned.ndim > tokens.ndim:
        raise RegardError(
            "score",
            got=f"a parameter with {parameter.ndim - 1} batch axes",
            needed=f"at most {tokens.ndim - 2}, the number of batch axes of the query",
            repair="Give query, key and value one batch axis for each batch axis of the score's parameters.",
        )
    aligned = aligned.reshape((1,) * (tokens.ndim - aligned.ndim) + aligned.shape)
    broadcast_batch("score", tokens.shape[:-2], aligned.shape[:-2])
    return aligned
