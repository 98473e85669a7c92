"""`regard lab`: the experiments one after another, their reports and their files."""

import time
from collections.abc import Iterator
from pathlib import Path

import torch

from regard import plots
from regard.errors import RegardError
from regard.translation.lab.comparison import compare, compare_sizes
from regard.translation.lab.costs import measure_costs
from regard.translation.lab.expressiveness import SEEDS, measure_expressiveness
from regard.translation.lab.finding import Finding
from regard.translation.lab.plan import Plan, in_words, make_plan
from regard.translation.lab.recipes import Setting, setting
from regard.translation.lab.saturation import measure_saturation
from regard.translation.lab.score_costs import measure_score_costs
from regard.translation.lab.trial import Task, Trial
from regard.translation.lab.workers import run_all, threads, workers_for
from regard.translation.translator import usable_device

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
