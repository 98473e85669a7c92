"""Works side by side: what they return, what they tell, and what happens when one fails."""

import os
import time
from functools import partial

import pytest
import torch

from regard.tour.trainings.side_by_side import Work, run_all


def double(number, tell):
    tell(0.5, f"halfway with {number}")
    return {"twice": torch.tensor(2.0 * number), "process": os.getpid(), "threads": torch.get_num_threads()}


def fail(tell):
    raise ValueError("a work that fails")


def talk(ended, tell):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        tell(0.5, "a word in a pipe that holds a thousand of them")
    ended.touch()


def works():
    return [Work(f"double {number}", number, partial(double, number)) for number in (1, 2, 3)]


@pytest.mark.parametrize("workers", [1, 2])
def test_returns_by_name_and_tells(workers):
    told = []
    found = run_all(works(), workers, told.append)
    assert {name: float(one["twice"]) for name, one in found.items()} == {"double 1": 2, "double 2": 4, "double 3": 6}
    assert {one["threads"] for one in found.values()} == {1}
    assert ({one["process"] for one in found.values()} == {os.getpid()}) == (workers == 1)
    for number in (1, 2, 3):
        heard = [(share, words) for name, share, words in told if name == f"double {number}"]
        assert (0.5, f"halfway with {number}") in heard
        assert (1.0, "done") in heard


def test_the_longest_begins_first():
    told = []
    run_all(works(), 1, told.append)
    assert [name for name, *_ in told][::2] == ["double 3", "double 2", "double 1"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_is_the_callers(workers):
    with pytest.raises(ValueError, match="a work that fails"):
        run_all([Work("fails", 1, fail), *works()], workers, lambda _: None)


def test_a_failure_ends_those_that_still_talk(tmp_path):
    ended = tmp_path / "ended"
    with pytest.raises(ValueError, match="a work that fails"):
        run_all([Work("talks", 2, partial(talk, ended)), Work("fails", 1, fail)], 2, lambda _: None)
    assert not ended.exists()
