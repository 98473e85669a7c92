"""Groups by length: every sentence in one of them, at most twelve, equally wide."""

from hypothesis import given
from hypothesis import strategies as st

from regard.translation.evaluation.by_length import MOST_GROUPS, LengthGroup, by_length, exact_share


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=12))
def test_every_sentence_is_in_one_group(lengths):
    texts = [str(length) for length in lengths]
    groups = by_length(lengths, texts, texts)
    assert sum(group.count for group in groups) == len(lengths)
    assert len(groups) <= MOST_GROUPS
    assert len({group.last - group.first for group in groups}) == 1
    for group in groups:
        assert group.count == sum(group.first <= max(length, 1) <= group.last for length in lengths)
        assert (group.bleu, group.exact) == (100, 1)


def test_each_length_has_its_own_quality():
    lengths = [1, 1, 2, 30]
    said, meant = ["a", "b", "a b", "x y"], ["a", "a", "a b", "a b"]
    short, long = by_length(lengths, said, meant)
    assert (short.name, short.count, short.exact) == ("1-5", 3, 2 / 3)
    assert long == LengthGroup(26, 30, 1, 0.0, 0.0)
    assert [(group.name, group.count, group.exact) for group in by_length(lengths[:3], said[:3], meant[:3])] == [
        ("1", 2, 0.5),
        ("2", 1, 1.0),
    ]


def test_exact_is_to_the_letter():
    assert exact_share(["a", "A", "b "], ["a", "a", "b"]) == 1 / 3
