"""What a request may ask for: values of the right kind come through, others are refused by name."""

import pytest
from tests.refuses import refuses

from regard.studio.asked import Asked


def test_values_of_the_right_kind_come_through():
    asked = Asked({"number": 2, "whole": 3, "choice": "a", "flag": True, "text": "t", "numbers": [1, 2.5]})
    assert asked.number("number", 0, 5) == 2.0
    assert asked.whole("whole", 0, 5) == 3
    assert asked.choice("choice", ("a", "b")) == "a"
    assert asked.flag("flag") is True
    assert asked.text("text", 5) == "t"
    assert asked.numbers("numbers", 2) == [1.0, 2.5]


def test_what_is_not_asked_for_is_at_its_default():
    asked = Asked({})
    assert asked.number("n", 0, 1, 0.5) == 0.5
    assert asked.whole("n", 0, 1, 1) == 1
    assert asked.choice("n", ("a",), "a") == "a"
    assert asked.flag("n") is False
    assert asked.text("n", 1, "") == ""
    assert asked.items("n", 1) == []


@pytest.mark.parametrize("value", ["1", None, True, [1], float("nan"), float("inf"), -0.1, 1.1, 10**400])
def test_what_is_no_number_in_range(value):
    with refuses("n", "from 0", "to 1"):
        Asked({"n": value}).number("n", 0, 1)


@pytest.mark.parametrize("value", [1.0, "1", True, None, 6])
def test_what_is_no_whole_number(value):
    with refuses("n"):
        Asked({"n": value}).whole("n", 0, 5)


def test_long_values_are_not_repeated():
    with refuses("n", "xxx") as refusal:
        Asked({"n": "x" * 10_000}).choice("n", ("a",))
    assert len(str(refusal.value)) < 200
