"""Words of the command line, taken as they were typed: what would be rounded or filled in is refused."""

import errno
from pathlib import Path
from typing import get_args

from cyclopts import App, ArgumentCollection

from regard.errors import RegardError


def refuse_guesses(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse a whole number with a point, an empty path, and a path that cannot lead to a file.

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
            if Path in kinds and (reason := _dead_end(word)) is not None:
                raise RegardError(
                    name, got=f"{word!r:.60} ({reason})", needed="a path", repair="Check the path and its links."
                )


def _dead_end(path: str) -> str | None:
    """Return why the path cannot refer to a file, or None."""
    try:
        Path(path).stat()
    except ValueError:  # a null character
        return "not a path"
    except OSError as refusal:
        return refusal.strerror if refusal.errno in (errno.ELOOP, errno.ENAMETOOLONG) else None
    return None
