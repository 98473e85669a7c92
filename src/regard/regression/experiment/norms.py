"""What it costs to drop the norms of the keys, the step from the distance to the dot product (eq. 6 to 8).

    softmax(-|q - k|^2) = softmax(2 q'k - |k|^2)

exactly, since |q|^2 is the same for all keys. Eq. 7 drops |k|^2 as nearly constant; eq. 8 drops the factor 2 as well,
and is thereby nearer to the Gaussian of eq. 5, which has a 1/2: softmax(-|q - k|^2 / 2) = softmax(q'k - |k|^2 / 2).

Two weights whose scores differ by delta_j, up to a constant, have a total variation of at most
tanh((max delta - min delta) / 4): so much the spread of the norms allows, whatever queries and keys are.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import regard
from regard.scores import Dot, Gaussian, ScaledDot, SquaredDistance
from regard.scores.base import Score

QUERIES, KEYS, DIM = 64, 100, 8
# |k|^2 is uniform around 1; a larger spread would make some of them negative.
SPREADS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.57)
DIMENSIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DRAWS = 10


@dataclass(frozen=True)
class Dropped:
    """Total variations between weights with and without the norms, means over queries and draws.

    exact: the largest difference between softmax(-|q - k|^2) and softmax(2 q'k - |k|^2): rounding.
    spreads: (spreads,), the standard deviation of |k|^2. by_spread: name of the step to (spreads,).
    bound: (spreads,), what tanh allows for eq. 7.
    dimensions: (dimensions,). by_dimension: which keys to (dimensions,), for eq. 8 with its 1 / sqrt(D).
    """

    exact: float
    spreads: Tensor
    by_spread: dict[str, Tensor]
    bound: Tensor
    dimensions: Tensor
    by_dimension: dict[str, Tensor]


def measure() -> Dropped:
    """Draw queries and keys, and compare the weights."""
    generator = torch.Generator().manual_seed(0)
    rows = [_by_spread(spread, generator) for spread in SPREADS]
    exact, spreads, seven, eight, gaussian, bound = torch.tensor(rows, dtype=torch.float64, device="cpu").T
    drawn, level = torch.tensor(
        [_by_dimension(dim, generator) for dim in DIMENSIONS], dtype=torch.float64, device="cpu"
    ).T
    return Dropped(
        float(exact.max()),
        spreads,
        {
            "eq. 7: 2 q'k for −|q − k|²": seven,
            "eq. 8: q'k for −|q − k|²": eight,
            "q'k for −|q − k|²/2, the Gaussian of eq. 5": gaussian,
        },
        bound,
        torch.tensor(DIMENSIONS, device="cpu"),
        {"k ~ N(0, I)": drawn, "the same, scaled to |k| = √D": level},
    )


def _by_spread(spread: float, generator: torch.Generator) -> tuple[float, ...]:
    """The rounding of the identity, the spread that was drawn, three total variations and the bound of the first."""
    query, key = _directions(QUERIES, generator), _directions(KEYS, generator)
    uniform = torch.rand(DRAWS, KEYS, 1, generator=generator, dtype=torch.float64, device="cpu") - 0.5
    key = key * (1 + spread * math.sqrt(12) * uniform).sqrt()
    norms = key.square().sum(-1)
    distance = _weights(query, key, SquaredDistance())
    identity = _weights(query, key, ScaledDot(2.0), bias=-norms.unsqueeze(1))
    twice, once = _weights(query, key, ScaledDot(2.0)), _weights(query, key, Dot())
    return (
        float((distance - identity).abs().max()),
        float(norms.std(-1, correction=0).mean()),
        total_variation(distance, twice),
        total_variation(distance, once),
        total_variation(_weights(query, key, Gaussian(1.0)), once),
        float(((norms.amax(-1) - norms.amin(-1)) / 4).tanh().mean()),
    )


def _by_dimension(dim: int, generator: torch.Generator) -> tuple[float, float]:
    """Eq. 8 for the Gaussian with the same 1 / sqrt(D), its width being D^(1/4): keys as drawn, and of one norm."""
    query = torch.randn(DRAWS, QUERIES, dim, generator=generator, dtype=torch.float64, device="cpu")
    key = torch.randn(DRAWS, KEYS, dim, generator=generator, dtype=torch.float64, device="cpu")
    level = key / key.norm(dim=-1, keepdim=True) * math.sqrt(dim)
    drawn, scaled = (
        total_variation(_weights(query, keys, Gaussian(dim**0.25)), _weights(query, keys, ScaledDot()))
        for keys in (key, level)
    )
    return drawn, scaled


def total_variation(one: Tensor, other: Tensor) -> float:
    """Half the sum of absolute differences, averaged over the queries: the share of weight on other keys."""
    return float((one - other).abs().sum(-1).mean() / 2)


def _weights(query: Tensor, key: Tensor, score: Score, bias: Tensor | None = None) -> Tensor:
    """(draws, queries, keys)."""
    return regard.inspect(query, key, key, score=score, bias=bias).weights()


def _directions(count: int, generator: torch.Generator) -> Tensor:
    """(draws, count, dim), each of norm 1."""
    drawn = torch.randn(DRAWS, count, DIM, generator=generator, dtype=torch.float64, device="cpu")
    return drawn / drawn.norm(dim=-1, keepdim=True)
