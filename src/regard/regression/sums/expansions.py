"""Compact kernels of eq. 5 as sums of products, f(s - t) = sum_p a_p(s) b_p(t): s is the query's place, t the key's.

Distances are in widths and lie in [0, 1]: f is the kernel on one side of the query, a polynomial in |u| or a cosine.
"""

import functools
import itertools
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from regard.scores.kernels import KERNELS


class Expansion(ABC):
    """One kernel, and the kernel times powers of the distance (the moments of local linear regression)."""

    @abstractmethod
    def terms(self, power: int) -> int:
        """How many products there are where the kernel is wanted up to that power of the distance."""

    @abstractmethod
    def of_keys(self, place: Tensor, channels: Tensor, power: int) -> Tensor:
        """b_p(t) times each channel: place (...), channels (channels, ...) -> (terms, channels, ...)."""

    @abstractmethod
    def of_queries(self, place: Tensor, share: Tensor, power: int) -> Tensor:
        """a_p(s) of the kernel times each power from 0, times a share: (queries,) -> (power + 1, terms, queries)."""

    @abstractmethod
    def mirror(self, factors: Tensor, sign: Tensor) -> None:
        """Turn what of_queries gave into the factors for b_p(sign t), in place; sign: (queries,), 1 or -1."""

    @abstractmethod
    def size(self, reach: Tensor, first: Tensor) -> Tensor:
        """A bound of sum_p |a_p(s)| sum_j w_j |b_p(t_j)|: the rounding error of the sum is a few eps of it.

        reach: (queries,), |s| plus the largest |t|. first: (queries,), the sum of w_j b_0(t_j).
        """


class Polynomial(Expansion):
    """f(v) = sum_d c_d v^d with the coefficients c."""

    def __init__(self, *coefficients: float) -> None:
        """Keep the coefficients, that of v^0 first."""
        self.coefficients = coefficients

    def terms(self, power: int) -> int:
        """1, t, t^2, ..."""
        return len(self.coefficients) + power

    def of_keys(self, place: Tensor, channels: Tensor, power: int) -> Tensor:
        """t^p."""
        result = channels.new_empty(self.terms(power), *channels.shape)
        result[0] = channels
        degrees = result.unbind(0)
        for last, degree in itertools.pairwise(degrees):
            torch.mul(last, place, out=degree)
        return result

    def of_queries(self, place: Tensor, share: Tensor, power: int) -> Tensor:
        """(s - t)^d multiplied out: t^p has the factor (-1)^p binomial(d, p) s^(d - p)."""
        powers = self.of_keys(place, share.unsqueeze(0), power).squeeze(1)
        return self._multiplied_out(power).to(place.device) @ powers

    @functools.cache  # noqa: B019 - there is one object of each kernel
    @torch.inference_mode(False)  # kept for calls of every mode
    def _multiplied_out(self, power: int) -> Tensor:
        terms = self.terms(power)
        matrix = torch.zeros(power + 1, terms, terms, dtype=torch.float64, device="cpu")
        for more in range(power + 1):
            for degree, coefficient in enumerate(self.coefficients, start=more):
                for p in range(degree + 1):
                    matrix[more, p, degree - p] += coefficient * math.comb(degree, p) * (-1) ** p
        return matrix

    def mirror(self, factors: Tensor, sign: Tensor) -> None:
        """(-t)^p = (-1)^p t^p."""
        factors[:, 1::2].mul_(sign)

    def size(self, reach: Tensor, first: Tensor) -> Tensor:
        """sum_d |c_d| (|s| + |t|)^d for each unit of weight; (1 + |s|^3)^3 is summed as a polynomial in |s|^3."""
        stride = math.gcd(*(degree for degree, coefficient in enumerate(self.coefficients) if coefficient)) or 1
        step, result = reach**stride, torch.zeros_like(reach)
        for coefficient in reversed(self.coefficients[::stride]):
            result.mul_(step).add_(abs(coefficient))
        return result.mul_(first)


class Cosine(Expansion):
    """f(v) = cos(pi v / 2), by cos(a - b) = cos a cos b + sin a sin b."""

    def terms(self, power: int) -> int:
        """cos and sin, each times 1, t, t^2, ..."""
        return 2 * (power + 1)

    def of_keys(self, place: Tensor, channels: Tensor, power: int) -> Tensor:
        """t^p cos(pi t / 2), t^p sin(pi t / 2)."""
        angle = place * (math.pi / 2)
        both = torch.stack([channels * angle.cos(), channels * angle.sin()])
        return torch.cat([both * place**p for p in range(power + 1)]) if power else both

    def of_queries(self, place: Tensor, share: Tensor, power: int) -> Tensor:
        """(s - t)^r multiplied out, times cos(pi s / 2) and sin(pi s / 2)."""
        angle = place * (math.pi / 2)
        both = torch.stack([angle.cos(), angle.sin()]).mul_(share)
        result = place.new_zeros(power + 1, power + 1, 2, len(place))
        for more in range(power + 1):
            for p in range(more + 1):
                result[more, p] = both * (math.comb(more, p) * (-1) ** p * place ** (more - p))
        return result.flatten(1, 2)

    def mirror(self, factors: Tensor, sign: Tensor) -> None:
        """Cos is even, sin is odd."""
        pairs = factors.unflatten(1, (-1, 2))
        pairs[:, ::2, 1].mul_(sign)
        pairs[:, 1::2, 0].mul_(sign)

    def size(self, reach: Tensor, first: Tensor) -> Tensor:
        """2 for each unit of weight; on a cell the cosine is at least 0.7, so that its sum bounds the weight."""
        del reach
        return first * 3


class CosineSquare(Expansion):
    """f(v) = cos(pi v / 2)^2 = (1 + cos(pi v)) / 2, without powers of the distance."""

    def terms(self, power: int) -> int:
        """1, cos and sin."""
        assert power == 0, "nobody asks for moments of a squared kernel"
        return 3

    def of_keys(self, place: Tensor, channels: Tensor, power: int) -> Tensor:
        """1, cos(pi t), sin(pi t)."""
        del power
        angle = place * math.pi
        return torch.stack([channels, channels * angle.cos(), channels * angle.sin()])

    def of_queries(self, place: Tensor, share: Tensor, power: int) -> Tensor:
        """Half of each of 1, cos(pi s), sin(pi s)."""
        del power
        angle = place * math.pi
        return torch.stack([torch.ones_like(angle), angle.cos(), angle.sin()]).mul_(share / 2).unsqueeze(0)

    def mirror(self, factors: Tensor, sign: Tensor) -> None:
        """Cos is even, sin is odd."""
        factors[:, 2].mul_(sign)

    def size(self, reach: Tensor, first: Tensor) -> Tensor:
        """3 / 2 for each unit of weight."""
        del reach
        return first * 1.5


def _square(kernel: Expansion) -> Expansion:
    """The expansion of a kernel's square."""
    if not isinstance(kernel, Polynomial):
        return CosineSquare()
    coefficients = kernel.coefficients
    product = [0.0] * (2 * len(coefficients) - 1)
    for first, one in enumerate(coefficients):
        for second, other in enumerate(coefficients):
            product[first + second] += one * other
    return Polynomial(*product)


EXPANSIONS: dict[str, Expansion] = {
    name: Cosine() if kernel.polynomial is None else Polynomial(*kernel.polynomial)
    for name, kernel in KERNELS.items()
    if kernel.is_compact
}
SQUARES: dict[str, Expansion] = {name: _square(kernel) for name, kernel in EXPANSIONS.items()}
