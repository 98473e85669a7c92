"""What makes two trainings the same one, and the word that says in what they differ."""

from pathlib import Path

import pytest
from tests.refuses import refuses
from tests.translation.examples import make_model

from regard.translation.dataset import Corpus, Pair
from regard.translation.folder import Loaded
from regard.translation.recipe import Recipe
from regard.translation.training.identity import check_same, identity_of

CORPUS = Corpus("toy", (Pair("a", "b"),), (Pair("c", "d"),))
OTHER = Corpus("toy", (Pair("a", "b"),), (Pair("c", "e"),))


def beginning(seed):
    return Loaded(make_model(seed=seed), None, None, {})


IDENTITY = identity_of(Recipe(), CORPUS, beginning(0), 1)


def test_the_same_training_goes_on():
    check_same(IDENTITY, identity_of(Recipe(), Corpus("renamed", CORPUS.train, CORPUS.valid), beginning(0), 1), Path())


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("recipe", lambda: identity_of(Recipe().with_flags({"epochs": 7}), CORPUS, beginning(0), 1)),
        ("corpus", lambda: identity_of(Recipe(), OTHER, beginning(0), 1)),
        ("init", lambda: identity_of(Recipe(), CORPUS, beginning(1), 1)),
        ("init", lambda: identity_of(Recipe(), CORPUS, None, 1)),
        ("processes", lambda: identity_of(Recipe(), CORPUS, beginning(0), 2)),
    ],
)
def test_another_one_is_refused_by_what_differs(key, wanted):
    with refuses("out", f"another {key}"):
        check_same(IDENTITY, wanted(), Path("model"))
