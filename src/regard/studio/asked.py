"""What a request asks for, value by value: each is checked before it is used, and refused with the repair."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from regard.errors import RegardError


class Asked:
    """The JSON object of a request; every value is read by the kind it must have."""

    def __init__(self, values: object) -> None:
        if not isinstance(values, Mapping):
            raise RegardError(
                "request",
                got=type(values).__name__,
                needed="a JSON object",
                repair="Reload the page: it may be older than the studio that serves it.",
            )
        self._values = values

    def number(self, name: str, low: float, high: float, otherwise: float | None = None) -> float:
        """A finite number from `low` to `high`."""
        value = self._values.get(name, otherwise)
        if not _is_number(value) or not low <= value <= high:
            raise RegardError(
                name,
                got=_shown(value),
                needed=f"a number from {low:g} to {high:g}",
                repair="Move the slider back into its range.",
            )
        return float(value)

    def whole(self, name: str, low: int, high: int, otherwise: int | None = None) -> int:
        """A whole number from `low` to `high`."""
        value = self._values.get(name, otherwise)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise RegardError(
                name,
                got=_shown(value),
                needed=f"a whole number from {low} to {high}",
                repair="Choose one of those offered.",
            )
        return value

    def choice(self, name: str, among: Sequence[str], otherwise: str | None = None) -> str:
        """One of a few words."""
        value = self._values.get(name, otherwise)
        if not isinstance(value, str) or value not in among:
            raise RegardError(
                name, got=_shown(value), needed=f"one of {', '.join(among)}", repair="Choose one from the menu."
            )
        return value

    def flag(self, name: str, otherwise: bool = False) -> bool:
        """True or false."""
        value = self._values.get(name, otherwise)
        if not isinstance(value, bool):
            raise RegardError(name, got=_shown(value), needed="true or false", repair="Reload the page.")
        return value

    def text(self, name: str, most: int, otherwise: str | None = None) -> str:
        """Text of at most so many characters."""
        value = self._values.get(name, otherwise)
        if not isinstance(value, str):
            raise RegardError(name, got=_shown(value), needed="text", repair="Type it into the field.")
        if len(value) > most:
            raise RegardError(
                name,
                got=f"{len(value):,} characters",
                needed=f"at most {most:,}",
                repair="Shorten it; `regard translate` and `regard regress` take larger files.",
            )
        if not _is_unicode(value):
            raise RegardError(
                name, got="half of a character", needed="Unicode text", repair="Type the last character again."
            )
        return value

    def numbers(self, name: str, most: int) -> list[float]:
        """A list of at most so many finite numbers."""
        values = self.items(name, most)
        if set(map(type, values)) <= {int, float} and all(map(_is_finite, values)):
            return list(map(float, values))
        place, wrong = next((place, value) for place, value in enumerate(values) if not _is_number(value))
        raise RegardError(
            name,
            got=f"{_shown(wrong)} at number {place + 1}",
            needed="finite numbers",
            repair="Mend or remove that point.",
        )

    def items(self, name: str, most: int) -> list[Any]:
        """A list of at most so many values of any kind."""
        values = self._values.get(name, [])
        if not isinstance(values, list):
            raise RegardError(name, got=_shown(values), needed="a list", repair="Reload the page.")
        if len(values) > most:
            raise RegardError(
                name,
                got=f"{len(values):,}",
                needed=f"at most {most:,}",
                repair="Take a sample of them; `regard regress` takes larger files.",
            )
        return values


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and _is_finite(value)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond all floats
        return False


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can say and UTF-8 cannot
        return False
    return True


def _shown(value: object) -> str:
    return "nothing" if value is None else f"{value!r:.60}"
