"""`Standing`: it survives a checkpoint, and the best epoch is the best."""

import json

import pytest

from regard.translation.monitoring import EpochEnded
from regard.translation.training.standing import Best, Standing


def test_it_survives_a_checkpoint():
    standing = Standing(epoch=3, within=5, count=77, seconds=1.5, best=Best(2, 30.0, 4.0, 1.25))
    assert Standing.from_dict(json.loads(json.dumps(standing.to_dict()))) == standing


def test_the_next_epoch_begins_with_no_updates():
    standing = Standing(epoch=3, within=5, count=77)
    standing.next_epoch()
    assert standing == Standing(epoch=4, within=0, count=77)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (Best(1, 30.0, 1.0, 9.0), Best(2, 29.0, 5.0, 1.0)),
        (Best(1, 30.0, 2.0, 9.0), Best(2, 30.0, 1.0, 1.0)),
        (Best(1, 30.0, 2.0, 1.0), Best(2, 30.0, 2.0, 9.0)),
        (Best(1, 0.0, 0.0, 50.0), Best()),
    ],
)
def test_bleu_counts_first_then_exactness_then_the_loss(better, worse):
    assert better.beats(worse)
    assert not worse.beats(better)
    assert not better.beats(better)


def test_an_epoch_becomes_the_best_with_its_figures():
    entry = EpochEnded(4, 40, 2.0, 1.0, 0.1, 100, 1.0, bleu=12.0, exact=3.0, valid_loss=2.5)
    assert Best.of(entry) == Best(4, 12.0, 3.0, 2.5)
