"""Where the sentences come from: arguments, a file, or standard input; always UTF-8."""

import os
import sys
from collections.abc import Iterable, Iterator

from regard.errors import RegardError
from regard.translation.piping.wishes import Wishes
from regard.translation.text import BOM, MOST_BYTES, read_lines, without_end

HINT = "regard: one sentence a line; Ctrl-D ends."


def sentences_of(wishes: Wishes) -> Iterator[str]:
    """The sentences in order, read only when they are asked for."""
    if wishes.sentences:
        return _texts("sentences", map(_as_given, wishes.sentences))
    if wishes.input is not None:
        return _texts("input", read_lines("input", wishes.input))
    if comes_from_keyboard(wishes):
        print(HINT, file=sys.stderr)
    return _texts("input", _standard_input())


def comes_from_keyboard(wishes: Wishes) -> bool:
    """Whether somebody waits for the answer to every line."""
    if wishes.sentences or wishes.input is not None:
        return False
    if sys.stdin is None:
        raise RegardError(
            "input", got="a closed standard input", needed="sentences to translate", repair="Name a file, or pass them."
        )
    return sys.stdin.isatty()


def _as_given(sentence: str) -> bytes:
    """The bytes of an argument, which Python has decoded by the locale."""
    try:
        return os.fsencode(sentence)
    except UnicodeEncodeError:  # it came from Python, not from a command line
        return sentence.encode(errors="surrogatepass")


def _standard_input() -> Iterator[bytes]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        text = without_end("input", "standard input", number, line)
        yield text.removeprefix(BOM) if number == 1 else text


def _texts(argument: str, lines: Iterable[bytes]) -> Iterator[str]:
    """A line that is not UTF-8 is refused: without it the lines of both sides would no longer agree."""
    for number, line in enumerate(lines, 1):
        if len(line) >= MOST_BYTES:
            raise RegardError(
                argument,
                got=f"line {number} of {MOST_BYTES} bytes or more",
                needed="a sentence a line",
                repair="Cut the text into sentences.",
            )
        try:
            yield line.decode()
        except UnicodeDecodeError as broken:
            raise RegardError(
                argument,
                got=f"byte {broken.start + 1} of line {number}, which is not UTF-8",
                needed="sentences in UTF-8",
                repair="Convert the text first, for example with iconv.",
            ) from None
