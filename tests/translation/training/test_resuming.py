"""A training resumes from its own checkpoint, and from nothing else."""

import pytest
from tests.translation.training.toys import make_corpus, make_recipe

from regard.errors import RegardError
from regard.translation.training import Corpus, pictures, train


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Pictures take most of the time of a small training."""
    monkeypatch.setattr(pictures, "can_draw", lambda: False)


def test_a_pair_moved_from_training_to_validation_is_other_data(tmp_path):
    corpus = make_corpus()
    train(make_recipe(epochs=1), corpus, tmp_path)
    moved = Corpus("toy", corpus.train[:-1], (corpus.train[-1], *corpus.valid))
    with pytest.raises(RegardError, match="where a training with another corpus was begun"):
        train(make_recipe(epochs=1), moved, tmp_path)
