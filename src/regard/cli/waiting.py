"""A sign of life on standard error while a command works in silence: what it does, and for how long."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Within it a terminal shows what is being done and the seconds so far; anything else stays silent."""
    # The help does not wait for these.
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    # Results that are piped away must not pass through the terminal's own stream.
    with Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as shown:
        shown.add_task(what, total=None)
        yield
