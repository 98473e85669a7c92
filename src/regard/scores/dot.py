"""Scores that are the dot product of prepared queries and keys: plain, scaled, cosine and bilinear (eq. 7 to 11)."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, Self, TypeGuard

import torch
from torch import Tensor, nn

from regard.checks import Rows, check_int
from regard.errors import RegardError
from regard.scores.base import PairScore, Score, align_batch, check_dim, check_dtype, check_equal_dims

SCALE_REPAIR = "Pass a Python float. For a learnable scale, scale the projections of query and key."
"""How to fix a scale that is not a finite number."""


@dataclass(slots=True, eq=False)
class DotPair(PairScore):
    """scale * q'k, or softcap * tanh(scale * q'k / softcap) if there is a softcap (eq. 7 to 11).

    Attributes:
        scale: factor of the dot products.
        softcap: bound of the scores, or None.
    """

    kind: ClassVar[str] = "dot"

    scale: float
    softcap: float | None = None

    def scores(self, rows: Rows | None = None, allowed: Tensor | None = None) -> Tensor:
        """Return the scaled dot products, soft-capped if there is a softcap."""
        del allowed
        query, key = self._tokens(rows)
        scores = (query @ key.mT) * self.scale
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)

    def replace(self, query: Tensor, key: Tensor, *parameters: Tensor) -> Self:
        """Return the same closed form for other tokens."""
        return type(self)(query, key, self.scale, self.softcap)

    def elements(self) -> int:
        """Return 1, because the reference materialises only the score of each pair."""
        return 1


class ScaledDot(Score):
    """The scaled dot product q'k / sqrt(dim) (eq. 8).

    Args:
        scale: factor of the dot products; None for 1 / sqrt(dim).
        softcap: keeps the scores inside (-softcap, softcap), as softcap * tanh(score / softcap); None for no cap.
        sink: number of heads that get an attention sink, one extra key with a learnable logit and value 0, so that the
            weights of a query sum to less than 1; None for no sink. The heads are the last batch axis of a call.

    Raises:
        RegardError: if `scale` is not finite, `softcap` is not positive, or `sink` is not a positive integer.

    >>> import regard, torch
    >>> x = torch.eye(2)
    >>> regard.inspect(x, x, x, ScaledDot(scale=2.0)).scores()
    tensor([[2., 0.],
            [0., 2.]])
    """

    def __init__(self, scale: float | None = None, softcap: float | None = None, sink: int | None = None) -> None:
        """Initialise the sink, if there is one, with zeros."""
        super().__init__()
        if scale is not None:
            check_finite("scale", scale)
        check_softcap(softcap)
        self.scale = None if scale is None else float(scale)
        self.softcap = None if softcap is None else float(softcap)
        if sink is not None:
            check_int("sink", sink)
        self.sink = None if sink is None else nn.Parameter(torch.zeros(sink))

    def pair(self, query: Tensor, key: Tensor) -> DotPair:
        """Return the closed form of the scaled dot product."""
        check_equal_dims(query, key, type(self).__name__)
        scale = self.scale
        if scale is None:
            scale = 1.0 / math.sqrt(max(query.shape[-1], 1))  # dim may be 0
        return DotPair(query, key, scale, self.softcap)

    def sink_logits(self) -> Tensor | None:
        """Return the learnable logits of the attention sink, (heads,), or None."""
        return self.sink

    def extra_repr(self) -> str:
        """Return the arguments of the score as text."""
        sink = None if self.sink is None else len(self.sink)
        return f"scale={self.scale}, softcap={self.softcap}, sink={sink}"


class Dot(ScaledDot):
    """The dot product q'k (eq. 7 without its factor 2)."""

    def __init__(self) -> None:
        """Set the scale to 1."""
        super().__init__(scale=1.0)


def is_plain_scaled_dot(score: object) -> TypeGuard[ScaledDot]:
    """Return whether a score is ScaledDot or Dot, and not a subclass, without softcap and sink."""
    is_builtin = isinstance(score, ScaledDot) and type(score) in (ScaledDot, Dot)
    return is_builtin and score.softcap is None and score.sink is None


