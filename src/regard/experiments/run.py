"""`regard lab`: the plan of the experiments, worker processes, and the report."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from regard import plots
from regard.errors import RegardError
from regard.experiments.comparison import Task, Trial, compare, compare_sizes
from regard.experiments.costs import Costs, measure_costs, measure_score_costs
from regard.experiments.result import Finding
from regard.experiments.scores import SEEDS, measure_expressiveness, measure_saturation
from regard.experiments.variants import Setting, setting
from regard.translation.translator import usable_device


def workers_for(device: str, asked: int | None) -> int:
    """How many trials run at a time: as asked for; else one for each core, or one alone on a GPU."""
    if asked is None:
        return _cores() if torch.device(device).type == "cpu" else 1
    if asked < 1:
        raise RegardError("workers", got=str(asked), needed="1 or more", repair="Leave it out for one for each core.")
    return asked


def _cores() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(tasks: Sequence[Task], workers: int, tell: Callable[[Task, Trial], None]) -> list[Trial]:
    """The trials of all tasks, in their order; `tell` hears of each as it ends.

    What has been run is kept: interrupted, the same call goes on.
    """
    workers = min(workers, len(tasks))
    if workers <= 1:
        return [_told(task, task.run(), tell) for task in tasks]
    # Processes start anew: a fork of one that has run torch's threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_begin) as pool:
        waiting = {pool.submit(task.run): place for place, task in enumerate(tasks)}
        found: dict[int, Trial] = {}
        try:
            for ended in as_completed(waiting):
                place = waiting[ended]
                found[place] = _told(tasks[place], ended.result(), tell)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [found[place] for place in range(len(tasks))]


def _told(task: Task, trial: Trial, tell: Callable[[Task, Trial], None]) -> Trial:
    tell(task, trial)
    return trial


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use this number of threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _begin() -> None:
    """A worker has one thread, and dies of Ctrl-C without a word: the command says what there is to say."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


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


HEADINGS = {
    "saturation": "Scaling keeps the softmax from saturating",
    "expressiveness": "What additive and bilinear scores of equal size can find",
    "score-costs": "What a score costs",
    "costs": "What a model costs",
    "comparison": "Ways to the context",
    "state-size": "What a fixed state holds",
}


def run(
    out: Path,
    corpus: str = "lists",
    *,
    seeds: int | None = None,
    quick: bool = False,
    device: str = "cpu",
    workers: int | None = None,
) -> tuple[Path, ...]:
    """Run all experiments, print what they find, write it into the folder `out`; return the files.

    Args:
        out: the folder; trained models are kept in its subfolder `runs`, so that an interrupted lab goes on.
        corpus: a built-in one.
        seeds: how many; 3, or 1 if it is to be quick.
        quick: fewer models and fewer updates.
        device: where models are trained.
        workers: how many trainings run at a time; one for each core by default.
    """
    usable_device(device)
    if seeds is not None and seeds < 1:
        raise RegardError("seeds", got=str(seeds), needed="1 or more", repair="An interval takes at least 2.")
    chosen, side_by_side = setting(corpus, quick=quick), workers_for(device, workers)
    plots.make_folder(out)  # after all that may be refused: it would be left behind
    return carry_out(
        chosen,
        out,
        home=out / "runs" / (f"{corpus}-quick" if quick else corpus),
        seeds=(1 if quick else 3) if seeds is None else seeds,
        device=device,
        workers=side_by_side,
    )


def carry_out(setting: Setting, out: Path, home: Path, *, seeds: int, device: str, workers: int) -> tuple[Path, ...]:
    """The same for any setting; home: where runs are kept."""
    files: list[Path] = []
    with plots.house_style():  # refuses before the work where matplotlib is missing
        for finding in _findings(setting, home, seeds, device, workers):
            print(f"\n{HEADINGS[finding.name]}\n{finding}", flush=True)
            files += finding.save(out)
    print("\n" + "\n".join(f"wrote {file}" for file in files))
    return tuple(files)


def _findings(setting: Setting, home: Path, seeds: int, device: str, workers: int) -> Iterator[Finding]:
    print(f"Timing {len(setting.everyone)} models on this machine ...", flush=True)
    # Measured as it will be used: side by side, each training has one thread.
    with threads(1 if workers > 1 else torch.get_num_threads()):
        costs = measure_costs(setting, setting.everyone, device)
        score_costs = measure_score_costs(setting.competitors, device)
    plan = make_plan(setting, seeds, home, costs, workers, device)
    print(plan, flush=True)
    yield costs
    yield score_costs
    yield measure_saturation()
    yield measure_expressiveness(min(seeds, SEEDS))
    print(f"\nTraining: {plan}", flush=True)
    trials = run_all(plan.tasks, workers, _Progress(plan))
    yield compare(setting, trials)
    yield compare_sizes(setting, trials)


class _Progress:
    """A line for each training that ends, with the time that is left."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.waiting, self.ended = plan, list(plan.waiting), 0
        self.begin = time.perf_counter()

    def __call__(self, task: Task, trial: Trial) -> None:
        self.ended += 1
        left = "kept from before"
        if task in self.waiting:
            self.waiting.remove(task)
            seconds = self.plan.left(time.perf_counter() - self.begin, self.waiting)
            left = f"about {in_words(seconds)} left" if self.waiting else "the last one"
        place = f"[{self.ended}/{len(self.plan.tasks)}]"
        print(f"  {place} {task.competitor}, seed {task.seed}: {100 * trial.exact:.1f}% exact; {left}", flush=True)
