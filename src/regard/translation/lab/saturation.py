"""Point 18 of the chapter: scaling keeps the softmax from saturating, measured against the dimension (eq. 8).

Queries and keys are standard normal in D dimensions, so that q'k has variance D and q'k / sqrt(D) variance 1. With
scalar values v ~ N(0, 1) the pooled value is o = sum_j alpha_j v_j, and what can be learnt passes through

    do / ds_j = alpha_j (v_j - o),

which is 0 where one weight is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

import regard
from regard.scores import Dot, ScaledDot
from regard.scores.base import Score
from regard.translation.lab.finding import Finding, Table, columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIMENSIONS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
QUERIES, KEYS, DRAWS = 256, 64, 8
SCORES: dict[str, type[Score]] = {"dot": Dot, "scaled dot": ScaledDot}
# A gradient below this is lost among those of other queries: at even weights it has a norm of about 1 / sqrt(keys).
VANISHED = 1e-3


@dataclass(frozen=True)
class Saturated:
    """One score in one dimension, over all queries of all draws.

    entropy: of the weights, as a share of the even one's; the mean.
    gradient: the norm of do / ds, its median, with its 10% and 90% quantiles `low` and `high`.
    vanished: the share of queries whose gradient is below `VANISHED`.
    by_query: the norm of do / dq, its median.
    """

    score: str
    dim: int
    entropy: float
    gradient: float
    low: float
    high: float
    vanished: float
    by_query: float


@dataclass(frozen=True)
class Saturation(Finding):
    """Entropy and gradients against the dimension."""

    name: ClassVar[str] = "saturation"

    rows: tuple[Saturated, ...]
    keys: int
    queries: int

    def of(self, score: str) -> list[Saturated]:
        """One score, in the order of dimensions."""
        return sorted((row for row in self.rows if row.score == score), key=lambda row: row.dim)

    def __str__(self) -> str:
        lines = [
            ("dimension", *(f"{what}, {score}" for what in ("entropy", "|do/ds|", "vanished") for score in SCORES))
        ]
        for one, other in zip(*(self.of(score) for score in SCORES), strict=True):
            cells = [f"{row.entropy:.3f}" for row in (one, other)]
            cells += [f"{row.gradient:.1e}" for row in (one, other)]
            cells += [f"{100 * row.vanished:.0f}%" for row in (one, other)]
            lines.append((str(one.dim), *cells))
        note = (
            f"  {self.queries} queries over {self.keys} keys, all N(0, 1). Entropy as a share of the even one; the "
            f"median norm of do/ds; the share of queries for which it is below {VANISHED:g}."
        )
        return f"{columns(lines)}\n{note}"

    def table(self) -> Table:
        """A row for each score and dimension."""
        return Table(tuple(Saturated.__dataclass_fields__), tuple(tuple(asdict(row).values()) for row in self.rows))

    def to_dict(self) -> dict[str, Any]:
        """Everything that was measured."""
        return asdict(self)

    def draw(self) -> Figure:
        """Three panels over the dimension: entropy, gradient, share of vanished gradients."""
        from regard.translation.lab.figures.saturation import draw_saturation

        return draw_saturation(self)


def measure_saturation(dimensions: Sequence[int] = DIMENSIONS, draws: int = DRAWS, seed: int = 0) -> Saturation:
    """Draw queries, keys and values in every dimension; both scores see the same ones."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for dim in dimensions:
        query, key, value = (
            torch.randn(draws, count, width, generator=generator, dtype=torch.float64)
            for count, width in ((QUERIES, dim), (KEYS, dim), (KEYS, 1))
        )
        rows += [_measure(name, make(), query, key, value) for name, make in SCORES.items()]
    return Saturation(tuple(rows), KEYS, QUERIES * draws)


def _measure(name: str, score: Score, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Saturated:
    query = query.clone().requires_grad_()
    # A bias of 0 is added to the scores: its gradient is that of the scores.
    bias = torch.zeros(*query.shape[:-1], key.shape[-2], dtype=query.dtype, requires_grad=True)
    record = regard.inspect(query, key, value, score=score, bias=bias)
    weights = record.weights().detach()
    entropy = torch.special.entr(weights).sum(-1).mean() / torch.log(torch.tensor(float(key.shape[-2])))
    by_score, by_query = torch.autograd.grad(record.output.sum(), (bias, query))
    norms = by_score.norm(dim=-1).flatten()
    low, median, high = norms.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=norms.dtype)).tolist()
    return Saturated(
        score=name,
        dim=query.shape[-1],
        entropy=float(entropy),
        gradient=median,
        low=low,
        high=high,
        vanished=float((norms < VANISHED).double().mean()),
        by_query=float(by_query.norm(dim=-1).median()),
    )
