"""Where alignments go: behind their translation, into a file of their own, or into pictures."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from regard.errors import RegardError
from regard.plots import make_folder
from regard.translation.alignments import Alignment, draw, to_json, to_pharaoh
from regard.translation.piping.outlets import outlet, unwritable
from regard.translation.piping.wishes import PICTURES, Wishes
from regard.translation.translated import Translation
from regard.translation.translator import Translator

NOTHING = Alignment((), (), torch.zeros(0, 0))  # of an empty sentence
FORMATS = {"pharaoh": to_pharaoh, "json": to_json}
# A translation has no tab in it, so what follows one is found again.
SEPARATOR = "\t"

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
        yield _pictures(wishes.alignment_out, wishes.alignment, of_tokens)
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


def _pictures(out: Path, ending: str, of_tokens: bool) -> Align:
    """One picture of the best translation of every sentence; a path with an ending names the first of them."""
    names_a_file = out.suffix.lower() == f".{ending}"
    try:
        make_folder(out.parent if names_a_file else out)
    except RegardError as refusal:
        raise refusal.about("alignment_out") from None
    drawn: set[int] = set()

    def write(number: int, translation: Translation) -> str:
        alignment = _alignment(translation, of_tokens)
        if number in drawn or not alignment.source_words or not alignment.target_words:
            return ""  # another of the n best, or nothing to draw
        drawn.add(number)
        if names_a_file:
            path = out if number == 0 else out.with_name(f"{out.stem}-{number + 1}{out.suffix}")
        else:
            path = out / f"{number + 1}.{ending}"
        try:
            draw(alignment, path)
        except OSError as refusal:
            raise unwritable("alignment_out", path, refusal) from None
        return ""

    return write
