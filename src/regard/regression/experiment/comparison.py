"""Kernels compared over many draws: at width 1 as the chapter does it, and each at its own leave-one-out width."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.regression.bandwidth_search import canonical_ratio
from regard.regression.experiment import data, leave_one_out
from regard.regression.experiment.draws import Draws, fit
from regard.regression.experiment.one_line import OneLine
from regard.regression.inference import quantile
from regard.scores.names import KERNEL_SCORES

WIDTH_OF_THE_CHAPTER = 1.0
# Gaussian widths at which every kernel's error is followed, in proportion to what smooths as much.
FOLLOWED = tuple(0.06 * 2 ** (step / 3) for step in range(15))


class Interval(NamedTuple):
    """mean over the draws, and half the width of its 95% interval."""

    mean: float
    half: float


@dataclass(frozen=True)
class Judged:
    """One kernel over all draws. widths, errors: (draws,). filled: places that had no key in their window."""

    kernel: str
    widths: Tensor
    errors: Tensor
    filled: int


@dataclass(frozen=True)
class Comparison:
    """at_one, at_own: by kernel. constant: (draws,), the errors of the mean of y, a kernel without any width.

    followed: by kernel, the widths and the mean error at each of them, each (widths,).
    """

    at_one: dict[str, Judged]
    at_own: dict[str, Judged]
    constant: Tensor
    followed: dict[str, tuple[Tensor, Tensor]]


def interval(numbers: Tensor) -> Interval:
    """The mean of one number per draw; the draws are independent and many, so that it is nearly normal."""
    return Interval(float(numbers.mean()), quantile(0.95) * float(numbers.std()) / math.sqrt(len(numbers)))


def compare(draws: Draws) -> Comparison:
    """Every kernel of eq. 5 and the further ones, on the same draws."""
    line = OneLine(draws)
    one = torch.full_like(draws.x[:, 0], WIDTH_OF_THE_CHAPTER)
    return Comparison(
        at_one={kernel: judge(draws, kernel, one) for kernel in KERNEL_SCORES},
        at_own={kernel: judge(draws, kernel, leave_one_out.widths(line, kernel)) for kernel in KERNEL_SCORES},
        constant=(draws.y.mean(-1, keepdim=True) - data.truth(data.places())).square().mean(-1),
        followed={kernel: _follow(line, kernel) for kernel in KERNEL_SCORES},
    )


def judge(draws: Draws, kernel: str, widths: Tensor) -> Judged:
    """Fit every draw with its width and measure the error against the noiseless curve."""
    curves = fit(draws, kernel, widths)
    return Judged(kernel, widths, curves.errors(), curves.filled)


def _follow(line: OneLine, kernel: str) -> tuple[Tensor, Tensor]:
    widths = torch.tensor(FOLLOWED, dtype=torch.float64, device="cpu") * canonical_ratio(kernel)
    errors = [line.fit(kernel, width).errors().mean() for width in widths.tolist()]
    return widths, torch.stack(errors)
