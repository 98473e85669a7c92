"""The corpus `dates`: a day written in one of twenty languages, to ISO form."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from functools import cache
from random import Random
from typing import NamedTuple
from unicodedata import normalize

from regard.errors import RegardError
from regard.extras import require
from regard.translation.dataset import Corpus, Pair, Span, check_sizes

STYLES = ("full", "long")
# The first letter of a field of a pattern (Unicode TR 35), and the part of the date that it shows.
_FIELDS = {"y": "year", "M": "month", "L": "month", "d": "day", "E": "weekday", "c": "weekday", "G": "era"}
ERA = date(2000, 1, 1)  # any day of our era

Places = dict[str, tuple[int, int]]


class DatePattern(NamedTuple):
    """A style of a locale; its pattern is a sequence of literal text (None) and fields with what they say."""

    locale: str
    style: str
    pattern: tuple[tuple[str, str | None], ...]

    def write(self, day: date) -> tuple[str, Places]:
        """Return the day as text, and the character ranges of its year, month and day."""
        keys = {"year": day.year, "month": day.month, "day": day.day, "weekday": day.weekday(), "era": 0}
        text, places = "", {}
        for letters, says in self.pattern:
            written = letters if says is None else _field(self.locale, letters, says, keys[says])
            if says is not None:
                places[says] = (len(text), len(text) + len(written))
            text += written
        return text, places


def date_patterns(locales: tuple[str, ...]) -> list[DatePattern]:
    """Return every style of every locale; raise for a locale that babel does not know or cannot write in words."""
    return [DatePattern(locale, style, tuple(_pattern(locale, style))) for locale in locales for style in STYLES]


def _pattern(locale: str, style: str) -> Iterator[tuple[str, str | None]]:
    dates = require("babel.dates", "translation", "corpus dates")
    try:
        pattern = dates.get_date_format(style, locale).pattern
    except (require("babel.core", "translation", "corpus dates").UnknownLocaleError, ValueError) as unknown:
        raise _refusal(locale, str(unknown)) from None
    for kind, found in dates.tokenize_pattern(pattern):
        if kind == "chars":
            yield _clean(found), None
            continue
        letter, count = found
        if letter not in _FIELDS:
            raise _refusal(locale, f"the field {letter!r} in its pattern {pattern!r}")
        letters = letter * count
        if _FIELDS[letter] == "month" and count > 3 and _field(locale, letters, "month", 1) == "M01":
            raise _refusal(locale, "months written M01 to M12")
        yield letters, _FIELDS[letter]


@cache
def _field(locale: str, letters: str, says: str, key: int) -> str:
    """Return one field as babel writes it, for any day that has this value."""
    of = {
        "year": lambda: date(key, 1, 1),
        "month": lambda: date(2000, key, 1),
        "day": lambda: date(2000, 1, key),
        "weekday": lambda: date(2001, 1, 1 + key),  # a Monday, and the days after it
        "era": lambda: ERA,
    }
    return _clean(require("babel.dates", "translation", "corpus dates").DateTimeFormat(of[says](), locale)[letters])


def _clean(letters: str) -> str:
    """Normalise a piece of text, and keep blanks at its ends."""
    return "".join(" " if letter.isspace() else letter for letter in normalize("NFC", letters))


def _refusal(locale: str, got: str) -> RegardError:
    return RegardError(
        "locales",
        got=f"{locale}: {got}",
        needed="locales of which babel knows the names of the months",
        repair="Leave it out.",
    )


FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
# One locale a language. Croatian is not among them: its listopad is October, in Polish and Czech it is November.
EUROPE = ("en", "de", "fr", "es", "it", "pt", "nl", "sv", "fi", "pl", "ro", "ru")
LOCALES = (*EUROPE, "ja", "zh", "ko", "vi", "tr", "el", "he", "th")
# Character ranges of the fields of an ISO date.
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
) -> Corpus:
    """Make days of 1900 to 2099 in babel's full and long styles, every style of every locale equally often.

    "5. Oktober 2010" becomes "2010-10-05"; characters are the units of both sides, and the label is the locale. A day
    belongs wholly to one part. Locales in which some text has two readings are refused.
    """
    kinds = date_patterns(tuple(locales))
    days = [FIRST + timedelta(number) for number in range((LAST - FIRST).days + 1)]
    check_sizes(train, valid, test, max_held_out=len(days) // 2)
    if not kinds:
        raise RegardError("locales", got="none", needed="at least one locale", repair='For example ("en", "de").')
    leap_year = [day for day in days if day.year == LEAP]
    check_unambiguous(_example(form, day) for form in kinds for day in leap_year)
    random = Random(f"dates {seed}")
    random.shuffle(days)
    held_out = valid + test
    corpus = Corpus(
        "dates",
        train=_part(random, days[held_out:], kinds, train),
        valid=_part(random, days[test:held_out], kinds, valid),
        test=_part(random, days[:test], kinds, test),
    )
    check_unambiguous((*corpus.train, *corpus.valid, *corpus.test))
    return corpus


def check_unambiguous(examples: Iterable[Pair]) -> None:
    """Raise for a text that means two days, or would mean two without its commas and full stops."""
    read: dict[str, Pair] = {}
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


def _part(random: Random, days: list[date], kinds: list[DatePattern], count: int) -> tuple[Pair, ...]:
    """Return `count` pairs, cycling through days and patterns: no day comes twice before every day has come once."""
    chosen = [_example(kinds[number % len(kinds)], days[number % len(days)]) for number in range(count)]
    random.shuffle(chosen)
    return tuple(chosen)


def _example(form: DatePattern, day: date) -> Pair:
    text, places = form.write(day)
    spans = tuple(Span(target, (places[field],)) for field, target in ISO_PLACES.items())
    return Pair(text, day.isoformat(), spans, label=form.locale)
