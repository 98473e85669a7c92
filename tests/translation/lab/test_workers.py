"""Trials side by side: in order whoever ends first, in this process or in others."""

import os
from dataclasses import dataclass

import torch
from tests.refuses import refuses

from regard.errors import RegardError
from regard.translation.lab.workers import run_all, threads, workers_for


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
