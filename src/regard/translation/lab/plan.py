"""What the laboratory is about to do, and how long that takes on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.translation.lab.costs import Costs
from regard.translation.lab.recipes import Setting
from regard.translation.lab.trial import Task

# Beside updates: validation, the search for a length penalty, the test, and the start of a process.
OVERHEAD = 6.0


@dataclass(frozen=True)
class Plan:
    """Trainings to come. tasks: all of them. waiting: those that have not been finished before."""

    tasks: tuple[Task, ...]
    waiting: tuple[Task, ...]
    costs: Costs
    workers: int

    def seconds(self, tasks: Sequence[Task]) -> float:
        """How long some of the tasks take, side by side."""
        alone = [self.alone(task) for task in tasks]
        # The longest may be the last one to begin.
        return max(sum(alone) / self.workers, *alone) if alone else 0.0

    def left(self, elapsed: float, waiting: Sequence[Task]) -> float:
        """How long the rest takes at the pace of what has ended; the first that wait are under way, half done."""
        under_way = sum(map(self.alone, waiting[: self.workers - 1])) / 2
        rest = sum(map(self.alone, waiting)) - under_way
        return elapsed * rest / (sum(map(self.alone, self.waiting)) - rest)

    def alone(self, task: Task) -> float:
        """How long one task takes."""
        return self.costs.of(task.competitor).training_seconds + OVERHEAD

    def __str__(self) -> str:
        setting = self.tasks[0].setting
        done = len(self.tasks) - len(self.waiting)
        kept = f", {done} of them done before" if done else ""
        models = len({task.competitor for task in self.tasks})
        seeds = len(self.tasks) // models
        return (
            f"{setting.corpus}: {models} models x {seeds} seed{'s' * (seeds > 1)} = {len(self.tasks)} trainings{kept}, "
            f"{self.workers} at a time: about {in_words(self.seconds(self.waiting))}."
        )


def make_plan(setting: Setting, seeds: int, home: Path, costs: Costs, workers: int, device: str) -> Plan:
    """Every competitor with every seed, the slowest first, so that no core waits at the end."""
    competitors = sorted(setting.everyone, key=lambda competitor: -costs.of(competitor).training_seconds)
    tasks = tuple(
        Task(setting, competitor, seed, home, device) for seed in range(1, seeds + 1) for competitor in competitors
    )
    return Plan(tasks, tuple(task for task in tasks if task.finished() is None), costs, workers)


def in_words(seconds: float) -> str:
    """A duration as one says it.

    >>> in_words(47), in_words(130), in_words(1500)
    ('47 s', '2.2 min', '25 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 600 else f"{seconds / 60:.0f} min"
