"""A mask is taken apart into what the kernels know, or not at all."""

import pytest
import torch

from regard.backends.fused.conditions import ANYWHERE, FAR, conditions_of
from regard.masks.bound import And, Band, Lengths, Not, Or

LENGTHS = Lengths(torch.tensor([[[3]]]))


@pytest.mark.parametrize(
    ("mask", "band"),
    [
        (None, ANYWHERE),
        (LENGTHS, ANYWHERE),
        (Band(None, 0), (-FAR, 0, 1, 0)),
        (Band(-2, 3), (-2, 3, 1, 0)),
        (Not(Band(0, 0)), (-FAR, FAR, 0, 0)),
        (And(Band(None, 4), And(Not(Band(-1, 1)), LENGTHS)), (-FAR, 4, -1, 1)),
        (And(Band(None, 4), Band(-3, None)), (-3, 4, 1, 0)),
    ],
)
def test_bands_and_gaps(mask, band):
    assert conditions_of(mask).band == band


def test_conditions_on_keys_are_kept_apart():
    assert conditions_of(And(LENGTHS, Band(None, 0))).keys == (LENGTHS,)


@pytest.mark.parametrize("mask", [Or(Band(None, 0), LENGTHS), And(Not(Band(0, 0)), Not(Band(3, 4)))])
def test_anything_else_is_not_known(mask):
    assert conditions_of(mask) is None
