"""Scores that depend on the distance of query and key: the log-kernels of Nadaraya-Watson regression (eq. 4 to 6)."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from regard.checks import Rows, accumulation_dtype, describe
from regard.errors import RegardError
from regard.scores.base import PairScore, Score, align_batch, check_equal_dims
from regard.scores.kernels import KERNELS, Kernel, SquaredExponential
from regard.torch_compat import in_transform, is_plain_tensor

Bandwidth = float | Sequence[float] | np.ndarray | Tensor
"""What a `bandwidth` argument accepts: one number, a sequence of numbers, an array or a tensor."""


@dataclass(slots=True, eq=False)
class DistancePair(PairScore):
    """log f(|q - k| / width) for a radial kernel f (eq. 5 and 6).

    The width is the bandwidth of the score if all dimensions share it. A bandwidth per dimension divides the tokens
    instead, and the width is 1.

    Attributes:
        width: (*batch, queries or 1, 1), in the accumulation dtype.
        kernel: the kernel f.
    """

    kind: ClassVar[str] = "distance"

    width: Tensor
    kernel: Kernel

    def scores(self, rows: Rows | None = None, allowed: Tensor | None = None) -> Tensor:
        """Return the logarithm of the kernel for each pair."""
        query, key = self._tokens(rows)
        squared = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1)
        if allowed is not None:
            # The distance of padding may be infinite, and then 0 * inf makes the gradient of the width NaN.
            squared = squared.masked_fill(~allowed, 0.0)
        width = self.width if rows is None or self.width.shape[-2] == 1 else self.width[..., rows, :]
        return self.kernel.log_kernel(squared, width.to(squared.dtype), self.query.dtype)

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the width."""
        return (self.width,)

    def replace(self, query: Tensor, key: Tensor, *parameters: Tensor) -> Self:
        """Return the same kernel for other tokens and, if given, another width."""
        (width,) = parameters or (self.width,)
        return type(self)(query, key, width, self.kernel)


