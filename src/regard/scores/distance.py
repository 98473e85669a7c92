"""Scores of the distance between query and key: the log-kernels of Nadaraya-Watson regression (eq. 4 to 6)."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from regard.checks import accumulation_dtype, describe
from regard.errors import RegardError
from regard.scores.base import PairScore, Rows, Score, align_batch, check_equal_dims
from regard.scores.kernels import KERNELS, Kernel
from regard.torch_compat import in_transform, is_plain_tensor

Bandwidth = float | Sequence[float] | Tensor


@dataclass(slots=True, eq=False)
class DistancePair(PairScore):
    """log f(|q - k|^2 / width^2) for a radial kernel f (eq. 5 and 6).

    width: (*batch, queries or 1, 1).
    """

    kind: ClassVar[str] = "distance"

    width: Tensor
    kernel: Kernel

    def scores(self, rows: Rows | None = None, allowed: Tensor | None = None) -> Tensor:
        """Return the log-kernel of the distances."""
        query, key = self._tokens(rows)
        squared = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1)
        if allowed is not None:
            # Padding may be infinitely far away, and 0 * inf in the gradient of the width is NaN.
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
    """log f(|q - k| / bandwidth) for a kernel f.

    bandwidth: the scale in the kernel's own formula: one number; one per dimension, (dim,); or with batch axes
        before it, (heads, 1) for one per head and (heads, dim) for both.
    learnable: the bandwidth is a parameter, stored as its logarithm, so that no step makes it non-positive.
    """

    kernel_name: str

    def __init__(self, bandwidth: Bandwidth = 1.0, *, learnable: bool = False) -> None:
        """Check the bandwidth and keep it: a number as a number, a tensor as a buffer or a parameter."""
        super().__init__()
        self.kernel = KERNELS[self.kernel_name]
        if learnable and not self.kernel.is_differentiable:
            raise RegardError(
                "learnable",
                got=f"True for {type(self).__name__}",
                needed="a kernel whose value changes with the distance",
                repair=f"A {type(self).__name__} is flat, so its bandwidth has no gradient: choose it by a search.",
            )
        checked = _check_bandwidth(bandwidth)
        self._number = checked if isinstance(checked, float) and not learnable else None
        if learnable:
            self.log_bandwidth = nn.Parameter(torch.as_tensor(checked, dtype=torch.get_default_dtype()).log())
        elif isinstance(checked, Tensor):
            self.register_buffer("fixed_bandwidth", checked)

    @property
    def bandwidth(self) -> float | Tensor:
        """The bandwidth now, always positive."""
        if self._number is not None:
            return self._number
        return self.log_bandwidth.exp() if "log_bandwidth" in self._parameters else self.fixed_bandwidth

    @property
    def can_round_tokens(self) -> bool:
        """False: the difference of two rounded tokens that are close to each other has no correct digit."""
        return False

    def prepare_query(self, query: Tensor, first: int = 0) -> Tensor:
        """q, divided by a bandwidth per dimension."""
        del first
        return self._rescale("query", query)

    def prepare_key(self, key: Tensor, first: int = 0) -> Tensor:
        """k, divided by a bandwidth per dimension."""
        del first
        return self._rescale("key", key)

    def pair(self, query: Tensor, key: Tensor) -> DistancePair:
        """The distance form; a bandwidth shared by all dimensions is its width, so that q and k stay exact."""
        check_equal_dims(query, key, type(self).__name__)
        bandwidth = self.bandwidth
        # Under autocast one of them may come from a layer in half precision.
        common = torch.promote_types(query.dtype, key.dtype)
        query, key = query.to(common), key.to(common)
        dtype = accumulation_dtype(common)
        # A width that underflows to 0 would make NaN of the distance 0 between equal tokens.
        least, most = torch.finfo(dtype).tiny, torch.finfo(dtype).max
        if isinstance(bandwidth, Tensor) and not _is_per_dimension(bandwidth):
            width = align_batch(bandwidth.reshape(bandwidth.shape or (1,)), query)
            return DistancePair(query, key, width.to(dtype).clamp(least, most), self.kernel)
        number = 1.0 if isinstance(bandwidth, Tensor) else min(max(bandwidth, least), most)
        return DistancePair(query, key, query.new_full((1,) * query.ndim, number, dtype=dtype), self.kernel)

    def _rescale(self, argument: str, tokens: Tensor) -> Tensor:
        bandwidth = self.bandwidth
        if not isinstance(bandwidth, Tensor) or not _is_per_dimension(bandwidth):
            return tokens
        if bandwidth.shape[-1] != tokens.shape[-1]:
            raise RegardError(
                argument,
                got=f"dim {tokens.shape[-1]} for a bandwidth of shape {tuple(bandwidth.shape)}",
                needed="one bandwidth per dimension in the last axis, or a last axis of size 1",
                repair="For one bandwidth per head, give it the shape (heads, 1).",
            )
        width = align_batch(bandwidth.to(accumulation_dtype(tokens.dtype)), tokens)
        return (tokens / width).to(tokens.dtype)

    def extra_repr(self) -> str:
        """Show the bandwidth and whether it learns."""
        bandwidth = self.bandwidth
        shown = bandwidth
        if isinstance(bandwidth, Tensor):
            shown = bandwidth.tolist() if _has_numbers(bandwidth) else describe(bandwidth)
        return f"bandwidth={shown}, learnable={'log_bandwidth' in self._parameters}"


class SquaredDistance(RadialScore):
    """-|q - k|^2 (eq. 6); the softmax of it equals that of 2 q'k - |k|^2 exactly."""

    kernel_name = "squared_distance"

    def __init__(self) -> None:
        """No bandwidth: that would be a Gaussian."""
        super().__init__(1.0)


