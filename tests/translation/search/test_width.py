"""The width of a beam: it gives back no more than it follows."""

import numpy as np
import pytest
from tests.refuses import refuses

from regard.translation.search.width import width_of


def test_whole_numbers_of_numpy_are_whole_numbers():
    assert width_of(np.int64(5), np.int32(2)) == (5, 2)


@pytest.mark.parametrize(
    ("beams", "nbest", "argument", "word"),
    [
        (0, 1, "beams", "1 or more"),
        (2.5, 1, "beams", "1 or more"),
        ("3", 1, "beams", "'3'"),
        (None, 1, "beams", "None"),
        (2, 3, "nbest", "1 to 2, as many hypotheses as"),
        (5, 2.0, "nbest", "2.0"),
    ],
)
def test_no_beam_has_such_a_width(beams, nbest, argument, word):
    with refuses(argument, word):
        width_of(beams, nbest)
