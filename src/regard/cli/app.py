"""The verbs and what they share: strict parsing, help, versions, one-line errors, exit statuses."""

import errno
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import get_args

from cyclopts import App, ArgumentCollection, CycloptsError
from cyclopts.exceptions import UnknownCommandError

from regard.cli import bench, doctor, evaluate, lab, regress, studio, tour, translate
from regard.cli.output import checked_stdout, one_line_warnings
from regard.errors import RegardError

FAILED = 1
"""Exit status of an error inside the library."""
REFUSED = 2
"""Exit status of a mistake in the command."""
INTERRUPTED = 130
"""Exit status that a shell expects of a command that Ctrl-C has ended."""

TRAIN = """Train a model on sentence pairs; interrupted, the same command goes on from the last checkpoint.

Checkpoints are written by time (--save-seconds) and when Ctrl-C or SIGTERM ends the command; a second Ctrl-C ends it \
at once, without one. Where torchrun has started several processes, signals end them at once.

Values of the recipe come from flags, else from the file --recipe, else from the defaults: those shown here, or what \
suits a built-in corpus."""
TRAIN_EXAMPLES = (
    ("regard train --corpus dates --out model", "nothing to download: dates of 20 languages to ISO form"),
    ("regard train --pairs pairs.tsv --out mine", "your own pairs, one TAB between sentence and translation"),
    ("regard train --corpus lists --out plain --attention none", "the same model without attention"),
    ("torchrun --nproc-per-node 4 -m regard train --pairs pairs.tsv --out mine", "on four GPUs"),
)


def strict_parsing(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse a whole number with a point, an empty path, and a path that cannot refer to a file.

    Cyclopts calls this with the words of every verb before it converts them. It would round 0.9 to 1, and Path("") is
    the current folder: an unset shell variable would fill it with files.
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
            if Path in kinds and (reason := _why_no_path(word)) is not None:
                raise RegardError(
                    name, got=f"{word!r:.60} ({reason})", needed="a path", repair="Check the path and its links."
                )


def _why_no_path(path: str) -> str | None:
    """Return why a path cannot refer to a file, or None."""
    try:
        Path(path).stat()
    except ValueError:  # a null character
        return "not a path"
    except OSError as refusal:
        return refusal.strerror if refusal.errno in (errno.ELOOP, errno.ENAMETOOLONG) else None
    return None


def epilogue(examples: Sequence[tuple[str, str]]) -> str:
    """Return the examples of a verb for the end of its help, each with its purpose above it."""
    lines = [f"# {purpose}\n  {command}" for command, purpose in examples]
    return "Examples:\n\n  " + "\n\n  ".join(lines)


def description(verb: Callable) -> str:
    """Return the docstring of a verb up to its arguments, a line for each paragraph: the terminal wraps them."""
    text = re.split(r"\n\s*(?:Args|Examples):\n", verb.__doc__ or "")[0]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n")).strip()


app = App(
    name="regard",
    help="Attention as one operator: any score, any mask, weights on demand.",
    help_format="plaintext",
    help_epilogue="regard VERB --help shows examples. An error is one sentence; with --debug, its traceback too.",
    version=lambda: version("regard"),
    config=strict_parsing,  # for all verbs
    suppress_keyboard_interrupt=False,  # `run` reports it
)
# Each verb imports what it needs when it runs, so that the help does not wait for torch.
VERBS = {
    "tour": (tour.tour, tour.EXAMPLES),
    "regress": (regress.regress, regress.EXAMPLES),
    "translate": (translate.translate, translate.EXAMPLES),
    "evaluate": (evaluate.evaluate, evaluate.EXAMPLES),
    "lab": (lab.lab, lab.EXAMPLES),
    "studio": (studio.studio, studio.EXAMPLES),
    "doctor": (doctor.doctor, doctor.EXAMPLES),
    "bench": (bench.bench, bench.EXAMPLES),
}
for _verb, _examples in VERBS.values():
    app.command(_verb, help=description(_verb), help_epilogue=epilogue(_examples))
# The flags of `train` are made from the recipe, which imports torch: this verb is imported when it is used.
app.command("regard.cli.train:train", help=TRAIN, help_epilogue=epilogue(TRAIN_EXAMPLES))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    A mistake of the user is one line and status 2; an error inside the library is one line and status 1. With --debug
    anywhere before a bare --, the error is raised with its traceback.

    Args:
        arguments: the words of the command line; None for `sys.argv`.

    Returns:
        The exit status.
    """
    words, debug = _without_debug(sys.argv[1:] if arguments is None else arguments)
    if sys.stderr is None:  # closed: `print` would write to standard output instead
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    _escape_unencodable()
    try:
        with one_line_warnings(), checked_stdout():
            app(words, exit_on_error=False, print_error=False, result_action="return_none")
    except KeyboardInterrupt:
        print("\nregard: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as leaving:
        # The reader closed the pipe, as `head` does: exit quietly. rich raises SystemExit in this case.
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
    """Return an error as one line; an error that is no refusal of ours comes with the way to see its traceback."""
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        return _unknown_verb(error.unused_tokens[0])
    text = " ".join(str(error).split())
    if isinstance(error, CycloptsError):
        verb = " ".join(("regard", *(error.command_chain or ())))
        return f"{text} {verb} --help shows what it takes."
    if isinstance(error, RegardError):
        return text
    kind = type(error).__name__
    return f"{kind}: {text or 'no further word'} (the same command with --debug shows where)."


def _unknown_verb(word: str) -> str:
    """Return the error about a word that is no verb, with the nearest of all verbs."""
    verbs = sorted([*VERBS, "train"])
    near = get_close_matches(word, verbs, 1, cutoff=0.5)
    hint = f' Did you mean "{near[0]}"?' if near else ""
    return f'Unknown command "{word}".{hint} The commands are {", ".join(verbs)}; regard --help describes them.'


def _escape_unencodable() -> None:
    """Write a character that a stream cannot encode as its number, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _without_debug(words: Sequence[str]) -> tuple[list[str], bool]:
    """Return the words without --debug, and whether it was there; after -- it is text."""
    end = words.index("--") if "--" in words else len(words)
    flags = list(words[:end])
    return [word for word in flags if word != "--debug"] + list(words[end:]), "--debug" in flags
