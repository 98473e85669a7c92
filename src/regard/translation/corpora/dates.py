"""The corpus `dates`: a day written in one of twenty languages, to ISO form."""

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from random import Random

from regard.errors import RegardError
from regard.translation.corpora.date_forms import Form, forms
from regard.translation.dataset import BuiltIn, Example, Span, check_sizes

FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
# One locale a language. Croatian is not among them: its listopad is October, in Polish and Czech it is November.
EUROPE = ("en", "de", "fr", "es", "it", "pt", "nl", "sv", "fi", "pl", "ro", "ru")
LOCALES = (*EUROPE, "ja", "zh", "ko", "vi", "tr", "el", "he", "th")
# Where the fields of 2010-10-05 stand.
ISO_PLACES = {"year": (0, 4), "month": (5, 7), "day": (8, 10)}
LEAP = 2000
PUNCTUATION = str.maketrans("", "", ".,")


def dates(
    *,
    seed: int = 0,
    train: int = 10_000,
    valid: int = 1_000,
    test: int = 2_000,
    locales: Sequence[str] = LOCALES,
) -> BuiltIn:
    """Make days of 1900 to 2099 in babel's full and long styles, every style of every locale as often as the others.

    "5. Oktober 2010" becomes "2010-10-05"; characters are the units of both sides, and the label is the locale. A day
    belongs wholly to one part. Locales in which some text has two readings are refused.
    """
    kinds = forms(tuple(locales))
    days = [FIRST + timedelta(number) for number in range((LAST - FIRST).days + 1)]
    check_sizes(train, valid, test, held_out=len(days) // 2)
    if not kinds:
        raise RegardError("locales", got="none", needed="at least one locale", repair='For example ("en", "de").')
    leap_year = [day for day in days if day.year == LEAP]
    check_readings(_example(form, day) for form in kinds for day in leap_year)
    random = Random(f"dates {seed}")
    random.shuffle(days)
    held_out = valid + test
    corpus = BuiltIn(
        train=_part(random, days[held_out:], kinds, train),
        valid=_part(random, days[test:held_out], kinds, valid),
        test=_part(random, days[:test], kinds, test),
        source_unit="characters",
        target_unit="characters",
    )
    check_readings((*corpus.train, *corpus.valid, *corpus.test))
    return corpus


def check_readings(examples: Iterable[Example]) -> None:
    """Refuse a text that means two days, or would if its commas and full stops were left out."""
    read: dict[str, Example] = {}
    for example in examples:
        other = read.setdefault(example.source.translate(PUNCTUATION), example)
        if other.target != example.target:
            raise RegardError(
                "locales",
                got=f"{other.source!r}, {other.target} in {other.label}, "
                f"and {example.source!r}, {example.target} in {example.label}",
                needed="locales in which every text has one reading",
                repair=f"Leave out {other.label} or {example.label}.",
            )


def _part(random: Random, days: list[date], kinds: list[Form], count: int) -> tuple[Example, ...]:
    """As many days in as many forms; each day comes once before any comes twice."""
    chosen = [_example(kinds[number % len(kinds)], days[number % len(days)]) for number in range(count)]
    random.shuffle(chosen)
    return tuple(chosen)


def _example(form: Form, day: date) -> Example:
    text, places = form.write(day)
    spans = tuple(Span(target, (places[field],)) for field, target in ISO_PLACES.items())
    return Example(text, day.isoformat(), spans, label=form.locale)
