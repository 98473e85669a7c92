"""The lab runs its plan in worker processes, goes on where it was, and reports everything."""

import json
import os
from dataclasses import dataclass, replace

import pytest
import torch
from tests.experiments.settings import DOT, EMPTY, tiny, trial
from tests.refuses import refuses

from regard import plots
from regard.errors import RegardError
from regard.experiments import comparison, costs
from regard.experiments import run as procedure
from regard.experiments.comparison import RESULT
from regard.experiments.costs import Costs, ModelCost
from regard.experiments.run import HEADINGS, OVERHEAD, in_words, make_plan, run_all, threads, workers_for
from regard.experiments.scores import measure_expressiveness, measure_saturation
from regard.experiments.variants import ADDITIVE, NONE
from regard.plots import files


@dataclass(frozen=True)
class Fake:
    """A task that says where it was run."""

    number: int

    def run(self):
        if self.number < 0:
            raise RegardError("number", got="less than 0", needed="more", repair="Count on.")
        return self.number, os.getpid(), torch.get_num_threads()


def test_alone_they_run_here_one_after_the_other():
    told = []
    found = run_all([Fake(0), Fake(1)], 1, lambda task, trial: told.append((task.number, trial[0])))
    assert [trial[1] for trial in found] == [os.getpid()] * 2
    assert told == [(0, 0), (1, 1)]


def test_side_by_side_each_has_a_process_with_one_thread():
    told = []
    found = run_all([Fake(0), Fake(1), Fake(2)], 2, lambda task, trial: told.append(task.number))
    assert [trial[0] for trial in found] == [0, 1, 2]
    assert sorted(told) == [0, 1, 2]
    assert os.getpid() not in {trial[1] for trial in found}
    assert {trial[2] for trial in found} == {1}


def test_a_refusal_comes_through():
    with refuses("number", "than 0"):
        run_all([Fake(-1)], 1, lambda task, trial: None)


def test_how_many():
    assert workers_for("cpu", 3) == 3
    assert workers_for("cpu", None) >= 1
    assert workers_for("cuda", None) == 1
    with refuses("workers", "needed 1"):
        workers_for("cpu", 0)


def test_threads_are_as_before_afterwards():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


SECONDS = {NONE: 10.0, DOT: 30.0, ADDITIVE: 20.0, EMPTY: 5.0}
COSTS = Costs(tuple(ModelCost(one, 1, 1.0, 1, 1, seconds) for one, seconds in SECONDS.items()), 1, "cpu")


def test_the_slowest_begin(tmp_path):
    plan = make_plan(tiny(), 2, tmp_path, COSTS, 2, "cpu")
    assert [task.competitor for task in plan.tasks[:4]] == [DOT, ADDITIVE, NONE, EMPTY]
    assert [task.seed for task in plan.tasks] == [1] * 4 + [2] * 4
    assert plan.waiting == plan.tasks


def test_the_time_is_shared_by_workers(tmp_path):
    alone, together = (make_plan(tiny(), 2, tmp_path, COSTS, workers, "cpu") for workers in (1, 2))
    assert alone.seconds(alone.tasks) == pytest.approx(2 * (65 + 4 * OVERHEAD))
    assert together.seconds(together.tasks) == pytest.approx(65 + 4 * OVERHEAD)
    assert together.seconds(together.tasks[:1]) == 30 + OVERHEAD  # one training is not shared
    assert together.seconds(()) == 0.0


def test_the_time_left_follows_the_pace(tmp_path):
    plan = make_plan(tiny(), 2, tmp_path, COSTS, 1, "cpu")
    half = plan.seconds(plan.tasks[:4])
    assert plan.left(2 * half, plan.tasks[4:]) == pytest.approx(2 * half)  # twice as slow as expected
    assert plan.left(9.0, ()) == 0.0


