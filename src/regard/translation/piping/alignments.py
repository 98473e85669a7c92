"""Where alignments go: behind their translation, into a file of their own, or into pictures."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from regard.errors import RegardError
from regard.plots import make_folder
from regard.translation.alignment import Alignment, draw, to_json, to_pharaoh
from regard.translation.piping.outlets import outlet, unwritable
from regard.translation.piping.wishes import PICTURES, Wishes
from regard.translation.translator import Translation, Translator

NOTHING = Alignment((), (), torch.zeros(0, 0))  # of an empty sentence
FORMATS = {"pharaoh": to_pharaoh, "json": to_json}
# A translation has no tab in it, so what follows one is found again.
SEPARATOR = "\t"
# So many sentences without a picture are named.
MOST_TOLD = 10

Align = Callable[[int, Translation], str]


@contextmanager
def aligner(wishes: Wishes, translator: Translator) -> Iterator[Align]:
    """What is done with the alignment of each translation; it returns what is to follow the text in its line."""
    if wishes.alignment is None:
        yield lambda number, translation: ""
        return
    of_tokens = _of_tokens(wishes.alignment_of, translator)
    if wishes.alignment in PICTURES:
        assert wishes.alignment_out is not None
        pictures = _Pictures(wishes.alignment_out, wishes.alignment, of_tokens)
        yield pictures.write
        pictures.tell_what_is_missing()
        return
    to_line = FORMATS[wishes.alignment]
    if wishes.alignment_out is None:
        yield lambda number, translation: SEPARATOR + to_line(_alignment(translation, of_tokens))
        return
    with outlet("alignment_out", wishes.alignment_out) as lines:

        def write(number: int, translation: Translation) -> str:
            lines.write(to_line(_alignment(translation, of_tokens)))
            return ""

        yield write


def _of_tokens(unit: str | None, translator: Translator) -> bool:
    """As wished, or where words are no units: a model of characters may read text without blanks."""
    if unit is not None:
        return unit == "tokens"
    return "characters" in (translator.source_vocabulary.unit, translator.target_vocabulary.unit)


def _alignment(translation: Translation, of_tokens: bool) -> Alignment:
    found = translation.alignment_of_tokens if of_tokens else translation.alignment
    return NOTHING if found is None else found


class _Pictures:
    """One picture of the best translation of every sentence; a path with an ending names the first of them."""

    def __init__(self, out: Path, ending: str, of_tokens: bool) -> None:
        self._out, self._ending, self._of_tokens = out, ending, of_tokens
        self._names_a_file = out.suffix.lower() == f".{ending}"
        self._drawn: dict[int, bool] = {}
        try:
            make_folder(out.parent if self._names_a_file else out)
        except RegardError as refusal:
            raise refusal.about("alignment_out") from None

    def write(self, number: int, translation: Translation) -> str:
        if self._drawn.get(number):
            return ""  # another of the n best
        alignment = _alignment(translation, self._of_tokens)
        self._drawn[number] = bool(alignment.source_words and alignment.target_words)
        if self._drawn[number]:
            path = self._path(number)
            try:
                draw(alignment, path)
            except OSError as refusal:
                raise unwritable("alignment_out", path, refusal) from None
        return ""

    def tell_what_is_missing(self) -> None:
        """One line, however many sentences there are: blank ones are common in files."""
        missing = [str(number + 1) for number, drawn in self._drawn.items() if not drawn]
        if missing:
            which = ", ".join(missing[:MOST_TOLD]) + (" and others" if len(missing) > MOST_TOLD else "")
            print(f"regard: nothing to draw for sentence {which}: it or its translation is empty.", file=sys.stderr)

    def _path(self, number: int) -> Path:
        if not self._names_a_file:
            return self._out / f"{number + 1}.{self._ending}"
        return self._out if number == 0 else self._out.with_name(f"{self._out.stem}-{number + 1}{self._out.suffix}")
