"""The verbs and what they share: versions, and errors as one line."""

import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, CycloptsError

from regard.cli.doctor import doctor
from regard.cli.evaluate import evaluate
from regard.cli.lab import lab
from regard.cli.regress import regress
from regard.cli.statuses import INTERRUPTED, REFUSED
from regard.cli.tour import tour
from regard.cli.translate import translate
from regard.errors import RegardError

TRAIN = """Train a model on sentence pairs; interrupted, the same command goes on where it stopped.

Values of the recipe come from flags, else from the file --recipe, else from the defaults: those shown here, or what
suits a built-in corpus.
"""

app = App(
    name="regard",
    help="Attention as one operator: any score, any mask, weights on demand.",
    version=lambda: version("regard"),
)
# A verb imports what it needs when it runs, so that the help does not wait for torch.
app.command(tour)
app.command(regress)
# The flags of this one are made from the recipe's records, which torch stands behind: it is imported when asked for.
app.command("regard.cli.train:train", help=TRAIN)
app.command(translate)
app.command(evaluate)
app.command(lab)
app.command(doctor)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; what the user got wrong is one line and status 2."""
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_none")
    except (RegardError, CycloptsError) as refusal:
        print(f"regard: {refusal}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print("\nregard: interrupted.", file=sys.stderr)
        return INTERRUPTED
    return 0
