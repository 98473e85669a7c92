"""A watched training is the training that `regard train` runs."""

import torch

from regard.tour.trainings.watched import train
from regard.translation import training
from regard.translation.corpora import built_in_corpus
from regard.translation.recipe import preset
from regard.translation.translator import Translator

EPOCHS = 2


def corpus():
    return built_in_corpus("lists", train=120, valid=12, test=12, longest=3)


def recipe():
    small = {"epochs": EPOCHS, "batch_tokens": 64, "embedding": 8, "hidden": 8, "attention_dim": 8}
    return preset("lists").with_flags(small | {"validate_from": EPOCHS})


def test_ends_with_the_same_weights(tmp_path):
    watched = train(recipe(), corpus(), lambda *_: None, lambda *_: None, lambda updates: {0, updates // 2})
    training.train(recipe(), corpus(), tmp_path)
    kept = Translator.load(tmp_path).models[0].model.state_dict()
    for name, weight in watched.models[0].model.state_dict().items():
        torch.testing.assert_close(weight, kept[name], rtol=0, atol=0)


def test_is_looked_at_when_asked_and_tells_how_far_it_is():
    looked, told, totals = [], [], []

    def moments(updates):
        totals.append(updates)
        return {0, 3, updates}

    train(recipe(), corpus(), lambda *words: told.append(words), lambda at, _: looked.append(at), moments)
    assert looked == [0, 3, totals[0]]
    assert told[-1][0] == 1
    assert told[-1][1].startswith(f"update {totals[0]} of {totals[0]}, loss ")
