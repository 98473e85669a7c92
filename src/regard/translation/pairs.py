"""Sentence pairs out of a tab-separated file or two parallel files, in a stream; bad lines are reported or refused."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from regard.errors import RegardError
from regard.translation.bad_lines import BadLine, Reason
from regard.translation.text import MOST_BYTES, normalise, read_lines

MOST_RATIO = 9.0
MOST_CHARACTERS = 2000
MOST_OF_ALL = MOST_BYTES // 8 - 1  # two sides of so many characters fit into a line that is not cut off
SHOWN = 40  # bytes of a line that an error shows
SHORT = 10  # characters: a side shorter than this counts as this long when lengths are compared

Report = Callable[[BadLine], None]
StrPath = str | PathLike[str]


class Pair(NamedTuple):
    """A sentence and its translation, both as `normalise` leaves them."""

    source: str
    target: str


def read_pairs(
    path: StrPath,
    *,
    report: Report | None = None,
    strict: bool = False,
    reverse: bool = False,
    most_ratio: float = MOST_RATIO,
    most_characters: int = MOST_CHARACTERS,
) -> Iterator[Pair]:
    """Read the first two columns of a tab-separated file; further columns are ignored.

    Args:
        path: UTF-8, plain or gzipped.
        report: called with each bad line, which is then skipped; without it, the first bad line is refused.
        strict: refuse the first bad line, report or not.
        reverse: the second column is the source.
        most_ratio: a side may be so many times as long as the other, in characters (a side of less than ten counts as
            ten).
        most_characters: a side may have so many characters.
    """
    name = Path(path).name
    judge = _Judge("pairs", None if strict else report, most_ratio, most_characters)
    for number, line in enumerate(read_lines("pairs", path), start=1):
        first, tab, others = line.partition(b"\t")
        if first.strip() and not tab:
            judge.refuse(BadLine(name, number, Reason.NO_TAB, _shown(first)))
            continue
        second, _, _ = others.partition(b"\t")
        sides = (second, first) if reverse else (first, second)
        yield from judge.pair(sides, (name, name), number)


def read_parallel(
    source: StrPath,
    target: StrPath,
    *,
    report: Report | None = None,
    strict: bool = False,
    most_ratio: float = MOST_RATIO,
    most_characters: int = MOST_CHARACTERS,
) -> Iterator[Pair]:
    """Read two files of which each line translates the same line of the other; arguments as in `read_pairs`.

    Where one file has more lines, the first of them is reported, and the rest passed over.
    """
    names = (Path(source).name, Path(target).name)
    judge = _Judge("source, target", None if strict else report, most_ratio, most_characters)
    both = zip_longest(read_lines("source", source), read_lines("target", target))
    for number, (left, right) in enumerate(both, start=1):
        if left is None or right is None:
            longer, shorter = names if right is None else names[::-1]
            judge.refuse(BadLine(longer, number, Reason.ENDED, f"{shorter} has {number - 1} lines"))
            return
        yield from judge.pair((left, right), names, number)


@dataclass(frozen=True)
class _Judge:
    """Decides whether two sides are a pair; argument: what an error is about."""

    argument: str
    report: Report | None
    most_ratio: float
    most_characters: int

    def __post_init__(self) -> None:
        if not 1 <= self.most_characters <= MOST_OF_ALL:
            raise RegardError(
                "most_characters",
                got=str(self.most_characters),
                needed=f"1 to {MOST_OF_ALL}",
                repair="A pair is meant to be a sentence or two.",
            )

    def pair(self, sides: tuple[bytes, bytes], names: tuple[str, str], number: int) -> Iterator[Pair]:
        """The pair, if it is one; names: the file of each side. number: of the line."""
        texts = []
        for side, name, raw in zip(("source", "target"), names, sides, strict=True):
            text = self._text(raw, side)
            if isinstance(text, tuple):
                self.refuse(BadLine(name, number, *text))
                return
            texts.append(text)
        short, long = sorted(map(len, texts))
        if long > self.most_ratio * max(short, SHORT):
            detail = f"{len(texts[0])} characters against {len(texts[1])}"
            self.refuse(BadLine(names[0], number, Reason.RATIO, detail))
            return
        yield Pair(*texts)

    def _text(self, raw: bytes, side: str) -> str | tuple[Reason, str]:
        """The normalised text of a side, or what is wrong with it."""
        if len(raw) > 4 * self.most_characters:  # no character has more bytes
            return Reason.LONG, f"the {side} has {len(raw)} bytes or more, {_shown(raw)}"
        try:
            text = normalise(raw.decode())
        except UnicodeDecodeError as broken:
            return Reason.BROKEN, f"byte {broken.start + 1} of the {side}, {_shown(raw)}"
        if not text:
            return Reason.EMPTY, f"no {side}"
        if len(text) > self.most_characters:
            return Reason.LONG, f"the {side} has {len(text)} characters, {_shown(raw)}"
        return text

    def refuse(self, bad: BadLine) -> None:
        """Report the line, or raise where nobody is to be told."""
        if self.report is None:
            raise RegardError(
                self.argument,
                got=str(bad),
                needed="a sentence and its translation in every line",
                repair="Mend the line, or have bad lines skipped and reported.",
            )
        self.report(bad)


def _shown(raw: bytes) -> str:
    """The beginning of a line, in print."""
    text = raw[:SHOWN].decode(errors="replace")
    return repr(text) + ("..." if len(raw) > SHOWN else "")
