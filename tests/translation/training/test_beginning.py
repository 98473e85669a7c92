"""The recipe and the first model: what goes before what, and what fine-tuning keeps."""

import torch
from tests.refuses import refuses
from tests.translation.models import random_model, save_model

from regard.translation.training.beginning import begin_from, choose_recipe, fine_tuned, fingerprint, load_beginning
from regard.translation.training.recipe import Recipe


def test_flags_go_before_the_file_and_the_file_before_the_base(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text("[training]\nepochs = 3\nwarmup = 4\n", encoding="utf-8")
    base = Recipe().with_flags({"epochs": 2, "warmup": 2, "hidden": 9})
    chosen = choose_recipe(base, file, {"epochs": 5})
    assert (chosen.training.epochs, chosen.training.warmup, chosen.model.hidden) == (5, 4, 9)
    assert choose_recipe(base, None, {}) == base


def test_a_file_and_flags_are_judged_together(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text("[model]\nheads = 3\n", encoding="utf-8")
    with refuses("heads", "divisor", "hidden"):
        choose_recipe(Recipe(), file, {})
    assert choose_recipe(Recipe(), file, {"hidden": 9}).model.heads == 3
    file.write_text("model = 3\n", encoding="utf-8")
    with refuses("recipe", "model", "table"):
        choose_recipe(Recipe(), file, {"hidden": 9})


def test_a_fine_tuned_model_keeps_sizes_and_units():
    init = random_model()
    recipe = fine_tuned(Recipe().with_flags({"bpe_dropout": 0.1, "epochs": 3}), init)
    assert recipe.model == init.model.architecture
    assert (recipe.data.source_unit, recipe.data.bpe_dropout, recipe.training.epochs) == ("characters", 0.0, 3)
    assert begin_from("model", recipe, init) is init


def test_its_dropout_may_change_and_nothing_else():
    init = random_model()
    recipe = fine_tuned(Recipe(), init)
    begun = begin_from("model", recipe.with_flags({"state_dropout": 0.5}), init)
    assert begun.model.state_dropout.p == begun.model.encoder.dropout.p == 0.5
    assert fingerprint(begun.model) == fingerprint(init.model)
    for flags in ({"hidden": 24}, {"attention": "dot"}, {"source_unit": "words"}, {"unit": "lstm"}):
        (name, value), *_ = flags.items()
        with refuses(name, f"{value}, where --init model has", "Leave it out"):
            begin_from("model", recipe.with_flags(flags), init)


def test_the_fingerprint_is_that_of_the_weights():
    one, same, other = random_model().model, random_model().model, random_model(seed=5).model
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
    with torch.no_grad():
        same.output.bias[0] += 1e-6
    assert fingerprint(one) != fingerprint(same)


def test_a_folder_without_a_model_is_about_init(tmp_path):
    with refuses("init", "model.json"):
        load_beginning(tmp_path)
    save_model(tmp_path, random_model())
    assert fingerprint(load_beginning(tmp_path).model) == fingerprint(random_model().model)
