"""One run: trained once, kept, taken up again, and refused where it is another's."""

import shutil
from dataclasses import replace

import pytest
from tests.refuses import refuses
from tests.translation.lab.settings import DOT, tiny, trial

from regard.translation.lab import trial as trials_of
from regard.translation.lab.competitors import NONE
from regard.translation.lab.trial import RESULT, Task, Trial
from regard.translation.training import Update


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    for competitor in (NONE, DOT):
        Task(tiny(), competitor, 1, home).run()
    return home


def test_a_finished_run_is_not_run_again(home, monkeypatch):
    monkeypatch.setattr(trials_of, "train", None)
    for competitor in (NONE, DOT):
        found = Task(tiny(), competitor, 1, home).run()
        assert found == Task(tiny(), competitor, 1, home).finished()
        assert (found.competitor, found.seed) == (competitor, 1)


def test_what_is_measured(home):
    found = Task(tiny(), DOT, 1, home).run()
    assert 0 <= found.exact <= 1
    assert sum(group.count for group in found.by_length) == 24
    assert [group.name for group in found.by_length] == [str(length) for length in range(1, 13)]
    assert found.on_span is not None
    assert found.sharpness is not None
    assert 0 < found.on_span < 1
    assert 0 <= found.sharpness < 0.5  # one epoch of nothing sharpens little
    assert found.seconds > 0


def test_without_attention_there_is_no_alignment(home):
    found = Task(tiny(), NONE, 1, home).run()
    assert found.on_span is found.sharpness is None


def test_another_recipe_in_the_same_folder_is_refused(home):
    setting = tiny()
    other = replace(setting, recipe=setting.recipe.with_flags({"learning_rate": 0.5}))
    with refuses("out", "another", "recipe", "scaled"):
        Task(other, DOT, 1, home).run()


def test_an_interrupted_run_goes_on(home, tmp_path, monkeypatch):
    task = Task(tiny(), NONE, 1, tmp_path / "runs")
    shutil.copytree(home, task.home)
    first = task.finished()
    assert first is not None
    (task.folder / RESULT).unlink()  # killed between training and its result
    assert task.finished() is None
    monkeypatch.setattr(Update, "__call__", None)  # every update has been made
    assert replace(task.run(), seconds=first.seconds) == first


def test_a_trial_survives_json():
    for competitor in (NONE, DOT):
        made = trial(competitor, 3, 0.25)
        assert Trial.from_dict(made.to_dict()) == made
