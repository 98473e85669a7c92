"""The notebook of pooling shows what it says: the sum by hand is attend's, and equal norms make the scores one."""

import re

import pytest


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_pooling_by_hand_is_that_of_attend(run):
    ran = run("pooling")
    assert ran.drawn == 4
    assert ran.complaints == ""
    by_hand, by_attend = re.findall(r"(?:over all samples|attend says): +([\d.]+)$", ran.printed, re.MULTILINE)
    assert by_hand == by_attend
    parted = re.findall(r"^ +(0\.\d) +(0\.\d{3})$", ran.printed, re.MULTILINE)
    spreads, shares = zip(*((float(spread), float(share)) for spread, share in parted), strict=True)
    assert shares[spreads.index(0.0)] == 0
    assert list(shares) == sorted(shares)
    assert shares[-1] > 0.05
