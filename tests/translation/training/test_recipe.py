"""Recipes: from TOML and flags, there and back, and every wrong word named."""

import pytest
from tests.refuses import refuses
from tests.translation.training.toys import make_recipe

from regard.translation.model import Architecture
from regard.translation.training.recipe import Data, Recipe, Training, table_of


def test_toml_there_and_back(tmp_path):
    recipe = make_recipe(joint=True, attention_dim=5, tokenize="none", r_drop=0.5, cell="conditional")
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert Recipe.read(path) == recipe


def test_a_file_says_what_it_says_and_the_base_the_rest(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("[model]\nhidden = 24\n[training]\nepochs = 7\n", encoding="utf-8")
    read = Recipe.read(path, make_recipe(epochs=3, embedding=12)).with_flags({"epochs": 9})
    assert (read.model.hidden, read.model.embedding, read.training.epochs) == (24, 12, 9)
    assert Recipe.read(path).model.embedding == Architecture().embedding


@pytest.mark.parametrize(
    ("text", "argument", "word"),
    [
        ("[training]\nepoch = 3", "training.epoch", "an unknown name"),
        ("[training]\nepoch = 3", "training.epoch", "Did you mean epochs?"),
        ("[data]\nqqqq = 3", "data.qqqq", "See `regard train --help`"),
        ("[modle]\nhidden = 3", "recipe", "the table [modle]"),
        ("[to_toml]\nhidden = 3", "recipe", "the table [to_toml]"),
        ("hidden = 3", "recipe", "hidden, which is no table"),
        ("training = 3", "recipe", "training, which is no table"),
        ("a = " + "[" * 9999, "recipe", ".toml, nested too deeply"),
        ("[training\n", "recipe", "a TOML file"),
        ("[training]\nepochs = 2.5", "epochs", "a whole number"),
        ("[training]\nepochs = 0", "epochs", "a number of at least 1"),
        ("[training]\nlearning_rate = 0", "learning_rate", "a positive number"),
        ("[training]\nlabel_smoothing = 1.0", "label_smoothing", "a share below 1"),
        ("[training]\ndecay = 'steps'", "decay", "'steps'"),
        ("[training]\nseed = true", "seed", "True"),
        ("[training]\nclip = nan", "clip", "a number of at least 0"),
        ("[training]\nvalidate_every = 11", "patience", "at least validate_every=11"),
        (
            "[data]\nbpe_dropout = 0.1\nsource_unit = 'words'\ntarget_unit = 'words'",
            "bpe_dropout",
            "subwords",
        ),
        ("[model]\njoint = true\n[data]\nsource_unit = 'words'", "source_unit", "words and bpe"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, argument, word):
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    with refuses(argument, word):
        Recipe.read(path)


def test_a_byte_order_mark_is_left_out(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("[training]\nepochs = 7\n", encoding="utf-8-sig")
    assert Recipe.read(path).training.epochs == 7


def test_a_file_that_is_not_there(tmp_path):
    with refuses("recipe", "none.toml"):
        Recipe.read(tmp_path / "none.toml")


def test_no_name_stands_in_two_tables():
    names = [name for kind in (Architecture, Data, Training) for name in kind.__dataclass_fields__]
    assert len(names) == len(set(names))
    assert (table_of("hidden"), table_of("bpe_dropout"), table_of("epochs")) == ("model", "data", "training")
    with refuses("hiden", "unknown", "hidden", "mean"):
        table_of("hiden")


def test_epochs_are_validated_in_their_turn_and_at_the_end():
    training = Training(epochs=10, validate_from=4, validate_every=3)
    assert [epoch for epoch in range(1, 11) if training.validates(epoch)] == [6, 9, 10]
