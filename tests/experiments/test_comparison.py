"""Trainings are run once and read again, and the comparison shows every variant."""

import shutil
from dataclasses import replace

import pytest
from matplotlib.collections import PolyCollection
from tests.experiments.settings import ADDITIVE, DOT, EMPTY, NONE, tiny, trial, trials
from tests.refuses import refuses

from regard.experiments import comparison as trials_of
from regard.experiments.comparison import (
    RESULT,
    Task,
    Trial,
    colours_of,
    compare,
    compare_sizes,
    draw_comparison,
    draw_state_sizes,
)
from regard.translation.training import Trainer


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
    monkeypatch.setattr(Trainer, "update", None)  # every update has been made
    assert replace(task.run(), seconds=first.seconds) == first


def test_a_trial_survives_json():
    for competitor in (NONE, DOT):
        made = trial(competitor, 3, 0.25)
        assert Trial.from_dict(made.to_dict()) == made


@pytest.fixture
def comparison():
    return compare(tiny(), trials())


def test_standings_are_means_over_seeds(comparison):
    standings = {one.competitor: one for one in comparison.standings}
    assert list(standings) == [NONE, DOT, ADDITIVE]
    assert standings[NONE].exact.mean == pytest.approx((1 + 0.3) / 2)
    assert standings[DOT].by_length["2"].mean == pytest.approx(0.85)
    assert (standings[DOT].by_length["2"].lowest, standings[DOT].by_length["2"].highest) == (0.8, 0.9)
    assert standings[DOT].by_length["1"].mean == 1.0


def test_without_attention_there_is_nothing_to_look_at(comparison):
    nothing, dot, _ = comparison.standings
    assert nothing.on_span is nothing.sharpness is None
    assert dot.on_span is not None
    assert dot.on_span.mean == pytest.approx(0.9)


def test_the_text_has_quality_with_intervals_and_by_length(comparison):
    printed = str(comparison)
    assert "lists, 2 seeds" in printed
    assert "92.5 ± 31.8" in printed  # 4.3 is for 3 seeds; 12.7 * 0.025 for 2
    assert "scaled dot    100   85" in printed
    assert "in words" in printed


def test_the_table_has_every_trial_in_full(comparison):
    table = comparison.table()
    assert len(table.rows) == 6
    row = dict(zip(table.header, table.rows[2], strict=True))
    assert (row["model"], row["seed"], row["exact at 2"], row["on span"]) == ("scaled dot", 1, 0.8, 0.9)
    assert dict(zip(table.header, table.rows[0], strict=True))["on span"] is None


def test_sizes_go_from_small_to_large():
    sizes = compare_sizes(tiny(), trials())
    assert [one.competitor for one in sizes.standings] == [EMPTY, NONE]
    assert [sizes.hidden(one.competitor) for one in sizes.standings] == [4, 8]
    assert "8           1,000  65.0 ± " in str(sizes)


def lines(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines if not line.get_label().startswith("_")}


def test_a_line_for_each_model_with_the_range_of_its_seeds():
    left, right = draw_comparison(compare(tiny(), trials())).axes
    drawn = lines(left)
    assert list(drawn) == ["no attention", "scaled dot", "additive"]
    assert drawn["scaled dot"] == pytest.approx([100.0, 85.0])
    bands = [band for band in left.collections if isinstance(band, PolyCollection)]
    heights = bands[1].get_paths()[0].vertices[:, 1]
    assert {80.0, 90.0} <= {round(height, 6) for height in heights.tolist()}
    assert [label.get_text() for label in left.get_xticklabels()] == ["1", "2"]
    assert [label.get_text() for label in right.get_yticklabels()] == ["scaled dot", "additive"]


def test_a_line_for_each_size():
    (axes,) = draw_state_sizes(compare_sizes(tiny(), trials())).axes
    assert {name: heights[1] for name, heights in lines(axes).items()} == pytest.approx({"4": 10.0, "8": 30.0})


def test_grey_is_kept_for_no_attention():
    colours = colours_of([NONE, DOT, ADDITIVE])
    assert len(set(colours.values())) == 3
    assert colours == colours_of([NONE, DOT, ADDITIVE])
