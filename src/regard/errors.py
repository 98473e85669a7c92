"""The one error of the library: what was wrong, what is needed, and how to repair it."""

MAX_GOT = 300  # characters of a given value that an error shows


class RegardError(ValueError):
    """An argument that `regard` cannot accept, explained.

    The text always has the same four parts: the argument, what was given, what is needed, the repair. A given value
    longer than 300 characters is shortened in the middle, because a file can contain a name of any length.
    """

    def __init__(self, argument: str, *, got: str, needed: str, repair: str) -> None:
        """Compose the sentence that a user reads."""
        got = _cut(got)
        super().__init__(f"{argument}: got {got}; needed {needed}. {repair}")
        self.argument = argument
        self.got = got
        self.needed = needed
        self.repair = repair

    def about(self, argument: str) -> "RegardError":
        """The same of an argument that the user knows by another name."""
        return RegardError(argument, got=self.got, needed=self.needed, repair=self.repair)

    def __reduce__(self):
        """Rebuild from the four parts, not from the sentence."""
        parts = {"got": self.got, "needed": self.needed, "repair": self.repair}
        return _rebuild, (type(self), self.argument, parts)


def _cut(got: str) -> str:
    """The text, without its middle where it is too long to be read."""
    if len(got) <= MAX_GOT:
        return got
    return f"{got[: MAX_GOT // 2]} ... ({len(got):,} characters) ... {got[-MAX_GOT // 4 :]}"


def _rebuild(cls: type[RegardError], argument: str, parts: dict[str, str]) -> RegardError:
    return cls(argument, **parts)
