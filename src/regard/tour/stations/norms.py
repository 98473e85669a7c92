"""Station 3: from the distance to the dot product, and what the norms of the keys have to do with it (eq. 5 to 8)."""

import math

import torch

from regard.regression.experiment import Experiment, figures
from regard.regression.experiment.norms import Dropped
from regard.tour.charts import Curves, Series
from regard.tour.station import Station, Table

QUERIES, KEYS, RADIUS, DIM = 12, 16, 2.2, 2
SEED = 5


def present(experiment: Experiment) -> Station:
    """Keys in all directions of a plane, how far each may leave their common norm, and the measured cost."""
    dropped = experiment.dropped
    generator = torch.Generator().manual_seed(SEED)
    stretch = 2 * torch.rand(KEYS, generator=generator, dtype=torch.float64) - 1
    stretch = stretch - stretch.mean()
    spread = {"sd of |k|^2": dropped.spreads, **dropped.by_spread, "bound for eq. 7": dropped.bound}
    return Station(
        "norms",
        "From regression to attention in one slider",
        facts={"exact": f"{dropped.exact:.0e}", "radius": f"{RADIUS:g}", "keys": str(KEYS), "queries": str(QUERIES)},
        data={
            "queries": _circle(QUERIES),
            "keys": _circle(KEYS),
            "stretch": (stretch / stretch.abs().max()).tolist(),
        },
        charts={"moved": _chart(dropped)},
        tables=(Table("norms", tuple(spread), list(zip(*(c.tolist() for c in spread.values()), strict=True))),),
        figures={"norms": figures.draw_norms(dropped)},
        beats=(
            "spread=0&constants=own",
            "spread=0.3&constants=own",
            "spread=0.6&constants=own",
            "spread=0&constants=printed",
        ),
    )


def _chart(dropped: Dropped) -> Curves:
    """What three ways of dropping the norms cost, and what the first may cost at most."""
    spreads = dropped.spreads.tolist()
    names = ("eq. 7: 2 q·k for −|q − k|²", "eq. 8: q·k for −|q − k|²", "q·k for eq. 5, −|q − k|²/2")
    found = [
        Series(name, list(zip(spreads, column.tolist(), strict=True)), f"c{place}")
        for place, (name, column) in enumerate(zip(names, dropped.by_spread.values(), strict=True))
    ]
    bound = Series("bound for eq. 7", list(zip(spreads, dropped.bound.tolist(), strict=True)), "truth")
    return Curves([*found, bound], (0, 0.6), (0, 0.5), "standard deviation of |k|²", "share of weight moved")


def _circle(count: int) -> list[list[float]]:
    """(count, 2): directions in even steps, all of the norm `RADIUS`."""
    angles = [2 * math.pi * step / count for step in range(count)]
    return [[RADIUS * math.cos(angle), RADIUS * math.sin(angle)] for angle in angles]
