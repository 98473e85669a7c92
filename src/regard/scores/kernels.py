"""Radial kernels and their properties: log f, slope, support, roughness, variance, polynomial and square (eq. 5).

A kernel f(d) with d = |q - k| / width is used as the score log f, which is minus infinity outside the support. Since
softmax(log f) = f / sum f, eq. 4 is a special case of eq. 3. The functions of this file take z = d^2 and compute
g(z) = f(sqrt(z)). The backward passes of the backends use the slope d log g / dz.

Where f has a kink at d = 0, g'(0) is infinite. At z = 0 and at the edge of the support, log g and its slope here have
finite gradients, which automatic differentiation of the formulas does not.

A NaN distance gives a NaN log g and a NaN slope. All conditions test whether a pair is outside the support or at the
kink. A comparison with NaN is False, so NaN goes through the formula for pairs inside the support.

To add a kernel, write a subclass, add it to `KERNELS`, and add a class with its name to `scores/distance.py`.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor


class Kernel(ABC):
    """A radial kernel f with f(0) = 1, computed as g(z) = f(sqrt(z)).

    Only `regard.regression` uses `is_edge_inside`, `roughness`, `variance`, `polynomial` and `square`.

    Attributes:
        name: name of the kernel and of its score.
        is_compact: whether f is 0 for d > 1.
        is_edge_inside: whether a compact kernel includes d = 1.
        is_differentiable: whether f changes with the distance inside the support, so that a bandwidth has a gradient.
        roughness: integral of K^2 in one dimension, with K = f / (integral of f).
        variance: integral of d^2 K in one dimension.
        polynomial: coefficients of f in powers of d inside the support, or None if f is not a polynomial.
        square: the kernel that equals f^2, as its name and the ratio of its width to the width of f; None if f^2 is not
            one of the kernels.
    """

    name: str
    is_compact: ClassVar[bool] = False
    is_edge_inside: bool = False
    is_differentiable: bool = True
    roughness: float
    variance: float
    polynomial: tuple[float, ...] | None = None
    square: tuple[str, float] | None = None

    def log_kernel(self, squared: Tensor, width: Tensor, dtype: torch.dtype) -> Tensor:
        """Return log f for squared distances.

        Args:
            squared: squared distances, in the accumulation dtype.
            width: the width, broadcastable to `squared`.
            dtype: the dtype of queries and keys.

        Returns:
            log f(|q - k| / width), minus infinity outside the support; the shape of `squared`.
        """
        del dtype
        return self.log_of_ratio(ratio(squared, width))

    @abstractmethod
    def log_of_ratio(self, z: Tensor) -> Tensor:
        """Return log g(z); twice differentiable wherever g is."""

    @abstractmethod
    def slope(self, z: Tensor) -> Tensor:
        """Return d log g / dz inside the support, and 0 outside of it and where f has a kink."""

    def initial_bandwidth(self, dim: int) -> float:
        """Return an initial bandwidth for a layer with tokens of size `dim`.

        With the initial projections, the mean of |q - k|^2 is about dim and its standard deviation about sqrt(dim). The
        weights at this bandwidth are neither uniform nor concentrated on one key.
        """
        del dim
        return 1.0


class SquaredExponential(Kernel):
    """f = exp(-rate d^2): the negative squared distance has rate 1 (eq. 6), the Gaussian rate 1/2 (eq. 5)."""

    def __init__(self, name: str, rate: float) -> None:
        """Set the name, and the properties that follow from the rate."""
        self.name = name
        self.rate = rate
        self.variance = 1 / (2 * rate)
        self.roughness = 1 / (2 * math.sqrt(math.pi * self.variance))
        self.square = (name, 0.5**0.5)

    def log_of_ratio(self, z: Tensor) -> Tensor:
        """Return -rate z."""
        return z * -self.rate

    def slope(self, z: Tensor) -> Tensor:
        """Return -rate."""
        return torch.full_like(z, -self.rate)

    def initial_bandwidth(self, dim: int) -> float:
        """Return dim^(1/4); the Gaussian then equals the scaled dot product up to the norms of the keys (eq. 7)."""
        return dim**0.25


class Laplacian(Kernel):
    """f = exp(-d)."""

    name = "laplacian"
    roughness = 1 / 4
    variance = 2.0
    square = ("laplacian", 0.5)

    def log_of_ratio(self, z: Tensor) -> Tensor:
        """Return -sqrt(z)."""
        return -_root(z)

    def slope(self, z: Tensor) -> Tensor:
        """Return -1 / (2 d), and 0 at the kink d = 0."""
        return -0.5 * _inverse_root(z)


class TaperedKernel(Kernel):
    """Base class of compact kernels that decrease to 0 at d = 1."""

    is_compact = True

    @abstractmethod
    def values(self, z: Tensor) -> Tensor:
        """Return g(z) for z in [0, 1)."""

    @abstractmethod
    def derivative(self, z: Tensor) -> Tensor:
        """Return g'(z) for z in [0, 1), and 0 where f has a kink."""

    def log_of_ratio(self, z: Tensor) -> Tensor:
        """Return log g inside the support and minus infinity outside of it, where the gradient is 0 and not NaN."""
        outside, values = self._support(z)
        return torch.where(outside, -math.inf, values.log())

    def slope(self, z: Tensor) -> Tensor:
        """Return g' / g inside the support and 0 outside of it."""
        outside, values = self._support(z)
        return torch.where(outside, 0.0, self.derivative(torch.where(outside, 0.0, z)) / values)

    def initial_bandwidth(self, dim: int) -> float:
        """Return 2 sqrt(dim). The support then contains nearly all pairs; the others have no gradient."""
        return 2 * math.sqrt(dim)

    def _support(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return which pairs are outside the support, and g(z), which is replaced by 1 for them."""
        outside = z >= 1
        values = self.values(torch.where(outside, 0.0, z))
        outside = outside | (values <= 0)
        return outside, torch.where(outside, 1.0, values)


class Boxcar(Kernel):
    """f = 1 where d <= 1, including equality (eq. 5)."""

    name = "boxcar"
    is_compact = True
    is_edge_inside = True
    is_differentiable = False
    roughness = 1 / 2
    variance = 1 / 3
    polynomial = (1,)
    square = ("boxcar", 1.0)

    def log_kernel(self, squared: Tensor, width: Tensor, dtype: torch.dtype) -> Tensor:
        """Return 0 where |q - k| <= width in the dtype of queries and keys, and minus infinity elsewhere.

        In one dimension this is exactly the comparison that the user would write: sqrt(x^2) equals |x| in IEEE
        arithmetic, and rounding the float32 difference of two half-precision numbers to half precision gives their
        half-precision difference.
        """
        outside = squared.sqrt().to(dtype) > width.to(dtype)
        return torch.where(outside, -math.inf, _zero_or_nan(squared))

    def log_of_ratio(self, z: Tensor) -> Tensor:
        """Return 0 inside the support and minus infinity outside of it."""
        return torch.where(z > 1, -math.inf, _zero_or_nan(z))

    def slope(self, z: Tensor) -> Tensor:
        """Return 0, because the kernel is flat."""
        return torch.zeros_like(z)

    def initial_bandwidth(self, dim: int) -> float:
        """Return 2 sqrt(dim). The support then contains nearly all pairs."""
        return 2 * math.sqrt(dim)


class Triangular(TaperedKernel):
    """f = 1 - d: the kernel that the chapter calls Epanechnikov (eq. 5)."""

    name = "triangular"
    roughness = 2 / 3
    variance = 1 / 6
    polynomial = (1, -1)

    def values(self, z: Tensor) -> Tensor:
        """Return 1 - sqrt(z)."""
        return 1 - _root(z)

    def derivative(self, z: Tensor) -> Tensor:
        """Return -1 / (2 d), and 0 at the kink d = 0."""
        return -0.5 * _inverse_root(z)


class Epanechnikov(TaperedKernel):
    """f = 1 - d^2: the kernel that statistics calls Epanechnikov."""

    name = "epanechnikov"
    roughness = 3 / 5
    variance = 1 / 5
    polynomial = (1, 0, -1)
    square = ("biweight", 1.0)

    def values(self, z: Tensor) -> Tensor:
        """Return 1 - z."""
        return 1 - z

    def derivative(self, z: Tensor) -> Tensor:
        """Return -1."""
        return torch.full_like(z, -1.0)


class Biweight(TaperedKernel):
    """f = (1 - d^2)^2."""

    name = "biweight"
    roughness = 5 / 7
    variance = 1 / 7
    polynomial = (1, 0, -2, 0, 1)

    def values(self, z: Tensor) -> Tensor:
        """Return (1 - z)^2."""
        return (1 - z).square()

    def derivative(self, z: Tensor) -> Tensor:
        """Return -2 (1 - z)."""
        return -2 * (1 - z)


class Tricube(TaperedKernel):
    """f = (1 - d^3)^3."""

    name = "tricube"
    roughness = 175 / 247
    variance = 35 / 243
    polynomial = (1, 0, 0, -3, 0, 0, 3, 0, 0, -1)

    def values(self, z: Tensor) -> Tensor:
        """Return (1 - z sqrt(z))^3."""
        return (1 - z * _root(z)) ** 3

    def derivative(self, z: Tensor) -> Tensor:
        """Return -9/2 d (1 - d^3)^2."""
        return -4.5 * _root(z) * (1 - z * _root(z)).square()


class Cosine(TaperedKernel):
    """f = cos(pi d / 2)."""

    name = "cosine_kernel"
    roughness = math.pi**2 / 16
    variance = 1 - 8 / math.pi**2

    def values(self, z: Tensor) -> Tensor:
        """Return cos(pi sqrt(z) / 2), computed by a sine, which is accurate near the edge of the support."""
        return torch.sin((math.pi / 2) * (1 - _root(z)))

    def derivative(self, z: Tensor) -> Tensor:
        """Return -pi^2 / 8 sinc(d / 2)."""
        return (-(math.pi**2) / 8) * torch.sinc(0.5 * _root(z))


def ratio(squared: Tensor, width: Tensor) -> Tensor:
    """Return z = squared / width^2, computed by two divisions because the square of a tiny width underflows to 0."""
    return squared / width / width


def _zero_or_nan(z: Tensor) -> Tensor:
    """Return 0, or NaN where z is NaN. The result depends on z, so that the gradient of z is 0 and not None."""
    return torch.where(z.isnan(), z, 0.0)


def _root(z: Tensor) -> Tensor:
    """Return sqrt(z) with gradient 0 at z = 0, where the true gradient is infinite."""
    return torch.where(z <= 0, 0.0, torch.where(z <= 0, 1.0, z).sqrt())


def _inverse_root(z: Tensor) -> Tensor:
    """Return 1 / sqrt(z), and 0 at z = 0."""
    return torch.where(z <= 0, 0.0, torch.where(z <= 0, 1.0, z).rsqrt())


KERNELS: dict[str, Kernel] = {
    kernel.name: kernel
    for kernel in (
        SquaredExponential("squared_distance", 1.0),
        SquaredExponential("gaussian", 0.5),
        Laplacian(),
        Boxcar(),
        Triangular(),
        Epanechnikov(),
        Tricube(),
        Biweight(),
        Cosine(),
    )
}
"""All kernels, by name."""
