"""The notebook of several heads shows what it says: two heads do two things, and each is worth one of them."""

import re

import pytest


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_two_heads_do_what_one_cannot(run):
    ran = run("multi-head")
    assert ran.drawn == 3
    assert ran.complaints == ""
    right = {
        int(heads): (float(one), float(three))
        for heads, one, three in re.findall(r"(\d) heads?: +([\d.]+)% .* before, +([\d.]+)% of those", ran.printed)
    }
    assert min(right[1]) < 50 < 95 < min(right[2])
    without = re.findall(r"^ +([01]) +([\d.]+)% +([\d.]+)%$", ran.printed, re.MULTILINE)
    assert len(without) == 2
    for _, *shares in without:
        assert min(map(float, shares)) < 50 < 95 < max(map(float, shares))
    others = re.findall(r"^(additive|gaussian) +([\d.]+)% and +([\d.]+)%$", ran.printed, re.MULTILINE)
    assert [name for name, *_ in others] == ["additive", "gaussian"]
    assert all(float(share) > 95 for _, *shares in others for share in shares)
