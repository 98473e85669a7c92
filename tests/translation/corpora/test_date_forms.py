"""Dates are written as babel writes them, and every field stands where it is said to stand."""

from datetime import date, timedelta

import pytest
from babel.dates import format_date
from tests.refuses import refuses

from regard.translation.corpora import date_forms
from regard.translation.corpora.date_forms import forms
from regard.translation.corpora.dates import LOCALES
from regard.translation.text import normalise

DAYS = [date(2000, 1, 1) + timedelta(5 * number) for number in range(74)]
DAYS += [date(2010, 10, 10), date(1912, 12, 12), date(1900, 1, 1), date(2099, 12, 31), date(2020, 2, 20)]


def form(locale, style):
    return next(form for form in forms((locale,)) if form.style == style)


@pytest.mark.parametrize("locale", LOCALES)
def test_as_babel_writes_them(locale):
    for form in forms((locale,)):
        for day in DAYS:
            text, places = form.write(day)
            assert text == normalise(format_date(day, form.style, locale))
            assert text[slice(*places["year"])] == str(day.year)  # of the Gregorian calendar
            assert text[slice(*places["day"])] == str(day.day)


@pytest.mark.parametrize("locale", LOCALES)
def test_the_month_is_written_the_same_whatever_the_day_and_year(locale):
    for form in forms((locale,)):
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
        forms(("xx",))
    with refuses("locales", "locale"):
        forms(("not a locale",))


def test_a_field_that_is_not_of_the_day(monkeypatch):
    monkeypatch.delitem(date_forms._SAYS, "y")
    with refuses("locales", "'y'", "'EEEE, MMMM d, y'"):
        forms(("en",))
