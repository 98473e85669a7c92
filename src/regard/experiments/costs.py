"""Parameters, speed and memory of models in training and of scores alone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.autograd.profiler import profile

from regard import plots
from regard.experiments.result import Finding, Table, columns
from regard.experiments.variants import EVERY, NONE, Competitor, Setting
from regard.plots.look import COLOURS
from regard.translation.batching import Batch, make_batch
from regard.translation.model import Architecture, AttentionContext
from regard.translation.training import Trainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STDERR = 2


def peak_bytes(function: Callable[[], object], device: torch.device) -> int:
    """Run a function and return the largest memory that it holds at once: tensors, saved tensors, buffers of operators.

    On a GPU the allocator measures it. On a CPU it is computed from the profiler's record of allocations; memory that
    was allocated before the call is not counted.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    profiler = profile(profile_memory=True)
    with _quiet(), profiler:
        function()
    results: Any = profiler.kineto_results
    events = [event for event in results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in events), default=0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Within it nothing comes out of stderr: the profiler's library greets there, and tells when old blocks end."""
    sys.stderr.flush()
    kept = os.dup(STDERR)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), STDERR)
    try:
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)


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
        return draw_costs(self)


def measure_costs(setting: Setting, competitors: Sequence[Competitor], device: str = "cpu") -> Costs:
    """Train every model for a few updates, one after the other, on the same batches."""
    corpus, place = setting.examples(), torch.device(device)
    models = []
    for competitor in competitors:
        recipe = setting.recipe_of(competitor, seed=1)
        with Trainer(recipe, corpus, device=place, cuda_graphs=False) as trainer:
            epoch = trainer.batches.epoch(0)  # the same for all: it depends on data and seed
            batches = [make_batch(plan, epoch.sources, epoch.targets) for plan in epoch.plans[:BATCHES]]
            seconds, peak = _of_updates(trainer.update, batches, place)
            speed = sum(batch.tokens for batch in batches) / seconds
            count, updates = trainer.parameter_count, trainer.total_updates
        models.append(ModelCost(competitor, count, speed, peak, updates, seconds / len(batches)))
    return Costs(tuple(models), torch.get_num_threads(), place.type)


def _of_updates(update: Callable[[Batch], None], batches: Sequence[Batch], device: torch.device) -> tuple[float, int]:
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


BATCH, QUERIES, KEYS, HIDDEN = 16, 64, 64, 128
SCORE_ROUNDS = 5


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
        seconds, count = (
            fastest(once, place, SCORE_ROUNDS),
            sum(parameter.numel() for parameter in asking.parameters()),
        )
        costs.append(ScoreCost(competitor, count, batch * queries / seconds, peak_bytes(once, place)))
    sizes = {"batch": batch, "queries": queries, "keys": keys, "query size": hidden, "key size": 2 * hidden}
    return ScoreCosts(tuple(costs), sizes, torch.get_num_threads(), place.type)


def draw_costs(costs: Costs) -> Figure:
    """Of whole models in training."""
    return _bars(
        [str(cost.competitor) for cost in costs.models],
        {
            "1,000 parameters": [cost.parameters / 1000 for cost in costs.models],
            "1,000 target tokens/s": [cost.speed / 1000 for cost in costs.models],
            "MiB an update": [cost.bytes / MEGA for cost in costs.models],
        },
    )


def draw_score_costs(costs: ScoreCosts) -> Figure:
    """Of attention alone."""
    return _bars(
        [str(cost.competitor) for cost in costs.scores],
        {
            "1,000 parameters": [cost.parameters / 1000 for cost in costs.scores],
            "1,000 queries/s": [cost.speed / 1000 for cost in costs.scores],
            "MiB": [cost.bytes / MEGA for cost in costs.scores],
        },
    )


def _bars(names: Sequence[str], panels: dict[str, list[float]]) -> Figure:
    figure, axes = plots.canvas(7.2, 0.9 + 0.24 * len(names), panels=len(panels))
    with plots.house_style():
        for ax, (title, numbers), colour in zip(axes, panels.items(), COLOURS, strict=False):
            bars = ax.barh(range(len(names)), numbers, height=0.62, color=colour)
            ax.bar_label(bars, [_short(number) for number in numbers], padding=3, fontsize=7)
            ax.set(title=title, xlim=(0, 1.22 * max(numbers)), ylim=(len(names) - 0.5, -0.5))
            ax.set_yticks(range(len(names)), names if ax is axes[0] else [""] * len(names))
            ax.tick_params(axis="y", length=0)
            ax.set_xticks([])
            ax.spines["bottom"].set_visible(False)
    return figure


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}"
