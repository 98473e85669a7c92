"""What the studio trains: the additive score first, each in a folder named after all that makes it."""

from dataclasses import replace

from regard.studio.models.wanted import SIZES, Wanted, plan
from regard.translation.recipe import preset


def test_the_plan_begins_with_the_chapters_score_and_has_every_other():
    wanted = plan()
    assert wanted[0].recipe.model == preset("dates").model
    assert wanted[0].recipe.model.attention == "additive"
    assert {one.recipe.model.attention for one in wanted} >= {
        "none",
        "dot",
        "scaled_dot",
        "bilinear",
        "squared_distance",
    }
    assert any(one.recipe.model.heads > 1 for one in wanted)
    assert len({one.name for one in wanted}) == len(wanted) == len({one.folder for one in wanted})
    assert all(one.recipe.training.save_every for one in wanted)


def test_another_recipe_or_corpus_is_another_folder():
    one = plan()[0]
    assert replace(one, recipe=one.recipe.with_flags({"seed": 2})).folder != one.folder
    assert replace(one, options=SIZES | {"train": 5}).folder != one.folder
    assert replace(one, title="other").folder == one.folder


def test_it_travels_as_plain_values():
    for one in plan():
        assert Wanted.from_dict(one.to_dict()) == one