class Gaussian(RadialScore):
    """log exp(-d^2 / 2) with d = |q - k| / bandwidth (eq. 5)."""

    kernel_name = "gaussian"


class Laplacian(RadialScore):
    """log exp(-d) with d = |q - k| / bandwidth."""

    kernel_name = "laplacian"


class Boxcar(RadialScore):
    """log of 1 where |q - k| <= bandwidth, edge inside (eq. 5)."""

    kernel_name = "boxcar"


class Triangular(RadialScore):
    """log max(0, 1 - d): the third kernel of eq. 5, which the chapter calls Epanechnikov."""

    kernel_name = "triangular"


class Epanechnikov(RadialScore):
    """log max(0, 1 - d^2): what statistics calls Epanechnikov."""

    kernel_name = "epanechnikov"


class Tricube(RadialScore):
    """log max(0, 1 - d^3)^3."""

    kernel_name = "tricube"


class Biweight(RadialScore):
    """log max(0, 1 - d^2)^2."""

    kernel_name = "biweight"


class CosineKernel(RadialScore):
    """log cos(pi d / 2) for d < 1."""

    kernel_name = "cosine_kernel"


def _is_per_dimension(bandwidth: Tensor) -> bool:
    return bandwidth.ndim > 0 and bandwidth.shape[-1] != 1


def _check_bandwidth(bandwidth: Bandwidth) -> float | Tensor:
    """A number as a float, a tensor in its own dtype, a sequence in float64: nothing is rounded before it is used."""
    checked: float | Tensor | None = None
    if isinstance(bandwidth, Tensor) and bandwidth.requires_grad:
        raise RegardError(
            "bandwidth",
            got="a tensor that requires a gradient",
            needed="numbers: a bandwidth that learns is stored as its logarithm",
            repair="Write learnable=True, with the first value of the bandwidth.",
        )
    if isinstance(bandwidth, Tensor):
        checked = bandwidth.detach().clone() if bandwidth.is_floating_point() else bandwidth.double()
    elif isinstance(bandwidth, Real):
        with contextlib.suppress(OverflowError):
            checked = None if isinstance(bandwidth, bool) else float(bandwidth)
    elif isinstance(bandwidth, Sequence | np.ndarray) and not isinstance(bandwidth, str):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            checked = torch.as_tensor(bandwidth, dtype=torch.float64)
    if checked is not None and _is_positive(checked):
        return checked
    raise RegardError(
        "bandwidth",
        got=repr(bandwidth)[:80],
        needed="positive finite numbers",
        repair="Pass a positive number, or a sequence with one positive number per dimension.",
    )


def _is_positive(bandwidth: float | Tensor) -> bool:
    if isinstance(bandwidth, float):
        return 0 < bandwidth < math.inf
    if not _has_numbers(bandwidth):
        return bandwidth.numel() > 0
    return bandwidth.numel() > 0 and bool(((bandwidth > 0) & bandwidth.isfinite()).all())


def _has_numbers(tensor: Tensor) -> bool:
    """Not on the meta device, and perhaps not under a mode or in a subclass: a fake tensor has a shape alone."""
    return is_plain_tensor(tensor) and not tensor.is_meta and not in_transform()
