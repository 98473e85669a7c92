"""`Hypothesis`: its length counts END where it wrote one."""

from regard.translation.search import Hypothesis


def test_length():
    assert Hypothesis((4, 5), -1.0, -1.0, None).length == 3
    assert Hypothesis((4, 5), -1.0, -1.0, None, finished=False).length == 2
