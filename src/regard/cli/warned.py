"""Warnings on the command line: one line each, as errors are, and each said once."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def in_one_line() -> Iterator[None]:
    """Say what is warned of without the line of code that warned."""
    said = set()

    def say(message: Warning | str, *_: object, **__: object) -> None:
        line = " ".join(str(message).split())
        if line not in said:
            said.add(line)
            print(f"regard: {line}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = say
        yield
