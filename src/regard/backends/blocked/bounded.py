"""The forward sweep for scores that are never above 0: sums of e^score as they are, without a running maximum.

A kernel is at most 1, so no sum of it overflows, and where the mass of a row is not tiny nothing that counts has
underflowed: a tile costs its scores, one exponential, and one product that gives the pooled values and the mass
together. A row of tiny mass is far from every key; its block is swept again by online softmax, so that the limit
is still the nearest key.
"""

import math

import torch
from torch import Tensor

from regard.backends.blocked.sweep import Sweep, pool_rows
from regard.backends.blocked.tiles import Tiles, exp_


def suits(tiles: Tiles, sweep: Sweep) -> bool:
    """On a CPU, where mass can be looked at without waiting; a bias may belong to keys, as sample weights do."""
    if not tiles.never_positive or sweep.value.device.type != "cpu":
        return False
    return sweep.bias is None or (sweep.bias.shape[-2] == 1 and bool(sweep.bias.amax().isfinite()))


def forward(tiles: Tiles, sweep: Sweep) -> tuple[Tensor, Tensor, None]:
    """Output (*batch, queries, value_dim) and log_mass (*batch, queries), in the accumulation dtype; no scores."""
    weighted, ceiling = _weighted_values(sweep)
    reached = tiles.compact and _reaches_every_window(weighted)
    output = weighted.new_empty(*sweep.batch, sweep.queries, sweep.value.shape[-1])
    log_mass = weighted.new_empty(*sweep.batch, sweep.queries)
    # Half of the exponents for the mass, the other half for the values that it multiplies.
    tiny = math.sqrt(torch.finfo(weighted.dtype).tiny)
    for rows, columns in sweep.blocks():
        sums = weighted.new_zeros(*sweep.batch, weighted.shape[-2], rows.stop - rows.start)
        for cols in columns:
            mass = sweep.forbid(tiles.masses(rows, cols), rows, cols, 0.0)
            # This way round: a product with few columns is several times slower than one with few rows.
            product = weighted[..., cols] @ mass.mT
            kept = sweep.kept(rows, cols, mass)
            if kept is None:
                sums += product
            else:
                sums[..., -1:, :] += product[..., -1:, :]
                sums[..., :-1, :] += weighted[..., :-1, cols] @ (mass * kept).mT
        pooled, total = sums[..., :-1, :].mT, sums[..., -1:, :].mT
        far = total < tiny
        if reached:
            far &= total > 0
        if columns and bool(far.any()):
            output[..., rows, :], log_mass[..., rows] = pool_rows(tiles, sweep, rows, columns)
            continue
        torch.div(pooled, total.masked_fill(total == 0, 1.0), out=output[..., rows, :])
        log_mass[..., rows] = total.squeeze(-1).log_().add_(ceiling)
    return output, log_mass, None


def _weighted_values(sweep: Sweep) -> tuple[Tensor, float]:
    """e^(bias - ceiling) times [value, 1], (*batch, value_dim + 1, keys), and the ceiling of the bias."""
    value = sweep.value
    ones = value.new_ones(*value.shape[:-1], 1)
    if sweep.bias is None:
        return torch.cat([value, ones], -1).mT.contiguous(), 0.0
    ceiling = sweep.bias.amax()
    weight = exp_(sweep.bias - ceiling).mT
    return (weight * torch.cat([value, ones], -1)).mT.contiguous(), float(ceiling)


def _reaches_every_window(weighted: Tensor) -> bool:
    """Whether a compact kernel, 0 or at least eps^3, shows beside the smallest weight: no mass means no key then."""
    numbers = torch.finfo(weighted.dtype)
    return float(weighted[..., -1, :].amin()) >= numbers.tiny / numbers.eps**3
