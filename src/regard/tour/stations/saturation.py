"""Station 4: without 1 / sqrt(D) the softmax saturates (eq. 8)."""

from typing import Any

import torch

import regard
from regard.experiments.scores import DIMENSIONS, Saturation, measure_saturation
from regard.scores import Dot
from regard.tour.charts import Curves, Series
from regard.tour.station import Station, Table

KEYS, SEED = 24, 3
DRAWN = (("dot", "q·k", "c1"), ("scaled dot", "q·k / √D", "c0"))
AXES: dict[str, Any] = {"log_x": True, "ticks": (2, 8, 32, 128, 1024), "places": DIMENSIONS}


def present() -> Station:
    """Entropy and gradients over many queries, and the scores of one query in every dimension."""
    found = measure_saturation()
    table = found.table()
    last = {row.score: row for row in found.rows if row.dim == DIMENSIONS[-1]}
    return Station(
        "saturation",
        "Why the dot product is scaled",
        facts={
            "queries": f"{found.queries:,}",
            "keys": str(found.keys),
            "vanished": f"{100 * last['dot'].vanished:.0f}",
            "kept": f"{100 * last['scaled dot'].vanished:.0f}",
        },
        data={
            "dimensions": list(DIMENSIONS),
            "scores": [_scores(dim) for dim in DIMENSIONS],
        },
        charts={"entropy": _entropy(found), "gradient": _gradient(found)},
        tables=(Table("saturation", table.header, table.rows),),
        figures={"saturation": found.draw()},
        beats=("dimension=0", "dimension=4", "dimension=9"),
    )


def _entropy(found: Saturation) -> Curves:
    series = [Series(name, [(row.dim, row.entropy) for row in found.of(score)], kind) for score, name, kind in DRAWN]
    return Curves(series, (2, 1024), (0, 1), "D", "entropy, as a share of even weights", **AXES)


def _gradient(found: Saturation) -> Curves:
    series = [
        Series(
            name,
            [(row.dim, row.gradient) for row in found.of(score)],
            kind,
            [(row.dim, row.low, row.high) for row in found.of(score)],
        )
        for score, name, kind in DRAWN
    ]
    return Curves(series, (2, 1024), (1e-9, 1), "D", "norm of ∂o/∂s, median", log_y=True, **AXES)


def _scores(dim: int) -> list[float]:
    """q'k of one query with `KEYS` keys, all N(0, I), the largest first."""
    generator = torch.Generator().manual_seed(SEED)
    query, key = (torch.randn(count, dim, generator=generator, dtype=torch.float64) for count in (1, KEYS))
    return regard.inspect(query, key, key, Dot()).scores()[0].sort(descending=True).values.tolist()
