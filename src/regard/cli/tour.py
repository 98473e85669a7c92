"""`regard tour`: the whole chapter computed, and one page to open."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from regard.tour.events import Listener

EXAMPLES = (
    ("regard tour", "compute the chapter and write its page into the folder tour"),
    ("regard tour --out lecture", "the same into another folder"),
)


def tour(*, out: Path = Path("tour"), quick: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Compute the whole chapter and write one interactive page that opens in any browser, without a network.

    It takes two to three minutes on two cores: small translators are trained with and without attention.

    Args:
        out: folder for the page (tour.html) and the files behind it (CSV, SVG, PNG).
        quick: everything runs, on very little data: the page is whole, but its small models have learnt nothing.
    """
    from regard.tour import FULL, QUICK, run

    with _progress() as listen:
        visit = run(out, QUICK if quick else FULL, listen)
    print(f"wrote {visit.page} and {len(visit.files) - 1} files beside it in {visit.seconds:.0f} s")
    print(f"open {visit.page.resolve().as_uri()}")


@contextmanager
def _progress() -> "Iterator[Listener]":
    """A bar with its numbers in a terminal; silence where the output goes elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from regard.tour.events import Progressed, silence

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        yield silence
        return
    columns = (
        TextColumn("{task.fields[works]}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=1.0, works="")

        def listen(event: Progressed) -> None:
            works = f"{event.done} of {event.works} works"
            shown.update(task, completed=event.share, description=event.under_way, works=works)

        yield listen
