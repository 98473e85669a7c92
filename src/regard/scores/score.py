"""What every scoring function is: per-token preparation, then a closed form of the pair."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from regard.errors import RegardError
from regard.scores.forms import Form
from regard.shapes import broadcast_batch, describe, is_cast


class Score(nn.Module, ABC):
    """A scoring function f(q, k) of eq. 3, split into linear and quadratic work.

    `prepare_query` and `prepare_key` run once per token (projections, scalings, positions) under ordinary
    autograd; a decoder keeps what `prepare_key` returned and never computes it again. `pair` names the closed
    form of what is left, the only part that a backend runs for each pair.

    A plain callable of (..., queries, dim) and (..., keys, dim) needs none of this: pass it as it is.
    """

    @property
    def can_round_tokens(self) -> bool:
        """Whether autocast may round queries and keys to half precision before this score compares them."""
        return True

    def prepare_query(self, query: Tensor, first: int = 0) -> Tensor:
        """Work per query; `first` is the position of the first one. (*batch, queries, query_dim) -> same rank."""
        del first
        return query

    def prepare_key(self, key: Tensor, first: int = 0) -> Tensor:
        """Work per key; `first` is the position of the first one. (*batch, keys, key_dim) -> same rank."""
        del first
        return key

    def sink_logits(self) -> Tensor | None:
        """Logits of a key that everybody sees and whose value is zero, (heads,); None for no such key."""
        return None

    @abstractmethod
    def pair(self, query: Tensor, key: Tensor) -> Form:
        """The closed form over prepared queries and keys."""


def check_equal_dims(query: Tensor, key: Tensor, score: str) -> None:
    """Refuse queries and keys of different width where the score compares them entry by entry."""
    if query.shape[-1] != key.shape[-1]:
        raise RegardError(
            "key",
            got=f"dim {key.shape[-1]}, while query has dim {query.shape[-1]}",
            needed=f"equal last axes: {score} compares query and key entry by entry",
            repair="Use Bilinear or Additive, which take query and key of different sizes, or project one.",
        )


def check_dim(argument: str, tensor: Tensor, dim: int, score: str) -> None:
    """Refuse a token width other than the one the score was built for."""
    if tensor.shape[-1] != dim:
        raise RegardError(
            argument,
            got=f"dim {tensor.shape[-1]}",
            needed=f"dim {dim}, as this {score} was built",
            repair=f"Build the {score} for {tensor.shape[-1]}, or pass the {argument} it was built for.",
        )


def check_dtype(argument: str, tokens: Tensor, parameter: Tensor, score: str) -> None:
    """Refuse tokens of another dtype than the parameters; autocast reconciles them, except with float64."""
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
    """Give a parameter (*axes, dim) the rank of prepared tokens, (1, ..., *axes, 1, dim)."""
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
