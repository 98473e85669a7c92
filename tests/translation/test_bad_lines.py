"""Bad lines are counted by reason, and the first of each is named."""

from regard.translation.bad_lines import BadLine, BadLines, Reason


def test_nothing_bad():
    assert str(BadLines()) == "no lines skipped"
    assert len(BadLines()) == 0


def test_one_line_of_summary_with_the_most_frequent_first():
    bad = BadLines()
    bad.add(BadLine("a.tsv", 2, Reason.BROKEN, "byte 1"))
    for number in (5, 9):
        bad.add(BadLine("a.tsv", number, Reason.NO_TAB, "'x'"))
    assert len(bad) == 3
    assert bad.counts == {Reason.NO_TAB: 2, Reason.BROKEN: 1}
    assert str(bad) == (
        "3 lines skipped: 2 with no tab between source and target (first: line 5 of a.tsv), "
        "1 with broken UTF-8 (first: line 2 of a.tsv)"
    )
