"""The exception of the library: which argument is wrong, what was given, what is needed and how to fix it."""

from typing import Self

MAX_VALUE_LENGTH = 300
"""An error message shortens a given value that has more characters than this."""


class RegardError(ValueError):
    """Raised when an argument is invalid.

    The message has four parts: the argument, what was given, what is needed and how to fix it. A given value of more
    than `MAX_VALUE_LENGTH` characters is shortened in the middle: a value that was read from a configuration file may
    have any length.

    Args:
        argument: name of the argument.
        got: what was given.
        needed: what is needed.
        repair: how to fix the call, as a complete sentence.

    Attributes:
        argument: name of the argument.
        got: what was given, shortened.
        needed: what is needed.
        repair: how to fix the call.

    >>> print(RegardError("key", got="dim 3", needed="dim 4", repair="Project the keys."))
    key: got dim 3; needed dim 4. Project the keys.
    """

    def __init__(self, argument: str, *, got: str, needed: str, repair: str) -> None:
        """Write the message from its parts."""
        got = _shorten(got)
        super().__init__(f"{argument}: got {got}; needed {needed}. {repair}")
        self.argument = argument
        self.got = got
        self.needed = needed
        self.repair = repair

    def about(self, argument: str) -> Self:
        """Return the same error for another argument name.

        Args:
            argument: the name by which the caller knows the argument, such as a key of a configuration file.

        Returns:
            A new error of the same class with the same values and text.
        """
        return type(self)(argument, got=self.got, needed=self.needed, repair=self.repair)

    def __reduce__(self):
        """Pickle the four parts, because `__init__` does not accept the message."""
        parts = {"got": self.got, "needed": self.needed, "repair": self.repair}
        return _rebuild, (type(self), self.argument, parts)


def _shorten(got: str) -> str:
    """Return the text, with the middle of a long text replaced by the length of the whole text."""
    if len(got) <= MAX_VALUE_LENGTH:
        return got
    return f"{got[: MAX_VALUE_LENGTH // 2]} ... ({len(got):,} characters) ... {got[-MAX_VALUE_LENGTH // 4 :]}"


def _rebuild(cls: type[RegardError], argument: str, parts: dict[str, str]) -> RegardError:
    return cls(argument, **parts)
