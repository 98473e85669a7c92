"""Words of the command line, taken as they were typed: what would be rounded or filled in is refused."""

from pathlib import Path
from typing import get_args

from cyclopts import App, ArgumentCollection

from regard.errors import RegardError


def refuse_guesses(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse a whole number with a point and a path without a letter.

    Cyclopts calls it with the words of every verb before it converts them. It would round 0.9 to 1, and Path("") is the
    current folder: what "$UNSET" stands for in a shell would be filled with files.
    """
    del app, commands
    for argument in arguments:
        kinds = (argument.hint, *get_args(argument.hint))
        name = argument.field_info.name
        for word in (token.value for token in argument.tokens):
            if int in kinds and "." in word:
                raise RegardError(name, got=word, needed="a whole number", repair="Write it without a point.")
            if Path in kinds and not word:
                raise RegardError(
                    name, got="an empty path", needed="a name", repair="Write . where you mean the current folder."
                )
