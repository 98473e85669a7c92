"""The verbs and what they share: versions, and errors as one line."""

import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, CycloptsError

from regard.cli.doctor import doctor
from regard.cli.regress import regress
from regard.cli.tour import tour
from regard.errors import RegardError

REFUSED = 2

app = App(
    name="regard",
    help="Attention as one operator: any score, any mask, weights on demand.",
    version=lambda: version("regard"),
)
# A verb imports what it needs when it runs, so that the help does not wait for torch.
app.command(tour)
app.command(regress)
app.command(doctor)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; what the user got wrong is one line and status 2."""
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_none")
    except (RegardError, CycloptsError) as refusal:
        print(f"regard: {refusal}", file=sys.stderr)
        return REFUSED
    return 0
