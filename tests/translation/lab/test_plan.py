"""The plan: what is left to do, in which order, and how long it takes."""

import json

import pytest
from tests.translation.lab.settings import DOT, EMPTY, tiny, trial

from regard.translation.lab.competitors import ADDITIVE, NONE
from regard.translation.lab.costs import Costs, ModelCost
from regard.translation.lab.plan import OVERHEAD, in_words, make_plan
from regard.translation.lab.trial import RESULT

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
