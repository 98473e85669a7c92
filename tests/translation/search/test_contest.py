"""`Contest`: what is chosen, in which order, and who has no chance left."""

from math import inf

import torch

from regard.translation.search import Stepped
from regard.translation.search.contest import Contest
from regard.translation.search.limits import Limits
from regard.translation.vocabulary import END


def begin(*, beams=3, nbest=1, strength=0.0, longest=9):
    return Contest.begin(1, beams, nbest, strength, Limits.checked(1, 0, longest, (), "cpu"), "cpu")


def stepped(*rows):
    return Stepped(torch.tensor([rows]), None, None)


def test_those_that_go_on_stand_in_front():
    contest = begin()
    chosen = contest.choose(stepped([-3.0, -inf, -2.0, -1.0, -inf]), 1)
    assert chosen.tokens.tolist() == [[2, 0, END]]
    assert chosen.totals.tolist() == [[-2.0, -3.0, -1.0]]
    after = contest.after(chosen, 1, stop_early=False)
    assert after.totals.tolist() == [[-2.0, -3.0, -inf]]
    assert after.places.tolist() == [[2]]
    assert (after.ends.key.item(), after.ends.step.item(), after.ends.slot.item()) == (-1.0, 0, 2)
    assert after.narrowed().totals.tolist() == [[-2.0, -3.0]]


def test_a_finished_place_is_not_given_away():
    contest = begin(beams=2, longest=4)
    contest = contest.after(contest.choose(stepped([-2.0, -3.0, -inf, -1.0]), 1), 1, stop_early=False)
    chosen = contest.choose(stepped([-1.0, -2.0, -inf, -9.0], [-1.0, -1.0, -1.0, -1.0]), 2)
    assert chosen.totals.tolist() == [[-3.0, -inf]]


def test_a_beam_without_a_chance_is_given_up_and_one_with_a_chance_is_not():
    words = stepped([-2.0, -inf, -inf, -1.0])
    for strength, longest, going in ((0.0, 9, False), (1.0, 9, True), (1.0, 6, False), (1.0, 7, False), (1.0, 8, True)):
        # END scores -1; the other can still reach -2 / ((5 + longest) / 6), which is -1 at 7: a tie is no gain.
        contest = begin(strength=strength, longest=longest)
        assert contest.after(contest.choose(words, 1), 1, stop_early=True).going.tolist() == [going]


def test_a_word_above_certainty_does_not_raise_a_total():
    contest = begin()
    assert contest.choose(stepped([1e-7, -inf, -inf, -inf]), 1).totals[0, 0] == 0.0