class Cosine(Score):
    """The cosine similarity scale * q'k / (|q| |k|).

    The cosine of a zero vector and any other vector is 0. Its gradient is finite: the norm of a zero vector counts as a
    constant 1.

    Args:
        scale: inverse temperature. Cosines lie in [-1, 1], so that with scale 1 the weights are nearly uniform.

    Raises:
        RegardError: if `scale` is not a finite number.

    >>> import regard, torch
    >>> query, key = torch.tensor([[3.0, 4.0]]), torch.tensor([[6.0, 8.0], [0.0, 0.0]])
    >>> regard.inspect(query, key, key, Cosine()).scores()
    tensor([[1., 0.]])
    """

    def __init__(self, scale: float = 1.0) -> None:
        """Set the scale."""
        super().__init__()
        check_finite("scale", scale)
        self.scale = float(scale)

    def prepare_query(self, query: Tensor, first: int = 0) -> Tensor:
        """Return q / |q|, (*batch, queries, dim)."""
        del first
        return _normalize(query)

    def prepare_key(self, key: Tensor, first: int = 0) -> Tensor:
        """Return k / |k|, (*batch, keys, dim)."""
        del first
        return _normalize(key)

    def pair(self, query: Tensor, key: Tensor) -> DotPair:
        """Return the closed form of the dot product of unit vectors."""
        check_equal_dims(query, key, "Cosine")
        return DotPair(query, key, self.scale)

    def extra_repr(self) -> str:
        """Return the scale as text."""
        return f"scale={self.scale}"


class Bilinear(Score):
    """The bilinear score q'Mk / sqrt(key_dim) with a learnable matrix M (eq. 10).

    The queries are multiplied by the matrix and the keys stay unchanged, so a decoder can cache the keys themselves.

    Args:
        query_dim: size of a query.
        key_dim: size of a key.
        scale: factor of q'Mk; None for 1 / sqrt(key_dim), 1.0 for the form in eq. 10.
        heads: number of matrices, one for each head; None for a single matrix. The heads are the last batch axis of a
            call.

    Raises:
        RegardError: if a size is not a positive integer, or if `scale` is not finite.

    >>> Bilinear(3, 4).matrix.shape
    torch.Size([3, 4])
    """

    def __init__(self, query_dim: int, key_dim: int, *, scale: float | None = None, heads: int | None = None) -> None:
        """Draw M such that the scores of tokens with unit variance have about unit variance."""
        super().__init__()
        check_int("query_dim", query_dim)
        check_int("key_dim", key_dim)
        if scale is not None:
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
        """Return M'q, (*batch, queries, key_dim)."""
        del first
        check_dim("query", query, self.query_dim, "Bilinear")
        check_dtype("query", query, self.matrix, "Bilinear")
        if self.matrix.ndim > 2:
            align_batch(self.matrix[..., 0, :], query)  # only checks that the heads broadcast
        return query @ self.matrix

    def prepare_key(self, key: Tensor, first: int = 0) -> Tensor:
        """Return the keys unchanged, (*batch, keys, key_dim)."""
        del first
        check_dim("key", key, self.key_dim, "Bilinear")
        return key

    def pair(self, query: Tensor, key: Tensor) -> DotPair:
        """Return the closed form of the dot product of M'q and k."""
        return DotPair(query, key, self.scale)

    def extra_repr(self) -> str:
        """Return the sizes and the scale as text."""
        return f"query_dim={self.query_dim}, key_dim={self.key_dim}, scale={self.scale:.4g}"


def _normalize(tokens: Tensor) -> Tensor:
    """Return tokens divided by their norms; zero vectors stay 0."""
    if tokens.shape[-1] == 0:  # an empty axis has no largest entry
        return tokens
    # Dividing by the largest entry first prevents overflow and underflow of |x|^2. The division cancels in the result.
    largest = tokens.detach().abs().amax(-1, keepdim=True)
    tokens = tokens / largest.masked_fill(largest == 0, 1.0)
    squared = tokens.square().sum(-1, keepdim=True)
    return tokens * squared.masked_fill(squared == 0, 1.0).rsqrt()


def _is_finite(number: Real) -> bool:
    """Return whether a number is a finite float, or can be converted to one."""
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer larger than the largest float
        return False


def check_softcap(softcap: float | None) -> None:
    """Raise unless `softcap` is a positive finite number or None.

    Args:
        softcap: the value to check.

    Raises:
        RegardError: if it is neither.
    """
    if softcap is None:
        return
    repair = "Pass the bound of the scores, for example 50.0."
    check_finite("softcap", softcap, repair)
    if softcap <= 0:
        raise RegardError("softcap", got=repr(softcap), needed="a positive number, or None for no cap", repair=repair)


def check_finite(argument: str, number: object, repair: str = SCALE_REPAIR) -> None:
    """Raise unless `number` is a finite real number.

    Args:
        argument: name of the argument for the error message.
        number: the value to check.
        repair: how to fix the call; by default for a scale.

    Raises:
        RegardError: if `number` is not a real number, is a bool, or is not finite.
    """
    if isinstance(number, bool) or not isinstance(number, Real) or not _is_finite(number):
        raise RegardError(argument, got=repr(number), needed="a finite number", repair=repair)
