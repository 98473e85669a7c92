"""Recipes: read, changed, checked, and what fine-tuning keeps."""

import pytest
import torch
from tests.refuses import refuses
from tests.translation.models import random_model, save_model
from tests.translation.toy_trainings import make_recipe

from regard.translation.checkpoint import weights_digest
from regard.translation.model import Architecture
from regard.translation.recipe import (
    Data,
    Recipe,
    Training,
    for_fine_tuning,
    load_init,
    preset,
    resolve_recipe,
    table_of,
    with_recipe_dropout,
)


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


@pytest.mark.parametrize(
    ("name", "units"),
    [("dates", ("characters", "characters")), ("numbers", ("characters", "words")), ("lists", ("words", "words"))],
)
def test_a_built_in_corpus_is_cut_into_its_own_units(name, units):
    data = preset(name).data
    assert (data.source_unit, data.target_unit) == units


def test_another_name_is_refused():
    with refuses("corpus", "'poems'"):
        preset("poems")


def test_several_heads_share_the_width_of_the_state_in_every_built_in_recipe():
    for corpus in ("dates", "numbers", "lists"):
        assert preset(corpus).with_flags({"heads": 2}).model.attention_dim is None
    with refuses("attention_dim", "several", "beside", "heads"):
        preset("dates").with_flags({"heads": 2, "attention_dim": 8})


def test_flags_go_before_the_file_and_the_file_before_the_base(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text("[training]\nepochs = 3\nwarmup = 4\n", encoding="utf-8")
    base = Recipe().with_flags({"epochs": 2, "warmup": 2, "hidden": 9})
    chosen = resolve_recipe(base, file, {"epochs": 5})
    assert (chosen.training.epochs, chosen.training.warmup, chosen.model.hidden) == (5, 4, 9)
    assert resolve_recipe(base, None, {}) == base


def test_a_file_and_flags_are_judged_together(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text("[model]\nheads = 3\n", encoding="utf-8")
    with refuses("heads", "divisor", "hidden"):
        resolve_recipe(Recipe(), file, {})
    assert resolve_recipe(Recipe(), file, {"hidden": 9}).model.heads == 3
    file.write_text("model = 3\n", encoding="utf-8")
    with refuses("recipe", "model", "table"):
        resolve_recipe(Recipe(), file, {"hidden": 9})


def test_a_fine_tuned_model_keeps_sizes_and_units():
    init = random_model()
    recipe = for_fine_tuning(Recipe().with_flags({"bpe_dropout": 0.1, "epochs": 3}), init)
    assert recipe.model == init.model.architecture
    assert (recipe.data.source_unit, recipe.data.bpe_dropout, recipe.training.epochs) == ("characters", 0.0, 3)
    assert with_recipe_dropout("model", recipe, init) is init


def test_its_dropout_may_change_and_nothing_else():
    init = random_model()
    recipe = for_fine_tuning(Recipe(), init)
    begun = with_recipe_dropout("model", recipe.with_flags({"state_dropout": 0.5}), init)
    assert begun.model.state_dropout.p == begun.model.encoder.dropout.p == 0.5
    assert weights_digest(begun.model) == weights_digest(init.model)
    for flags in ({"hidden": 24}, {"attention": "dot"}, {"source_unit": "words"}, {"unit": "lstm"}):
        (name, value), *_ = flags.items()
        with refuses(name, f"{value}, where --init model has", "Leave it out"):
            with_recipe_dropout("model", recipe.with_flags(flags), init)


def test_the_fingerprint_is_that_of_the_weights():
    one, same, other = random_model().model, random_model().model, random_model(seed=5).model
    assert weights_digest(one) == weights_digest(same) != weights_digest(other)
    with torch.no_grad():
        same.output.bias[0] += 1e-6
    assert weights_digest(one) != weights_digest(same)


def test_a_folder_without_a_model_is_about_init(tmp_path):
    with refuses("init", "model.json"):
        load_init(tmp_path)
    save_model(tmp_path, random_model())
    assert weights_digest(load_init(tmp_path).model) == weights_digest(random_model().model)
