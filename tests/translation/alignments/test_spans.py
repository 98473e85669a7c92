"""`mass_on_spans`: characters decide which tokens belong together."""

from math import isnan
from typing import NamedTuple

import pytest
import torch
from tests.refuses import refuses

from regard.translation.alignments import SpanMass, mass_on_spans


class Span(NamedTuple):
    target: tuple[int, int]
    source: tuple[tuple[int, int], ...]


# "3 May" -> "05-03": May says 05, 3 says 03; the hyphen is said by nothing.
TRUTH = [Span((0, 2), ((2, 5),)), Span((3, 5), ((0, 1),))]
SOURCE = [(0, 1), (1, 2), (2, 4), (4, 5)]  # 3, blank, Ma, y
TARGET = [(0, 1), (1, 2), (2, 3), (3, 5)]  # 0, 5, -, 03


def test_mass_on_the_right_tokens_only():
    weights = torch.tensor(
        [
            [0.1, 0.1, 0.3, 0.4, 0.1],
            [0.0, 0.0, 0.5, 0.0, 0.5],
            [0.2, 0.2, 0.2, 0.2, 0.2],
            [0.9, 0.1, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 1.0],
        ]
    )
    found = mass_on_spans(weights, TARGET, SOURCE, TRUTH)
    assert found.tokens == 3
    assert found.mass == pytest.approx(0.7 + 0.5 + 0.9)
    assert found.share == pytest.approx(0.7)
    with_end = mass_on_spans(weights, [*TARGET, (5, 5)], [*SOURCE, (5, 5)], TRUTH)
    assert with_end == found


def test_a_token_over_two_spans_may_look_at_both_and_a_span_may_come_in_pieces():
    truth = [Span((0, 2), ((0, 1), (4, 5))), Span((2, 4), ((2, 3),))]
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.15, 0.25]])
    found = mass_on_spans(weights, [(1, 3)], [(i, i + 1) for i in range(5)], truth)
    assert found == SpanMass(pytest.approx(0.65), 1)


def test_right_everywhere_is_one_and_nothing_to_judge_is_nan():
    perfect = torch.tensor([[0.0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 0]])
    assert mass_on_spans(perfect, TARGET, SOURCE, TRUTH).share == 1.0
    nothing = mass_on_spans(perfect, TARGET, SOURCE, [])
    assert nothing.tokens == 0
    assert isnan(nothing.share)
    assert (nothing + SpanMass(1.5, 2)).share == 0.75


@pytest.mark.parametrize(
    ("weights", "target", "source", "argument", "word"),
    [
        (torch.ones(2), TARGET, SOURCE, "weights", "float32"),
        (torch.ones(4, 4), TARGET[:2], SOURCE, "target_spans", "2 tokens"),
        (torch.ones(4, 4), TARGET, [*SOURCE, (5, 6)], "source_spans", "5 tokens"),
    ],
)
def test_bad_arguments_are_named(weights, target, source, argument, word):
    with refuses(argument, word):
        mass_on_spans(weights, target, source, TRUTH)
