"""The limits are limits: whatever is asked at most can be answered in time."""

from regard.studio import limits


def test_the_largest_points_fit_into_a_request():
    assert limits.MOST_POINTS * 2 * 24 < limits.MOST_BYTES


def test_nothing_is_unlimited():
    numbers = [value for name, value in vars(limits).items() if name.isupper()]
    assert len(numbers) >= 8
    assert all(0 < number < 2**21 for number in numbers)
