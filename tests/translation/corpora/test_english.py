"""English number words agree with num2words."""

from num2words import num2words

from regard.translation.corpora.english import below_hundred


def test_all_of_them():
    assert [below_hundred(number) for number in range(100)] == [num2words(number) for number in range(100)]
