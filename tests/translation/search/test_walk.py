"""`walk`: beams that go their own way, each until its own end."""

import torch
from tests.translation.search.toys import random_table

from regard.translation.search.effort import Effort
from regard.translation.search.limits import Limits
from regard.translation.search.walk import walk
from regard.translation.vocabulary import END


def test_each_walk_ends_by_itself_and_counts_its_own_words():
    table = random_table(1, 4, 6)
    plan = torch.tensor([[[4, END, 5, 5], [5, 4, 5, END], [5, 5, 5, 5]]])  # (sentence, walk, step)

    def choose(log_probabilities, rows, length):
        tokens = plan[rows, :, length - 1]
        return log_probabilities.gather(-1, tokens[..., None])[..., 0], tokens

    limits = Limits.checked(1, 0, 4, (), "cpu")
    history, ends = walk(table, table.state(), 1, choose, count=3, limits=limits, effort=Effort())
    (found,) = history.trace(ends, 0.0, None)
    assert [one.tokens for one in found] == [(4,), (5, 4, 5), (5, 5, 5, 5)]
    assert [one.finished for one in found] == [True, True, False]
    for one in found:
        total, prefix = 0.0, 0
        for step, token in enumerate([*one.tokens, END] if one.finished else one.tokens):
            total += float(table.log_probabilities[0, step, prefix, token])
            prefix = prefix * 6 + token
        assert one.log_probability == total
        assert one.alignment.shape == (one.length, 3)
    assert table.asked == [(1, 1), (1, 3), (1, 3), (1, 3)]
