"""Scores that are a dot product after preparation: plain, scaled, cosine, bilinear (eq. 7 to 11)."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, Self, TypeGuard

import torch
from torch import Tensor, nn

from regard.checks import check_int
from regard.errors import RegardError
from regard.scores.base import PairScore, Rows, Score, align_batch, check_dim, check_dtype, check_equal_dims


@dataclass(slots=True, eq=False)
class DotPair(PairScore):
    """scale * q'k, and softcap * tanh(scale * q'k / softcap) with a softcap (eq. 7 to 11)."""

    kind: ClassVar[str] = "dot"

    scale: float
    softcap: float | None = None

    def scores(self, rows: Rows | None = None, allowed: Tensor | None = None) -> Tensor:
        """Return the scaled dot products."""
        del allowed
        query, key = self._tokens(rows)
        scores = (query @ key.mT) * self.scale
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)

    def replace(self, query: Tensor, key: Tensor, *parameters: Tensor) -> Self:
        """Return the same score for other tokens."""
        return type(self)(query, key, self.scale, self.softcap)

    def elements(self) -> int:
        """Return 1: the textbook form holds the score alone."""
        return 1


class ScaledDot(Score):
    """q'k / sqrt(dim) (eq. 8), or any other `scale`.

    softcap: bends the scores smoothly into (-softcap, softcap).
    sink: a number of heads; each gets a learnable logit of mass that goes to no key. The heads are then the
        last batch axis.
    """

    def __init__(self, scale: float | None = None, softcap: float | None = None, sink: int | None = None) -> None:
        """Check the numbers; the only parameter is the sink."""
        super().__init__()
        check_finite("scale", scale)
        check_softcap(softcap)
        self.scale = None if scale is None else float(scale)
        self.softcap = None if softcap is None else float(softcap)
        if sink is not None:
            check_int("sink", sink)
        self.sink = None if sink is None else nn.Parameter(torch.zeros(sink))

    def pair(self, query: Tensor, key: Tensor) -> DotPair:
        """Return the scaled dot product of queries and keys."""
        dim, scale = query.shape[-1], self.scale
        if dim != key.shape[-1]:
            check_equal_dims(query, key, type(self).__name__)
        if scale is None:
            scale = 1.0 / math.sqrt(max(dim, 1))
        return DotPair(query, key, scale, self.softcap)

    def sink_logits(self) -> Tensor | None:
        """The learnable logits, (heads,)."""
        return self.sink

    def extra_repr(self) -> str:
        """Show what differs from the plain form."""
        sink = None if self.sink is None else len(self.sink)
        return f"scale={self.scale}, softcap={self.softcap}, sink={sink}"


class Dot(ScaledDot):
    """q'k (eq. 7 without its factor 2)."""

    def __init__(self) -> None:
        """A scaled dot product of scale 1."""
        super().__init__(scale=1.0)


def is_bare(score: object) -> TypeGuard[ScaledDot]:
    """Whether a score is a product and its scale; a class of somebody's own may prepare tokens in its own way."""
    is_ours = isinstance(score, ScaledDot) and type(score) in (ScaledDot, Dot)
    return is_ours and score.softcap is None and score.sink is None


class Cosine(Score):
    """scale * q'k / (|q| |k|); a zero vector has cosine 0 with everything, and gradient 0."""

    def __init__(self, scale: float = 1.0) -> None:
        """Scale is an inverse temperature: cosines alone lie in [-1, 1] and give nearly uniform weights."""
        super().__init__()
        if scale is None:
            raise RegardError("scale", got="None", needed="a finite number", repair="Pass 1.0 for cosines as they are.")
        check_finite("scale", scale)
        self.scale = float(scale)

    def prepare_query(self, query: Tensor, first: int = 0) -> Tensor:
        """q / |q|."""
        del first
        return _direction(query)

    def prepare_key(self, key: Tensor, first: int = 0) -> Tensor:
        """k / |k|."""
        del first
        return _direction(key)

    def pair(self, query: Tensor, key: Tensor) -> DotPair:
        """Return the dot product of directions."""
        check_equal_dims(query, key, "Cosine")
        return DotPair(query, key, self.scale)

    def extra_repr(self) -> str:
        """Show the scale."""
        return f"scale={self.scale}"


class Bilinear(Score):
    """q'Mk / sqrt(key_dim) (eq. 10), for queries and keys of different sizes; `scale=1.0` is the plain form.

    The matrix works on the queries, so that keys that a decoder keeps are the keys themselves.
    heads: one matrix per head, the heads being the last batch axis.
    """

    def __init__(self, query_dim: int, key_dim: int, *, scale: float | None = None, heads: int | None = None) -> None:
        """Draw M so that scores of unit-variance tokens have about unit variance."""
        super().__init__()
        check_int("query_dim", query_dim)
        check_int("key_dim", key_dim)
        check_finite("scale", scale)
        shape = (query_dim, key_dim)
        if heads is not None:
            check_int("heads", heads)
            shape = (heads, *shape)
        self.query_dim = query_dim
        self.key_dim = key_dim
        self.scale = 1.0 / math.sqrt(key_dim) if scale is None else float(scale)
        self.matrix = nn.Parameter(torch.randn(shape) / math.sqrt(query_dim))

    def prepare_query(self, query: Tensor, first: int = 0) -> Tensor:
        """M'q, (*batch, queries, key_dim)."""
        del first
        check_dim("query", query, self.query_dim, "Bilinear")
        check_dtype("query", query, self.matrix, "Bilinear")
        if self.matrix.ndim > 2:
            align_batch(self.matrix[..., 0, :], query)
        return query @ self.matrix

    def prepare_key(self, key: Tensor, first: int = 0) -> Tensor:
        """k."""
        del first
        check_dim("key", key, self.key_dim, "Bilinear")
        return key

    def pair(self, query: Tensor, key: Tensor) -> DotPair:
        """Return the dot product in the space of keys."""
        return DotPair(query, key, self.scale)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"query_dim={self.query_dim}, key_dim={self.key_dim}, scale={self.scale:.4g}"


def _direction(tokens: Tensor) -> Tensor:
    # Dividing by the largest entry first keeps |x|^2 from under- or overflowing; it cancels in the result.
    if tokens.shape[-1] == 0:
        return tokens
    largest = tokens.detach().abs().amax(-1, keepdim=True)
    tokens = tokens / largest.masked_fill(largest == 0, 1.0)
    squared = tokens.square().sum(-1, keepdim=True)
    return tokens * squared.masked_fill(squared == 0, 1.0).rsqrt()


def _is_finite(number: Real) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond every float
        return False


def check_softcap(softcap: float | None) -> None:
    """Refuse a cap under which no score fits."""
    check_finite("softcap", softcap)
    if softcap is not None and softcap <= 0:
        raise RegardError(
            "softcap",
            got=repr(softcap),
            needed="a positive number, or None for no cap",
            repair="Pass the largest score that may be reached.",
        )


def check_finite(argument: str, number: object) -> None:
    """Refuse what is neither a finite number nor None."""
    if number is None:
        return
    if isinstance(number, bool) or not isinstance(number, Real) or not _is_finite(number):
        raise RegardError(
            argument,
            got=repr(number),
            needed="a finite number",
            repair="Pass a Python float; a learnable scale belongs to the projections of query and key.",
        )
