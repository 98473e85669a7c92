"""Dates are written as babel writes them, mean one day, and know where their fields stand."""

from collections import Counter
from datetime import date, timedelta
from importlib import import_module

import pytest
from babel.dates import format_date
from tests.refuses import refuses
from tests.translation.corpora.truth import check, said

from regard.translation.corpora import dates
from regard.translation.corpora.dates import LOCALES, check_unambiguous, date_patterns
from regard.translation.dataset import Pair
from regard.translation.text import normalise

DAYS = [date(2000, 1, 1) + timedelta(5 * number) for number in range(74)]
DAYS += [date(2010, 10, 10), date(1912, 12, 12), date(1900, 1, 1), date(2099, 12, 31), date(2020, 2, 20)]


def form(locale, style):
    return next(form for form in date_patterns((locale,)) if form.style == style)


@pytest.mark.parametrize("locale", LOCALES)
def test_as_babel_writes_them(locale):
    for form in date_patterns((locale,)):
        for day in DAYS:
            text, places = form.write(day)
            assert text == normalise(format_date(day, form.style, locale))
            assert text[slice(*places["year"])] == str(day.year)  # of the Gregorian calendar
            assert text[slice(*places["day"])] == str(day.day)


@pytest.mark.parametrize("locale", LOCALES)
def test_the_month_is_written_the_same_whatever_the_day_and_year(locale):
    for form in date_patterns((locale,)):
        names = {}
        for day in DAYS:
            text, places = form.write(day)
            assert names.setdefault(day.month, text[slice(*places["month"])]) == names[day.month]
        assert len(set(names.values())) == 12


@pytest.mark.parametrize(
    ("locale", "style", "text", "places"),
    [
        ("ja", "long", "2010年10月10日", {"year": (0, 4), "month": (5, 7), "day": (8, 10)}),
        ("vi", "long", "10 tháng 10, 2010", {"day": (0, 2), "month": (3, 11), "year": (13, 17)}),
        ("en", "long", "October 10, 2010", {"month": (0, 7), "day": (8, 10), "year": (12, 16)}),
        ("he", "long", "10 באוקטובר 2010", {"day": (0, 2), "month": (4, 11), "year": (12, 16)}),
    ],
)
def test_where_three_tens_stand(locale, style, text, places):
    written, found = form(locale, style).write(date(2010, 10, 10))
    assert written == text
    assert found == places


def test_a_narrow_blank_becomes_a_blank():
    assert form("ru", "long").write(date(2010, 10, 5))[0] == "5 октября 2010 г."


def test_a_locale_that_babel_does_not_know():
    with refuses("locales", "'xx'"):
        date_patterns(("xx",))
    with refuses("locales", "locale"):
        date_patterns(("not a locale",))


def test_a_field_that_is_not_of_the_day(monkeypatch):
    monkeypatch.delitem(import_module("regard.translation.corpora.dates")._FIELDS, "y")
    with refuses("locales", "'y'", "'EEEE, MMMM d, y'"):
        date_patterns(("en",))


NAMELESS = "jbo"
SIZES = {"train": 800, "valid": 80, "test": 120}


@pytest.fixture(scope="module")
def small():
    return dates(**SIZES)


def test_parts_are_as_large_as_asked_and_share_no_day(small):
    assert [len(part) for part in (small.train, small.valid, small.test)] == [800, 80, 120]
    days = [{example.target for example in part} for part in (small.train, small.valid, small.test)]
    assert [len(part) for part in days] == [800, 80, 120]
    assert len(set.union(*days)) == sum(map(len, days))


def test_days_of_two_centuries_in_the_iso_form(small):
    read = [date.fromisoformat(example.target) for example in small.train]
    assert {day.year // 20 for day in read} == set(range(1900 // 20, 2100 // 20))
    assert {day.month for day in read} == set(range(1, 13))
    assert {day.day for day in read} == set(range(1, 32))


def test_twenty_languages_in_equal_shares(small):
    assert len(LOCALES) == len({locale.partition("_")[0] for locale in LOCALES}) == 20
    assert Counter(example.label for example in small.train) == dict.fromkeys(LOCALES, 40)


def test_spans_are_true(small):
    for example in small.test:
        check(example)
        (year, (said_year,)), (_, (month,)), (day, (said_day,)) = said(example)
        assert said_year == year == example.target[:4]
        assert int(said_day) == int(day) == int(example.target[8:])
        assert month in example.source.replace(said_year, "")


def test_more_examples_than_days():
    corpus = dates(train=37_000, valid=36_000, test=500, locales=["en"])
    days = Counter(example.target for example in corpus.train)
    assert len(days) == 73_049 - 36_500
    assert set(days.values()) == {1, 2}


def test_the_seed_decides(small):
    assert dates(**SIZES) == small
    assert dates(**SIZES, seed=1).test != small.test


@pytest.mark.parametrize("locales", [("de", "pl", "hr"), ("hr", "en", "pl")])
def test_two_readings_are_refused(locales):
    with refuses("locales", "listopada 2000") as refusal:
        dates(train=1, valid=1, test=1, locales=locales)
    assert refusal.value.repair == f"Leave out {' or '.join(sorted({'pl', 'hr'}, key=locales.index))}."


def test_two_readings_in_the_examples_are_refused():
    once, again = Pair("May 1", "2000-05-01", (), "a"), Pair("May. 1", "2000-01-05", (), "b")
    with refuses("locales", "'May 1', 2000-05-01 in a", "'May. 1', 2000-01-05 in b"):
        check_unambiguous([once, again])
    check_unambiguous([once, once])


def test_months_without_names_are_refused():
    with refuses("locales", NAMELESS, "M01 to M12"):
        dates(locales=("en", NAMELESS))


def test_what_else_is_refused():
    with refuses("locales", "none"):
        dates(locales=())
    with refuses("valid, test", "1000", "40000", "36524"):
        dates(test=40_000)
    with refuses("train"):
        dates(train=0)
