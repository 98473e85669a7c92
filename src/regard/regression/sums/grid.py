"""Gaussian sums of every row over the other rows at many widths at once, on one grid: rough, for a scan of widths.

Rows spread their weights to the nodes around them by Lagrange's weights, once for all widths. The kernel between nodes
is a convolution, by Fourier transforms, and each row reads its sums off the same nodes by the same weights.

Error: interpolating a Gaussian of m nodes a width by 12 of them is off by at most 0.58 m^-12 (Lagrange's formula, with
10,395 as the largest 12th derivative). That happens twice, to the key and to the row, where it is weighed by at most 2
in sum. So a sum is off by less than 1.8 m^-12, and some roundings, times all weight; a mean by that over the weight
that its row sees.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.regression.sums.observations import Observations

SIZE = 2**12
NODES = 12
# Narrower kernels are not promised anything: their sums are not even computed.
FEWEST_NODES_A_WIDTH = 4
# Of sums of Fourier transforms, as a share of all weight.
ROUNDING = 1e-14
# What is promised of a mean, as a share of the range of the values.
TOLERANCE = 1e-6


class Seen(NamedTuple):
    """mean: (widths, rows, outputs), each row predicted from the others. sure: (widths,), where TOLERANCE holds."""

    mean: Tensor
    sure: list[bool]


def pool_others(data: Observations, widths: Sequence[float]) -> Seen:
    """Pool at every row of the line the rows without min(weight, 1) of itself; data.key is (rows, 1)."""
    key, value = data.key[:, 0].double(), data.value.double()
    weight = torch.ones_like(key) if data.weight is None else data.weight.double()
    step = float(key.max() - key.min()) / (SIZE - NODES)
    nodes_a_width = torch.tensor(widths, dtype=torch.float64, device=key.device) / step
    wide = nodes_a_width >= FEWEST_NODES_A_WIDTH
    mean = value.new_zeros(len(widths), *value.shape)
    if step == 0 or not bool(wide.any()):
        return Seen(mean, [False] * len(widths))
    nodes_a_width = nodes_a_width[wide]
    node, factor = _around((key - key.min()) / step)
    centre = value.mean(0)
    masses = weight * torch.cat([torch.ones_like(key).unsqueeze(0), (value - centre).T])
    sums = _read(_convolved(_spread(masses, node, factor), nodes_a_width), node, factor)
    sums -= masses * (weight.clamp(max=1) / weight)
    seen = sums[:, 0]
    sure = wide.clone()
    off = 1.8 * nodes_a_width**-NODES + ROUNDING
    sure[wide] = seen.amin(-1) * TOLERANCE >= weight.sum() * off
    mean[wide] = (sums[:, 1:] / seen.unsqueeze(1)).mT + centre
    return Seen(mean, sure.tolist())


def _around(place: Tensor) -> tuple[Tensor, Tensor]:
    """The nodes around each place, in units of a step, and Lagrange's weights: (NODES, rows) each."""
    first = place.floor().long()
    offsets = torch.arange(NODES, device=place.device).unsqueeze(-1)
    away = (place - first) + (NODES // 2 - 1) - offsets
    # The product of all other distances: of those before times those after.
    one = torch.ones_like(away[:1])
    before = torch.cat([one, away[:-1]]).cumprod(0)
    after = torch.cat([one, away[1:].flip(0)]).cumprod(0).flip(0)
    factor = before.mul_(after).div_(_between_nodes().to(place.device))
    return first + offsets, factor


def _between_nodes() -> Tensor:
    """The products of the distances from each node to all others, (NODES, 1)."""
    products = [math.prod(one - other for other in range(NODES) if other != one) for one in range(NODES)]
    return torch.tensor(products, dtype=torch.float64).unsqueeze(-1)


def _spread(masses: Tensor, node: Tensor, factor: Tensor) -> Tensor:
    """(channels, rows) -> (channels, SIZE)."""
    given = (masses.unsqueeze(1) * factor).flatten(1)
    return masses.new_zeros(len(masses), SIZE).index_add_(1, node.flatten(), given)


def _convolved(grid: Tensor, nodes_a_width: Tensor) -> Tensor:
    """(channels, SIZE) with a Gaussian of each width -> (widths, channels, SIZE)."""
    away = torch.arange(SIZE + 1, device=grid.device, dtype=grid.dtype)
    kernel = (away / nodes_a_width.unsqueeze(-1)).square_().div_(-2).exp_()
    # The transform of an even function is real: that of half of it and its mirror image, without the last node.
    spectrum = torch.fft.rfft(torch.cat([kernel, kernel[:, 1:-1].flip(-1)], -1)).real
    found = torch.fft.irfft(spectrum.unsqueeze(1) * torch.fft.rfft(grid, 2 * SIZE), 2 * SIZE)
    return found[..., :SIZE]


def _read(grids: Tensor, node: Tensor, factor: Tensor) -> Tensor:
    """(widths, channels, SIZE) -> (widths, channels, rows)."""
    sums = grids.new_zeros(*grids.shape[:2], node.shape[1])
    for index, share in zip(node, factor, strict=True):
        sums.addcmul_(grids[..., index], share)
    return sums
