"""Dates as the world writes them: babel's full and long styles, and where each field stands."""

from collections.abc import Iterator
from datetime import date
from functools import cache
from typing import NamedTuple
from unicodedata import normalize

from regard.errors import RegardError
from regard.translation.extras import extra

STYLES = ("full", "long")
# The first letter of a field of a pattern (Unicode TR 35) and what of the day it says.
_SAYS = {"y": "year", "M": "month", "L": "month", "d": "day", "E": "weekday", "c": "weekday", "G": "era"}
ERA = date(2000, 1, 1)  # one day stands for the era of all

Places = dict[str, tuple[int, int]]


class Form(NamedTuple):
    """A locale, a style, and its pattern: letters as they are, or a field and what it says."""

    locale: str
    style: str
    pattern: tuple[tuple[str, str | None], ...]

    def write(self, day: date) -> tuple[str, Places]:
        """The day in words, and from where to where its year, month and day stand."""
        keys = {"year": day.year, "month": day.month, "day": day.day, "weekday": day.weekday(), "era": 0}
        text, places = "", {}
        for letters, says in self.pattern:
            written = letters if says is None else _field(self.locale, letters, says, keys[says])
            if says is not None:
                places[says] = (len(text), len(text) + len(written))
            text += written
        return text, places


def forms(locales: tuple[str, ...]) -> list[Form]:
    """Every style of every locale; refuses a locale that babel does not know or cannot write in words."""
    return [Form(locale, style, tuple(_pattern(locale, style))) for locale in locales for style in STYLES]


def _pattern(locale: str, style: str) -> Iterator[tuple[str, str | None]]:
    dates = extra("babel.dates", "corpus dates")
    try:
        pattern = dates.get_date_format(style, locale).pattern
    except (extra("babel.core", "corpus dates").UnknownLocaleError, ValueError) as unknown:
        raise _refusal(locale, str(unknown)) from None
    for kind, found in dates.tokenize_pattern(pattern):
        if kind == "chars":
            yield _clean(found), None
            continue
        letter, count = found
        if letter not in _SAYS:
            raise _refusal(locale, f"the field {letter!r} in its pattern {pattern!r}")
        letters = letter * count
        if _SAYS[letter] == "month" and count > 3 and _field(locale, letters, "month", 1) == "M01":
            raise _refusal(locale, "months written M01 to M12")
        yield letters, _SAYS[letter]


@cache
def _field(locale: str, letters: str, says: str, key: int) -> str:
    """One field of any day of which this is true, as babel writes it."""
    of = {
        "year": lambda: date(key, 1, 1),
        "month": lambda: date(2000, key, 1),
        "day": lambda: date(2000, 1, key),
        "weekday": lambda: date(2001, 1, 1 + key),  # a Monday, and the days after it
        "era": lambda: ERA,
    }
    return _clean(extra("babel.dates", "corpus dates").DateTimeFormat(of[says](), locale)[letters])


def _clean(letters: str) -> str:
    """As `normalise` would leave it, but for the blanks at its ends."""
    return "".join(" " if letter.isspace() else letter for letter in normalize("NFC", letters))


def _refusal(locale: str, got: str) -> RegardError:
    return RegardError(
        "locales",
        got=f"{locale}: {got}",
        needed="locales of which babel knows the names of the months",
        repair="Leave it out.",
    )
