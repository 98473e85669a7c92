"""`Trainee`: drawn by its seed, or begun from a trained model; what a checkpoint holds brings all of it back."""

import torch

from regard.translation import folder
from regard.translation.dataset import Corpus, Pair
from regard.translation.folder import Loaded
from regard.translation.model import Architecture
from regard.translation.recipe import Data, Recipe, Training
from regard.translation.training.trainee import Trainee

CORPUS = Corpus("toy", (Pair("a b", "x y z"),), (Pair("b", "z"),))
RECIPE = Recipe(Architecture(embedding=3, hidden=5), Data("words", "words"), Training(average=2))
CPU = torch.device("cpu")


def begin(seed=1):
    return Trainee.begin(RECIPE.with_flags({"seed": seed}), CORPUS, None, CPU)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))


def test_the_seed_draws_the_model():
    assert same(begin(), begin())
    assert not same(begin(), begin(seed=2))
    assert (len(begin().source_vocabulary), len(begin().target_vocabulary)) == (6, 7)


def test_a_trained_model_is_a_beginning():
    trained = begin(seed=2)
    init = Loaded(trained.model, trained.source_vocabulary, trained.target_vocabulary, {})
    tuned = Trainee.begin(RECIPE, Corpus("other", (Pair("q", "r"),), (Pair("q", "r"),)), init, CPU)
    assert same(tuned, trained)
    assert tuned.source_vocabulary is trained.source_vocabulary


def test_a_checkpoint_brings_back_weights_moments_and_average():
    first, second = begin(), begin(seed=2)
    for parameter in first.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    first.optimiser.step()
    first.average.add(first.model)
    second.restore(first.state())
    assert same(first, second)
    weight = second.model.output.weight
    assert second.optimiser.state[weight]["step"] == 1
    assert torch.equal(second.average.kept[0][0], first.average.kept[0][0])


def test_what_is_kept_can_be_loaded(tmp_path):
    trainee = begin()
    trainee.keep(tmp_path, {"told": 1})
    kept = folder.load(tmp_path)
    assert kept.facts == {"told": 1}
    assert torch.equal(kept.model.output.weight, trainee.model.output.weight)
    assert trainee.parameters == sum(parameter.numel() for parameter in kept.model.parameters())
