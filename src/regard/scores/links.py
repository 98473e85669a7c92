"""Radial kernels as scores: the logarithm of a kernel as a function of z = |q - k|^2 / width^2 (eq. 5).

A kernel f enters attention as log f, minus infinity outside its support: softmax(log f) = f / sum f, so that
eq. 4 is a case of eq. 3. Each link also has its slope, the derivative of log f in z, which the hand-written
backward passes use. Both are finite at z = 0 and at the edge of the support, where automatic differentiation
of the plain formula is not: the square root is never differentiated at 0, the logarithm never taken of 0.

A NaN distance gives a NaN log-kernel and a NaN slope. So every condition asks whether a pair is outside the support or
at the kink: a comparison with NaN is False, and NaN then follows the formula of a pair inside.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Link(ABC):
    """The logarithm of one radial kernel."""

    name: str
    differentiable = True

    def log_kernel(self, squared: Tensor, width: Tensor, dtype: torch.dtype) -> Tensor:
        """log f at squared distances, of a kernel of the given width; dtype is that of the user's data."""
        del dtype
        return self.of_ratio(ratio(squared, width))

    @abstractmethod
    def of_ratio(self, z: Tensor) -> Tensor:
        """log f(z); differentiable twice wherever f is."""

    @abstractmethod
    def slope(self, z: Tensor) -> Tensor:
        """d log f / dz inside the support, 0 outside and where f has a kink."""


class NegativeSquare(Link):
    """f = exp(-rate z): rate 1 is the negative squared distance of eq. 6, rate 1/2 the Gaussian of eq. 5."""

    def __init__(self, name: str, rate: float) -> None:
        """Name the link and fix its rate."""
        self.name = name
        self.rate = rate

    def of_ratio(self, z: Tensor) -> Tensor:
        """-rate z."""
        return z * -self.rate

    def slope(self, z: Tensor) -> Tensor:
        """-rate."""
        return torch.full_like(z, -self.rate)


class LaplacianLink(Link):
    """f = exp(-d)."""

    name = "laplacian"

    def of_ratio(self, z: Tensor) -> Tensor:
        """-sqrt(z)."""
        return -_root(z)

    def slope(self, z: Tensor) -> Tensor:
        """-1 / (2 d), and 0 at the kink d = 0."""
        return -0.5 * _inverse_root(z)


class BoxcarLink(Link):
    """f = 1 where d <= 1, the edge counted as inside (eq. 5)."""

    name = "boxcar"
    differentiable = False

    def log_kernel(self, squared: Tensor, width: Tensor, dtype: torch.dtype) -> Tensor:
        """Compare |q - k| <= width in the dtype of the data.

        sqrt(x^2) is |x| exactly in IEEE arithmetic, and rounding a float32 difference of two half-precision
        numbers to half precision is the half-precision difference: so this is that comparison and no other.
        """
        outside = squared.sqrt().to(dtype) > width.to(dtype)
        return torch.where(outside, -math.inf, _zero(squared))

    def of_ratio(self, z: Tensor) -> Tensor:
        """0 inside, minus infinity outside."""
        return torch.where(z > 1, -math.inf, _zero(z))

    def slope(self, z: Tensor) -> Tensor:
        """0: the boxcar is flat."""
        return torch.zeros_like(z)


class CompactLink(Link):
    """A kernel that falls to zero at d = 1: log f where f > 0, minus infinity elsewhere."""

    @abstractmethod
    def kernel(self, z: Tensor) -> Tensor:
        """f(z) for z in [0, 1)."""

    @abstractmethod
    def derivative(self, z: Tensor) -> Tensor:
        """f'(z) for z in [0, 1)."""

    def of_ratio(self, z: Tensor) -> Tensor:
        """log f inside; the argument of log is 1 outside, so that no gradient there is NaN."""
        outside, kernel = self._support(z)
        return torch.where(outside, -math.inf, kernel.log())

    def slope(self, z: Tensor) -> Tensor:
        """f' / f inside, 0 outside."""
        outside, kernel = self._support(z)
        return torch.where(outside, 0.0, self.derivative(torch.where(outside, 0.0, z)) / kernel)

    def _support(self, z: Tensor) -> tuple[Tensor, Tensor]:
        outside = z >= 1
        kernel = self.kernel(torch.where(outside, 0.0, z))
        outside = outside | (kernel <= 0)
        return outside, torch.where(outside, 1.0, kernel)


class TriangularLink(CompactLink):
    """f = 1 - d: what the chapter prints under the name Epanechnikov (eq. 5)."""

    name = "triangular"

    def kernel(self, z: Tensor) -> Tensor:
        """1 - sqrt(z)."""
        return 1 - _root(z)

    def derivative(self, z: Tensor) -> Tensor:
        """-1 / (2 d), and 0 at the kink d = 0."""
        return -0.5 * _inverse_root(z)


class EpanechnikovLink(CompactLink):
    """f = 1 - d^2: the kernel that is called Epanechnikov in statistics."""

    name = "epanechnikov"

    def kernel(self, z: Tensor) -> Tensor:
        """1 - z."""
        return 1 - z

    def derivative(self, z: Tensor) -> Tensor:
        """-1."""
        return torch.full_like(z, -1.0)


class BiweightLink(CompactLink):
    """f = (1 - d^2)^2."""

    name = "biweight"

    def kernel(self, z: Tensor) -> Tensor:
        """(1 - z)^2."""
        return (1 - z).square()

    def derivative(self, z: Tensor) -> Tensor:
        """-2 (1 - z)."""
        return -2 * (1 - z)


class TricubeLink(CompactLink):
    """f = (1 - d^3)^3."""

    name = "tricube"

    def kernel(self, z: Tensor) -> Tensor:
        """(1 - z sqrt(z))^3."""
        return (1 - z * _root(z)) ** 3

    def derivative(self, z: Tensor) -> Tensor:
        """-9/2 d (1 - d^3)^2."""
        return -4.5 * _root(z) * (1 - z * _root(z)).square()


class CosineLink(CompactLink):
    """f = cos(pi d / 2)."""

    name = "cosine_kernel"

    def kernel(self, z: Tensor) -> Tensor:
        """cos(pi sqrt(z) / 2), written as a sine so that it vanishes accurately at the edge."""
        return torch.sin((math.pi / 2) * (1 - _root(z)))

    def derivative(self, z: Tensor) -> Tensor:
        """-pi^2 / 8 sinc(d / 2)."""
        return (-(math.pi**2) / 8) * torch.sinc(0.5 * _root(z))


def ratio(squared: Tensor, width: Tensor) -> Tensor:
    """z = squared / width^2, in two divisions: the square of a tiny width would be 0."""
    return squared / width / width


def _zero(z: Tensor) -> Tensor:
    """0, or NaN where z is NaN; computed from z, so that autograd returns zeros and not None."""
    return z.clamp(0.0, 0.0)


def _root(z: Tensor) -> Tensor:
    """sqrt(z) with gradient 0 at z = 0, where the true one is infinite."""
    return torch.where(z <= 0, 0.0, torch.where(z <= 0, 1.0, z).sqrt())


def _inverse_root(z: Tensor) -> Tensor:
    """1 / sqrt(z), and 0 at z = 0."""
    return torch.where(z <= 0, 0.0, torch.where(z <= 0, 1.0, z).rsqrt())


LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        NegativeSquare("squared_distance", 1.0),
        NegativeSquare("gaussian", 0.5),
        LaplacianLink(),
        BoxcarLink(),
        TriangularLink(),
        EpanechnikovLink(),
        TricubeLink(),
        BiweightLink(),
        CosineLink(),
    )
}