class RadialScore(Score):
    """Base class of the scores log f(d) with a radial kernel f and d = |q - k| / bandwidth.

    Args:
        bandwidth: one number; (dim,) for one per dimension; or with batch axes first, (heads, 1) for one per head and
            (heads, dim) for one per head and dimension.
        learnable: whether the bandwidth is a parameter. The parameter is the logarithm of the bandwidth, so that the
            bandwidth stays positive.

    Raises:
        RegardError: if a bandwidth is not positive and finite, or if the kernel is flat and `learnable` is True.
    """

    kernel_name: str

    def __init__(self, bandwidth: Bandwidth = 1.0, *, learnable: bool = False) -> None:
        """Store a number as an attribute, a tensor as a buffer and a learnable bandwidth as a parameter."""
        super().__init__()
        self.kernel = KERNELS[self.kernel_name]
        if learnable and not self.kernel.is_differentiable:
            raise RegardError(
                "learnable",
                got=f"True for {type(self).__name__}",
                needed="a kernel whose value changes with the distance",
                repair=f"A {type(self).__name__} kernel is flat, so its bandwidth has no gradient. Choose it by "
                "cross-validation.",
            )
        parsed = _parse_bandwidth(bandwidth)
        self._number = parsed if isinstance(parsed, float) and not learnable else None
        if learnable:
            self.log_bandwidth = nn.Parameter(torch.as_tensor(parsed, dtype=torch.get_default_dtype()).log())
        elif isinstance(parsed, Tensor):
            self.register_buffer("fixed_bandwidth", parsed)

    @property
    def bandwidth(self) -> float | Tensor:
        """The current bandwidth, which is positive unless it underflows to 0 in its dtype."""
        if self._number is not None:
            return self._number
        return self.log_bandwidth.exp() if "log_bandwidth" in self._parameters else self.fixed_bandwidth

    @property
    def can_round_tokens(self) -> bool:
        """False, because the difference of two close tokens loses all correct digits when the tokens are rounded."""
        return False

    def prepare_query(self, query: Tensor, first: int = 0) -> Tensor:
        """Return queries divided by the bandwidth per dimension, if there is one, (*batch, queries, dim)."""
        del first
        return self._rescale("query", query)

    def prepare_key(self, key: Tensor, first: int = 0) -> Tensor:
        """Return keys divided by the bandwidth per dimension, if there is one, (*batch, keys, dim)."""
        del first
        return self._rescale("key", key)

    def pair(self, query: Tensor, key: Tensor) -> DistancePair:
        """Return the closed form.

        A bandwidth that all dimensions share becomes the width. Dividing the tokens by it would round them.

        Args:
            query: (*batch, queries, dim), returned by `prepare_query`.
            key: (*batch, keys, dim), returned by `prepare_key`.

        Returns:
            The closed form, whose width is positive and finite.
        """
        check_equal_dims(query, key, type(self).__name__)
        bandwidth = self.bandwidth
        # Under autocast, query and key may have two dtypes: the output of a linear layer is in half precision.
        token_dtype = torch.promote_types(query.dtype, key.dtype)
        query, key = query.to(token_dtype), key.to(token_dtype)
        dtype = accumulation_dtype(token_dtype)
        if isinstance(bandwidth, Tensor) and not _is_per_dimension(bandwidth):
            width = align_batch(_clamp(bandwidth.reshape(bandwidth.shape or (1,)), dtype), query)
            return DistancePair(query, key, width, self.kernel)
        limits = torch.finfo(dtype)
        width = 1.0 if isinstance(bandwidth, Tensor) else min(max(bandwidth, limits.tiny), limits.max)
        return DistancePair(query, key, query.new_full((1,) * query.ndim, width, dtype=dtype), self.kernel)

    def _rescale(self, argument: str, tokens: Tensor) -> Tensor:
        """Return tokens divided by the bandwidth per dimension, or unchanged if the dimensions share a bandwidth."""
        bandwidth = self.bandwidth
        if not isinstance(bandwidth, Tensor) or not _is_per_dimension(bandwidth):
            return tokens
        if bandwidth.shape[-1] != tokens.shape[-1]:
            raise RegardError(
                argument,
                got=f"dim {tokens.shape[-1]} for a bandwidth of shape {tuple(bandwidth.shape)}",
                needed="one bandwidth per dimension in the last axis, or a last axis of size 1",
                repair="For one bandwidth per head, give the bandwidth the shape (heads, 1).",
            )
        divisor = align_batch(_clamp(bandwidth, accumulation_dtype(tokens.dtype)), tokens)
        return (tokens / divisor).to(tokens.dtype)

    def extra_repr(self) -> str:
        """Return the bandwidth as text, and whether it is learnable."""
        bandwidth = self.bandwidth
        if isinstance(bandwidth, Tensor):
            bandwidth = bandwidth.tolist() if _has_readable_values(bandwidth) else describe(bandwidth)
        return f"bandwidth={bandwidth}, learnable={'log_bandwidth' in self._parameters}"


class SquaredDistance(RadialScore):
    """The negative squared distance -|q - k|^2 (eq. 6).

    Its softmax equals the softmax of 2 q'k - |k|^2. `Gaussian(0.5**0.5)` is the same score up to rounding; use
    `Gaussian` for another bandwidth.

    >>> import regard, torch
    >>> x = torch.tensor([[0.0], [2.0]])
    >>> regard.inspect(x, x, x, SquaredDistance()).scores()[0]
    tensor([-0., -4.])
    """

    kernel_name = "squared_distance"

    def __init__(self) -> None:
        """Set the bandwidth to 1."""
        super().__init__(1.0)


class Gaussian(RadialScore):
    """The Gaussian kernel: log exp(-d^2 / 2) with d = |q - k| / bandwidth (eq. 5).

    Args:
        bandwidth: one number; (dim,) for one per dimension; or with batch axes first, (heads, 1) for one per head and
            (heads, dim) for one per head and dimension.
        learnable: whether the bandwidth is a parameter. The parameter is the logarithm of the bandwidth, so that the
            bandwidth stays positive.

    Raises:
        RegardError: if a bandwidth is not positive and finite.

    >>> import regard, torch
    >>> x = torch.tensor([[0.0], [2.0]])
    >>> regard.inspect(x, x, x, Gaussian(2.0)).scores()[0]
    tensor([-0.0000, -0.5000])
    """

    kernel_name = "gaussian"


class Laplacian(RadialScore):
    """The Laplacian kernel: log exp(-d) with d = |q - k| / bandwidth; arguments as for `Gaussian`."""

    kernel_name = "laplacian"


