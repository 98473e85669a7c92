"""The lift's errors against its rank, promised and observed: benchmarks/results/lift-errors.json.

Observed: tables read by linear interpolation in float32, features rounded to float16, the query's times a weight in
[1/2, 1), as the kernels do it for one hidden unit. What a wide product rounds is in the promise and not looked at here.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

from regard.backends.triton.additive.lift import CELLS, Lift, Tables, lift_of

KEPT = Path(__file__).parents[1] / "results" / "lift-errors.json"
REACHES = (2.0, 4.0, 6.0)
RANKS = range(4, 41, 2)
PAIRS = 50_000
SEED = 1


def write() -> None:
    """Measure every rank for every reach, the same for queries and keys."""
    rows = [row(reach, rank) for reach in REACHES for rank in RANKS]
    kept = {"suite": "lift-errors", "seed": SEED, "pairs": 2 * PAIRS, "rows": rows}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")


def row(reach: float, rank: int) -> dict:
    """Promised and worst observed errors of a tanh and of its slope in a or b."""
    lift = lift_of(reach, reach, rank)
    value, slope = observed(lift, *pairs(reach))
    promised = {"value_promised": lift.value_error, "slope_promised": lift.slope_error}
    return {"reach": reach, "rank": rank, **promised, "value_observed": value, "slope_observed": slope}


def pairs(reach: float) -> tuple[Tensor, Tensor, Tensor]:
    """a, b and a weight, (pairs,) each: half of them anywhere, half opposed, where tanh is steepest."""
    generator = torch.Generator().manual_seed(SEED)
    a, b, opposed = (reach * (2 * torch.rand(PAIRS, generator=generator) - 1) for _ in range(3))
    weight = 0.5 + 0.4999 * torch.rand(2 * PAIRS, generator=generator)
    return torch.cat([a, opposed]), torch.cat([b, -opposed]), weight


def observed(lift: Lift, a: Tensor, b: Tensor, weight: Tensor) -> tuple[float, float]:
    """The largest errors of the value, and of the slope in a or in b."""
    tanh = torch.tanh(a.double() + b.double())
    phi = (read(lift.query.values, lift.query, a) * weight[:, None]).half().float()
    psi = read(lift.key.values, lift.key, b).half().float()
    own_terms = read(lift.query.own_term, lift.query, a) + read(lift.key.own_term, lift.key, b)
    value = (phi * psi).sum(-1) / weight + own_terms
    by_query = (read(lift.query.slopes, lift.query, a) * psi).sum(-1) + read(lift.query.own_slope, lift.query, a)
    by_key = (read(lift.key.slopes, lift.key, b) * phi).sum(-1) / weight + read(lift.key.own_slope, lift.key, b)
    slope = max(float((found - (1 - tanh**2)).abs().max()) for found in (by_query, by_key))
    return float((value - tanh).abs().max()), slope


def read(table: Tensor, side: Tables, x: Tensor) -> Tensor:
    """A table (CELLS + 1, ...) at x (pairs,) by linear interpolation in float32: (pairs, ...)."""
    position = (x + side.range) * (CELLS / (2 * side.range))
    cell = position.long().clamp(0, CELLS - 1)
    fraction = (position - cell).reshape(-1, *[1] * (table.ndim - 1))
    return table[cell] + fraction * (table[cell + 1] - table[cell])
