"""Sizes of parts: none empty, and not more held out than there is."""

import pytest
from tests.refuses import refuses

from regard.translation.corpora.sizes import check_sizes


def test_what_is_accepted():
    check_sizes(1, 1, 1)
    check_sizes(10**6, 5, 5, held_out=10)


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_an_empty_part_is_refused(part):
    with refuses(part, "at least one example"):
        check_sizes(**({"train": 1, "valid": 1, "test": 1} | {part: 0}))


def test_too_many_held_out():
    with refuses("valid, test", "5 and", "10"):
        check_sizes(1, 5, 6, held_out=10)
