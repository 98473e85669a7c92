"""The width of a beam: it gives back no more than it follows."""

import numpy as np
import pytest

from regard.errors import RegardError
from regard.translation.search.width import width_of


def test_whole_numbers_of_numpy_are_whole_numbers():
    assert width_of(np.int64(5), np.int32(2)) == (5, 2)


@pytest.mark.parametrize(
    ("beams", "nbest", "said"),
    [
        (0, 1, "beams: got 0; needed 1 or more"),
        (2.5, 1, r"beams: got 2\.5; needed 1 or more"),
        ("3", 1, "beams: got '3'"),
        (None, 1, "beams: got None"),
        (2, 3, "nbest: got 3; needed 1 to 2, as many hypotheses as there are beams"),
        (5, 2.0, r"nbest: got 2\.0"),
    ],
)
def test_no_beam_has_such_a_width(beams, nbest, said):
    with pytest.raises(RegardError, match=said):
        width_of(beams, nbest)
