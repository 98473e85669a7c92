"""What each model costs on this machine: parameters, training speed, and memory of one update."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from regard.translation.batching import Batch, TrainingTokens, make_batch
from regard.translation.dataset import learn_vocabularies
from regard.translation.lab.competitors import Competitor
from regard.translation.lab.finding import Finding, Table, columns
from regard.translation.lab.live_memory import peak_bytes
from regard.translation.lab.recipes import Setting
from regard.translation.model import EncoderDecoder
from regard.translation.training import Update, make_optimiser

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCHES = 8
ROUNDS = 3
MEGA = 2**20


@dataclass(frozen=True)
class ModelCost:
    """Of one model.

    parameters: how many. speed: target tokens a second in training. bytes: the most that one update holds at
    once, weights and the optimiser's moments not counted. updates: of a whole training. seconds: of one of them.
    """

    competitor: Competitor
    parameters: int
    speed: float
    bytes: int
    updates: int
    seconds: float

    @property
    def training_seconds(self) -> float:
        """How long a whole training takes."""
        return self.updates * self.seconds


@dataclass(frozen=True)
class Costs(Finding):
    """Of every model, on the same batches."""

    name: ClassVar[str] = "costs"

    models: tuple[ModelCost, ...]
    threads: int
    device: str

    def of(self, competitor: Competitor) -> ModelCost:
        """Those of one model."""
        return next(cost for cost in self.models if cost.competitor == competitor)

    def __str__(self) -> str:
        rows = [("model", "parameters", "target tokens/s", "MiB an update")]
        for cost in self.models:
            figures = (f"{cost.parameters:,}", f"{cost.speed:,.0f}", f"{cost.bytes / MEGA:.1f}")
            rows.append((str(cost.competitor), *figures))
        where = "a GPU" if self.device != "cpu" else f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        note = (
            f"  Training on {where}. The steps of one additive head are written out as one function, those of others "
            "are a loop:\n  scores are compared by what a score costs."
        )
        return f"{columns(rows)}\n{note}"

    def table(self) -> Table:
        """A row for each model."""
        header = ("model", "parameters", "target tokens per second", "bytes of an update", "seconds of an update")
        rows = ((str(c.competitor), c.parameters, c.speed, c.bytes, c.seconds) for c in self.models)
        return Table(header, tuple(rows))

    def to_dict(self) -> dict[str, Any]:
        """Everything that was measured."""
        return asdict(self)

    def draw(self) -> Figure:
        """Three panels: parameters, speed, memory."""
        from regard.translation.lab.figures.costs import draw_costs

        return draw_costs(self)


def measure_costs(setting: Setting, competitors: Sequence[Competitor], device: str = "cpu") -> Costs:
    """Train every model for a few updates, one after the other, on the same batches."""
    examples, place = setting.examples(), torch.device(device)
    vocabularies = learn_vocabularies(setting.recipe, examples.train)
    epoch = TrainingTokens(examples.train, *vocabularies, setting.recipe, ladder=1).epoch(0)
    updates = setting.recipe.training.epochs * len(epoch.plans)
    batches = [make_batch(planned, epoch.sources, epoch.targets) for planned in islice(epoch.plans, BATCHES)]
    models = []
    for competitor in competitors:
        recipe = setting.recipe_of(competitor, seed=1)
        torch.manual_seed(1)
        model = EncoderDecoder(recipe.model, *map(len, vocabularies)).to(place).train()
        update = Update(model, make_optimiser(model, recipe.training), recipe.training)
        seconds, peak = _of_updates(update, batches, place)
        count = sum(parameter.numel() for parameter in model.parameters())
        speed = sum(batch.tokens for batch in batches) / seconds
        models.append(ModelCost(competitor, count, speed, peak, updates, seconds / len(batches)))
    return Costs(tuple(models), torch.get_num_threads(), place.type)


def _of_updates(update: Update, batches: Sequence[Batch], device: torch.device) -> tuple[float, int]:
    """The seconds of all batches, and the most bytes of any of them."""

    def once() -> None:
        for batch in batches:
            update(batch)

    once()  # moments are made at the first step
    return fastest(once, device, ROUNDS), max(
        peak_bytes(lambda batch=batch: update(batch), device) for batch in batches
    )


def fastest(function: Callable[[], object], device: torch.device, rounds: int) -> float:
    """The seconds of the fastest of some rounds: the one that the rest of the machine has disturbed least."""
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - begin)
    return min(taken)