class Boxcar(RadialScore):
    """The boxcar kernel: log 1 = 0 where |q - k| <= bandwidth, including equality (eq. 5).

    Args:
        bandwidth: as for `Gaussian`.
        learnable: must be False, because the kernel is flat and its bandwidth has no gradient.
    """

    kernel_name = "boxcar"


class Triangular(RadialScore):
    """The triangular kernel: log max(0, 1 - d); arguments as for `Gaussian`.

    It is the third kernel of eq. 5, which the chapter calls Epanechnikov.
    """

    kernel_name = "triangular"


class Epanechnikov(RadialScore):
    """The kernel that statistics calls Epanechnikov: log max(0, 1 - d^2); arguments as for `Gaussian`."""

    kernel_name = "epanechnikov"


class Tricube(RadialScore):
    """The tricube kernel: log max(0, 1 - d^3)^3; arguments as for `Gaussian`."""

    kernel_name = "tricube"


class Biweight(RadialScore):
    """The biweight kernel: log max(0, 1 - d^2)^2; arguments as for `Gaussian`."""

    kernel_name = "biweight"


class CosineKernel(RadialScore):
    """The cosine kernel: log cos(pi d / 2) for d < 1; arguments as for `Gaussian`."""

    kernel_name = "cosine_kernel"


def is_gaussian(pair: PairScore) -> bool:
    """Return whether a pair score is a negative squared distance times a factor: `Gaussian` and `SquaredDistance`."""
    return isinstance(pair, DistancePair) and isinstance(pair.kernel, SquaredExponential)


def _is_per_dimension(bandwidth: Tensor) -> bool:
    """Return whether the last axis has one bandwidth for each dimension, and not one for all of them."""
    return bandwidth.ndim > 0 and bandwidth.shape[-1] != 1


def _clamp(bandwidth: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bandwidth in a dtype, kept positive and finite: a bandwidth of 0 would give 0 / 0 for equal tokens."""
    limits = torch.finfo(dtype)
    return bandwidth.to(dtype).clamp(limits.tiny, limits.max)


def _parse_bandwidth(bandwidth: Bandwidth) -> float | Tensor:
    """Check a `bandwidth` argument and convert it.

    Args:
        bandwidth: a number, a sequence, an array or a tensor.

    Returns:
        A float for a number; a copy in the same dtype for a floating-point tensor; a float64 tensor for an integer
        tensor, a sequence or an array.

    Raises:
        RegardError: if a bandwidth is not positive and finite, or if a tensor requires a gradient.
    """
    parsed: float | Tensor | None = None
    if isinstance(bandwidth, Tensor) and bandwidth.requires_grad:
        raise RegardError(
            "bandwidth",
            got="a tensor that requires a gradient",
            needed="a bandwidth without gradient, because a learnable bandwidth is stored as its logarithm",
            repair="Pass learnable=True and the initial value of the bandwidth.",
        )
    if isinstance(bandwidth, Tensor):
        parsed = bandwidth.detach().clone() if bandwidth.is_floating_point() else bandwidth.double()
    elif isinstance(bandwidth, Real):
        with contextlib.suppress(OverflowError):  # an integer larger than the largest float
            parsed = None if isinstance(bandwidth, bool) else float(bandwidth)
    elif isinstance(bandwidth, Sequence | np.ndarray) and not isinstance(bandwidth, str):
        with contextlib.suppress(TypeError, ValueError, RuntimeError, OverflowError):
            parsed = torch.tensor(bandwidth, dtype=torch.float64)  # as_tensor would share the memory of an array
    if parsed is not None and _is_positive(parsed):
        return parsed
    raise RegardError(
        "bandwidth",
        got=repr(bandwidth)[:80],
        needed="positive finite numbers",
        repair="Pass a positive number, or a sequence with one positive number per dimension.",
    )


def _is_positive(bandwidth: float | Tensor) -> bool:
    """Return whether there is a bandwidth and, if its values can be read, all are positive and finite."""
    if isinstance(bandwidth, float):
        return 0 < bandwidth < math.inf
    if not _has_readable_values(bandwidth):
        return bandwidth.numel() > 0
    return bandwidth.numel() > 0 and bool(((bandwidth > 0) & bandwidth.isfinite()).all())


def _has_readable_values(tensor: Tensor) -> bool:
    """Return False for tensors on the meta device, and for subclasses and modes, which may have only a shape."""
    return is_plain_tensor(tensor) and not tensor.is_meta and not in_transform()
