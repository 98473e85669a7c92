"""Point 19 of the chapter, its price: parameters, speed and memory of each score on the same queries and keys.

All queries ask at once here, forwards and backwards, through the very module that the translation model asks with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from regard.translation.lab.competitors import EVERY, NONE, Competitor
from regard.translation.lab.costs import MEGA, fastest
from regard.translation.lab.finding import Finding, Table, columns
from regard.translation.lab.live_memory import peak_bytes
from regard.translation.model import Architecture, AttentionContext

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH, QUERIES, KEYS, HIDDEN = 16, 64, 64, 128
ROUNDS = 5


@dataclass(frozen=True)
class ScoreCost:
    """Of one score. parameters: of its attention alone. speed: queries a second, forwards and backwards.

    bytes: the most that one pass holds at once.
    """

    competitor: Competitor
    parameters: int
    speed: float
    bytes: int


@dataclass(frozen=True)
class ScoreCosts(Finding):
    """Of every score, on tensors of one size."""

    name: ClassVar[str] = "score-costs"

    scores: tuple[ScoreCost, ...]
    sizes: dict[str, int]
    threads: int
    device: str

    def __str__(self) -> str:
        rows = [("score", "parameters", "queries/s", "MiB")]
        for cost in self.scores:
            figures = (f"{cost.parameters:,}", f"{cost.speed:,.0f}", f"{cost.bytes / MEGA:.1f}")
            rows.append((str(cost.competitor), *figures))
        sizes = ", ".join(f"{name} {size}" for name, size in self.sizes.items())
        note = "Scores without a matrix of their own have one that brings the keys to the query's size."
        return f"{columns(rows)}\n  {sizes}; forwards and backwards.\n  {note}"

    def table(self) -> Table:
        """A row for each score."""
        header = ("score", "parameters", "queries per second", "bytes")
        return Table(header, tuple((str(c.competitor), c.parameters, c.speed, c.bytes) for c in self.scores))

    def to_dict(self) -> dict[str, Any]:
        """Everything that was measured."""
        return asdict(self)

    def draw(self) -> Figure:
        """Three panels: parameters, speed, memory."""
        from regard.translation.lab.figures.costs import draw_score_costs

        return draw_score_costs(self)


def measure_score_costs(
    competitors: Sequence[Competitor] = EVERY,
    device: str = "cpu",
    *,
    batch: int = BATCH,
    queries: int = QUERIES,
    keys: int = KEYS,
    hidden: int = HIDDEN,
) -> ScoreCosts:
    """Ask with every score but none at all; hidden is the query's size, keys have twice that, as annotations do."""
    place = torch.device(device)
    query = torch.randn(batch, queries, hidden, device=place, requires_grad=True)
    annotations = torch.randn(batch, keys, 2 * hidden, device=place, requires_grad=True)
    real = torch.ones(batch, keys, dtype=torch.bool, device=place)
    costs = []
    for competitor in competitors:
        if competitor == NONE:
            continue
        asking = AttentionContext(competitor.changed(Architecture(hidden=hidden))).to(place)
        inputs = (query, annotations, *asking.parameters())

        def once(asking=asking, inputs=inputs) -> None:
            output = asking.attention.recall(query, asking.remember(annotations, real))
            torch.autograd.grad(output.sum(), inputs)

        once()
        seconds, count = fastest(once, place, ROUNDS), sum(parameter.numel() for parameter in asking.parameters())
        costs.append(ScoreCost(competitor, count, batch * queries / seconds, peak_bytes(once, place)))
    sizes = {"batch": batch, "queries": queries, "keys": keys, "query size": hidden, "key size": 2 * hidden}
    return ScoreCosts(tuple(costs), sizes, torch.get_num_threads(), place.type)
