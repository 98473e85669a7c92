"""The verbs and what they share: help, versions, and errors as one line."""

import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, CycloptsError

from regard.cli.as_typed import refuse_guesses
from regard.cli.bench import bench
from regard.cli.doctor import doctor
from regard.cli.evaluate import evaluate
from regard.cli.help_texts import description, epilogue
from regard.cli.lab import lab
from regard.cli.regress import regress
from regard.cli.standard_output import arriving
from regard.cli.statuses import FAILED, INTERRUPTED, REFUSED
from regard.cli.studio import studio
from regard.cli.tour import tour
from regard.cli.translate import translate
from regard.cli.warned import in_one_line
from regard.errors import RegardError

TRAIN = """Train a model on sentence pairs; interrupted, the same command goes on from the last checkpoint.

Checkpoints are written by time (--save-seconds) and when Ctrl-C or SIGTERM ends the command; a second Ctrl-C ends it \
at once, without one. Where torchrun has started several processes, signals end them at once.

Values of the recipe come from flags, else from the file --recipe, else from the defaults: those shown here, or what \
suits a built-in corpus."""

app = App(
    name="regard",
    help="Attention as one operator: any score, any mask, weights on demand.",
    help_format="plaintext",
    help_epilogue="regard VERB --help shows examples. An error is one sentence; with --debug, its traceback too.",
    version=lambda: version("regard"),
    config=refuse_guesses,  # for every verb at once
    suppress_keyboard_interrupt=False,  # `run` says so
)
# A verb imports what it needs when it runs, so that the help does not wait for torch.
for verb in (tour, regress, translate, evaluate, lab, studio, doctor, bench):
    app.command(verb, help=description(verb), help_epilogue=epilogue(verb.__name__))
# The flags of this one are made from the recipe's records, which torch stands behind: it is imported when asked for.
app.command("regard.cli.train:train", help=TRAIN, help_epilogue=epilogue("train"))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    What the user got wrong is one line and status 2; what went wrong inside is one line and status 1. --debug anywhere
    before a bare -- shows where: the error goes on as it is.
    """
    words, debug = _without_debug(sys.argv[1:] if arguments is None else arguments)
    if sys.stderr is None:  # closed: `print` would write to standard output instead
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    _write_everything()
    try:
        with in_one_line(), arriving():
            app(words, exit_on_error=False, print_error=False, result_action="return_none")
    except KeyboardInterrupt:
        print("\nregard: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as leaving:
        # Whoever was reading has gone: nothing is left to be said. The library of tables and help leaves by itself.
        if not isinstance(leaving, BrokenPipeError) and not isinstance(leaving.__context__, BrokenPipeError):
            raise
        sys.stdout = None
        return 0
    except Exception as error:
        if debug:
            raise
        print(f"regard: {one_line(error)}", file=sys.stderr)
        return REFUSED if isinstance(error, RegardError | CycloptsError) else FAILED
    return 0


def one_line(error: Exception) -> str:
    """An error as one sentence; one that is not a refusal of ours says how to see where it came from."""
    told = " ".join(str(error).split())
    if isinstance(error, CycloptsError):
        verb = " ".join(("regard", *(error.command_chain or ())))
        return f"{told} {verb} --help shows what it takes."
    if isinstance(error, RegardError):
        return told
    kind = type(error).__name__
    return f"{kind}: {told or 'no further word'} (the same command with --debug shows where)."


def _write_everything() -> None:
    """A sign that a stream cannot write is written as its number, instead of ending what is done already."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _without_debug(words: Sequence[str]) -> tuple[list[str], bool]:
    """The words of a command line without --debug, and whether it was there; after -- it is text like any other."""
    end = words.index("--") if "--" in words else len(words)
    flags = list(words[:end])
    return [word for word in flags if word != "--debug"] + list(words[end:]), "--debug" in flags