def test_what_is_under_way_counts_half(tmp_path):
    plan = make_plan(tiny(), 2, tmp_path, COSTS, 2, "cpu")
    first, second = plan.alone(plan.tasks[0]), plan.alone(plan.tasks[1])
    rest = sum(map(plan.alone, plan.tasks[1:])) - second / 2
    assert plan.left(first, plan.tasks[1:]) == pytest.approx(first * rest / (first + second / 2))


def test_what_was_done_before_is_not_counted(tmp_path):
    task = make_plan(tiny(), 1, tmp_path, COSTS, 1, "cpu").tasks[0]
    task.folder.mkdir(parents=True)
    page = {"task": task.identity(), "trial": trial(DOT, 1, 0.5).to_dict()}
    (task.folder / RESULT).write_text(json.dumps(page), encoding="utf-8")
    plan = make_plan(tiny(), 1, tmp_path, COSTS, 1, "cpu")
    assert len(plan.waiting) == 3
    assert "4 models x 1 seed = 4 trainings, 1 of them done before, 1 at a time: about 53 s." in str(plan)


def test_durations_in_words():
    assert [in_words(seconds) for seconds in (0.4, 89, 91, 599, 1200)] == [
        "0 s",
        "89 s",
        "1.5 min",
        "10.0 min",
        "20 min",
    ]


@pytest.fixture
def briefly(monkeypatch):
    monkeypatch.setattr(files, "RASTER_DPI", 40)  # coarse pictures are written faster
    monkeypatch.setattr(procedure, "measure_saturation", lambda: measure_saturation((2, 4), draws=1))
    monkeypatch.setattr(procedure, "measure_expressiveness", lambda seeds: measure_expressiveness(1, updates=1))
    monkeypatch.setattr(
        procedure, "setting", lambda corpus, quick: replace(tiny(), competitors=(NONE, DOT), factors=(1,))
    )
    monkeypatch.setattr(costs, "BATCHES", 2)


def test_everything_once_and_then_from_what_is_kept(tmp_path, capsys, monkeypatch, briefly):
    files = procedure.run(tmp_path / "new" / "lab", seeds=1, workers=1)
    printed = capsys.readouterr().out
    assert all(heading in printed for heading in HEADINGS.values())
    assert "2 models x 1 seed = 2 trainings, 1 at a time: about " in printed
    assert "[2/2]" in printed
    assert {file.name for file in files} == {
        f"{name}.{ending}" for name in HEADINGS for ending in ("csv", "json", "svg", "png")
    }
    assert all(file.stat().st_size and f"wrote {file}" in printed for file in files)

    first = json.loads((tmp_path / "new" / "lab" / "comparison.json").read_text(encoding="utf-8"))
    monkeypatch.setattr(comparison, "train", None)  # nothing is trained again
    monkeypatch.setattr(plots, "save", lambda figure, stem: ())
    procedure.run(tmp_path / "new" / "lab", seeds=1, workers=1)
    printed = capsys.readouterr().out
    assert printed.count("kept from before") == 2
    assert json.loads((tmp_path / "new" / "lab" / "comparison.json").read_text(encoding="utf-8")) == first


def test_one_seed_or_three(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(procedure, "carry_out", lambda setting, out, home, **rest: asked.append((home, rest["seeds"])))
    procedure.run(tmp_path)
    procedure.run(tmp_path, quick=True)
    procedure.run(tmp_path, quick=True, seeds=5)
    runs = tmp_path / "runs"
    assert asked == [(runs / "lists", 3), (runs / "lists-quick", 1), (runs / "lists-quick", 5)]


@pytest.mark.parametrize(
    ("options", "argument", "word"),
    [
        ({"seeds": 0}, "seeds", "1 or more"),
        ({"workers": 0}, "workers", "0"),
        ({"device": "nowhere"}, "device", "'nowhere'"),
        ({"corpus": "poems"}, "corpus", "'poems'"),
    ],
)
def test_what_is_wrong_is_refused_at_once(tmp_path, options, argument, word):
    with refuses(argument, word):
        procedure.run(tmp_path, **options)


def test_refuses_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "taken").touch()
    with refuses("out", "exists", "taken", "File"):
        procedure.run(tmp_path / "taken")
