"""`regard translate`: sentences from arguments, files or pipes; translations and alignments out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from regard.cli.output import check_can_write, check_not_read, open_output, unwritable
from regard.errors import RegardError
from regard.translation.options import SearchOptions

if TYPE_CHECKING:
    from regard.translation.alignment import Alignment
    from regard.translation.translator import Sentence, Translation, Translator

EXAMPLES = (
    ('regard translate model "21. syyskuuta 1987"', "one sentence"),
    ('regard translate model -- "- 5 May 2001"', "one that begins with a dash"),
    ("regard translate model --input in.txt --output out.txt", "a file, line by line"),
    ("cat in.txt | regard translate model --batch-size 1", "a pipe, answered as it comes"),
    ('regard translate model "21. syyskuuta 1987" --alignment svg --alignment-out look.svg', "where it looked"),
)
LINES = ("pharaoh", "json")
PICTURES = ("svg", "png")
UNITS = ("words", "tokens")
HINT = "regard: one sentence a line; Ctrl-D ends."
SEPARATOR = "\t"
"""Between a translation and its alignment; a translation contains no tab."""
BATCHES_AHEAD = 16
"""Batches that a stream reads ahead, so that it finds sentences of equal length."""
MAX_NAMED = 10
"""Sentences that a message names; the others are only mentioned."""

FormatAlignment = Callable[[int, "Translation"], str]
"""Takes the number of a sentence and a translation; returns what follows the translation in its line."""


@dataclass(frozen=True)
class AlignmentOptions:
    """Where to write alignments.

    Attributes:
        alignment: pharaoh (0-0 1-2, source first), json, svg or png: where the model looked for each word.
        alignment_of: words or tokens; tokens by default where the model reads or writes single characters.
        alignment_out: file for the alignments, a line a sentence; for pictures a file, or a folder for many.
            By default pharaoh and json follow the translation after a tab.
    """

    alignment: str | None = None
    alignment_of: str | None = None
    alignment_out: Path | None = None

    def __post_init__(self) -> None:
        """Check that the options fit together.

        Raises:
            RegardError: if they do not.
        """
        kinds = (*LINES, *PICTURES)
        if self.alignment is None:
            for name in ("alignment_of", "alignment_out"):
                if getattr(self, name) is not None:
                    needed = f"one of {', '.join(kinds)} beside it"
                    repair = "Add for example --alignment pharaoh."
                    raise RegardError(name, got="no --alignment", needed=needed, repair=repair)
            return
        _check_choice("alignment", self.alignment, kinds)
        if self.alignment_of is not None:
            _check_choice("alignment_of", self.alignment_of, UNITS)
        if self.is_picture:
            self._check_pictures(self.alignment)

    @property
    def is_picture(self) -> bool:
        """Whether the alignments are drawn."""
        return self.alignment in PICTURES

    def _check_pictures(self, kind: str) -> None:
        out = self.alignment_out
        if out is None:
            needed = "a file, or a folder for one picture a sentence"
            repair = f"Add for example --alignment-out alignment.{kind}."
            raise RegardError("alignment_out", got="none for pictures", needed=needed, repair=repair)
        suffix = out.suffix.lower().removeprefix(".")
        if suffix and suffix != kind and not out.is_dir():
            other = f"Write --alignment {suffix}."
            repair = other if suffix in PICTURES else f"Use a file ending in .{kind}, or a folder name without a dot."
            raise RegardError("alignment_out", got=f"{out}", needed=f"a folder, or a file .{kind}", repair=repair)


def translate(
    model: Path,
    /,
    *sentences: str,
    input: Path | None = None,
    output: Path | None = None,
    alignment: Annotated[AlignmentOptions, Parameter(name="*")] = AlignmentOptions(),  # noqa: B008 (frozen)
    search: Annotated[SearchOptions, Parameter(name="*")] = SearchOptions(),  # noqa: B008 (frozen)
    ensemble: Annotated[tuple[Path, ...], Parameter(negative=())] = (),
    device: str = "cpu",
) -> None:
    """Translate sentences given as arguments, in a file, or on standard input, one a line.

    Args:
        model: the folder of a trained model.
        sentences: what to translate, each in quotes; without any, --input or standard input.
        input: a file with one sentence a line, plain or gzipped.
        output: a file for the translations; standard output by default.
        alignment: where to write alignments.
        search: how to search.
        ensemble: the folder of another model that votes on every word; give --ensemble once for each.
        device: cpu, cuda or cuda:1.
    """
    if sentences and input is not None:
        got, repair = f"--input {input} and sentences", "Leave one out."
        raise RegardError("input", got=got, needed="one of them", repair=repair)
    models, out = (model, *ensemble), alignment.alignment_out
    check_not_read(models, output=output, alignment_out=out)
    check_can_write((input,), output=output, alignment_out=None if alignment.is_picture else out)
    _translate(models, sentences, input, output, alignment, search, device)


def _translate(
    models: tuple[Path, ...],
    sentences: tuple[str, ...],
    input: Path | None,
    output: Path | None,
    alignment: AlignmentOptions,
    search: SearchOptions,
    device: str,
) -> None:
    """Translate everything; each chunk of sentences is written as soon as it is translated."""
    from regard.translation.translator import Translator  # the help does not wait for torch

    translator = Translator.load(*models, device=device)
    if alignment.alignment is not None and all(one.model.architecture.attention == "none" for one in translator.models):
        raise RegardError(
            "alignment",
            got=f"{alignment.alignment} of a model without attention",
            needed="a model that attends",
            repair="Train one with another score than none.",
        )
    one_by_one = search.batch_size == 1 or is_interactive(sentences, input)
    ahead = 1 if one_by_one else BATCHES_AHEAD * search.batch_size
    found = translator.stream(read_sentences(sentences, input), **asdict(search), ahead=ahead)
    # An error about the first sentences is raised before the output files are emptied.
    found = chain(list(islice(found, 1)), found)
    unknown = UnknownTextWarnings()
    with ExitStack() as opened:
        # A folder for pictures may be refused; it comes first, so that no file has been emptied then.
        follow = opened.enter_context(open_alignments(alignment, translator))
        lines = opened.enter_context(open_output("output", output))
        for number, translation in enumerate(found):
            unknown.check(number, translation.source)
            ranked = (translation, *translation.others)
            lines.write(*(_line(number, one, search.nbest) + follow(number, one) for one in ranked))


def _line(number: int, translation: Translation, nbest: int) -> str:
    """Return the text alone, or as Moses lists its n best: the sentence's number from 0, text, score."""
    return translation.text if nbest == 1 else f"{number} ||| {translation.text} ||| {translation.score:.6f}"


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        needed = "one of " + ", ".join(choices)
        raise RegardError(name, got=repr(value), needed=needed, repair=f"Write {choices[0]}.")


# --- Sentences in -----------------------------------------------------------------------------------------------------


def read_sentences(sentences: tuple[str, ...], input: Path | None) -> Iterator[str]:
    """Return the sentences of the command line, of a file, or of standard input; each is read when it is needed.

    Raises:
        RegardError: while iterating, if a line is not UTF-8 or too long.
    """
    from regard.translation.text import read_lines

    if sentences:
        return _decode("sentences", map(_as_bytes, sentences))
    if input is not None:
        return _decode("input", read_lines("input", input))
    if is_interactive(sentences, input):
        print(HINT, file=sys.stderr)
    return _decode("input", _standard_input())


def is_interactive(sentences: tuple[str, ...], input: Path | None) -> bool:
    """Return whether the sentences are typed at a terminal, so that each line should be answered at once.

    Raises:
        RegardError: if standard input is needed and closed.
    """
    if sentences or input is not None:
        return False
    if sys.stdin is None:
        raise RegardError(
            "input", got="a closed standard input", needed="sentences to translate", repair="Name a file, or pass them."
        )
    return sys.stdin.isatty()


def _as_bytes(sentence: str) -> bytes:
    """Return the bytes of an argument, which Python has decoded by the locale."""
    try:
        return os.fsencode(sentence)
    except UnicodeEncodeError:  # it came from Python, not from a command line
        return sentence.encode(errors="surrogatepass")


def _standard_input() -> Iterator[bytes]:
    from regard.translation.text import BOM, strip_newline

    for number, line in enumerate(sys.stdin.buffer, 1):
        text = strip_newline("input", "standard input", number, line)
        yield text.removeprefix(BOM) if number == 1 else text


def _decode(argument: str, lines: Iterable[bytes]) -> Iterator[str]:
    """Refuse a line that is not UTF-8: if it were skipped, translations would no longer match their lines."""
    from regard.translation.text import MAX_LINE_BYTES

    for number, line in enumerate(lines, 1):
        if len(line) >= MAX_LINE_BYTES:
            raise RegardError(
                argument,
                got=f"line {number} of {MAX_LINE_BYTES} bytes or more",
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


class UnknownTextWarnings:
    """Warns of sentences that the model cannot know, because its training data had none of their letters."""

    def __init__(self) -> None:
        self._count = 0

    def check(self, number: int, source: Sentence) -> None:
        """Print a warning if all letters of the sentence are unknown; after some warnings, only that there are more."""
        kind = unknown_part(source)
        if kind is None:
            return
        self._count += 1
        if self._count <= MAX_NAMED:
            reason = f"the model's training data had none of its {kind} ({source.text[:20]!r})"
            repair = "Its translation means nothing; use a model of its language and script."
            print(f"regard: warning: sentence {number + 1}: {reason}. {repair}", file=sys.stderr)
        elif self._count == MAX_NAMED + 1:
            print("regard: warning: further sentences with unknown letters are not named.", file=sys.stderr)


def unknown_part(source: Sentence) -> str | None:
    """Return "letters" if the vocabulary knows none of the sentence's letters, or "characters" if it has no letters.

    None if it knows one of them, or the sentence is empty.
    """
    from regard.translation.vocabulary import UNKNOWN

    spans = source.vocabulary.spans(source.text)
    unknown = {
        place
        for (start, end), token in zip(spans, source.ids, strict=True)
        if token == UNKNOWN
        for place in range(start, end)
    }
    if not unknown:
        return None
    letters = [place for place, character in enumerate(source.text) if character.isalpha()]
    visible = letters or [place for place, character in enumerate(source.text) if not character.isspace()]
    if not unknown.issuperset(visible):
        return None
    return "letters" if letters else "characters"


# --- Alignments out ---------------------------------------------------------------------------------------------------


@contextmanager
def open_alignments(options: AlignmentOptions, translator: Translator) -> Iterator[FormatAlignment]:
    """Return what to do with the alignment of each translation: nothing, append it, or write it to files.

    Raises:
        RegardError: if a file or folder cannot be written.
    """
    from regard.translation.alignment import to_json, to_pharaoh

    if options.alignment is None:
        yield lambda number, translation: ""
        return
    of_tokens = _is_of_tokens(options.alignment_of, translator)
    if options.is_picture:
        assert options.alignment_out is not None
        pictures = AlignmentPictures(options.alignment_out, options.alignment, of_tokens)
        yield pictures.write
        pictures.report_missing()
        return
    to_line = {"pharaoh": to_pharaoh, "json": to_json}[options.alignment]
    if options.alignment_out is None:
        yield lambda number, translation: SEPARATOR + to_line(_alignment(translation, of_tokens))
        return
    with open_output("alignment_out", options.alignment_out) as lines:

        def write(number: int, translation: Translation) -> str:
            lines.write(to_line(_alignment(translation, of_tokens)))
            return ""

        yield write


def _is_of_tokens(unit: str | None, translator: Translator) -> bool:
    """Return the given choice; by default tokens for models of characters, which may read text without blanks."""
    if unit is not None:
        return unit == "tokens"
    return "characters" in (translator.source_vocabulary.unit, translator.target_vocabulary.unit)


def _alignment(translation: Translation, of_tokens: bool) -> Alignment:
    """Return the alignment of a translation; an empty one for an empty sentence."""
    import torch

    from regard.translation.alignment import Alignment

    found = translation.alignment_of_tokens if of_tokens else translation.alignment
    return Alignment((), (), torch.zeros(0, 0)) if found is None else found


class AlignmentPictures:
    """Draws the best translation of every sentence.

    Args:
        out: a file for the first sentence, or a folder.
        suffix: "svg" or "png".
        of_tokens: draw tokens instead of words.
    """

    def __init__(self, out: Path, suffix: str, of_tokens: bool) -> None:
        from regard.plots import make_folder

        self._out, self._suffix, self._of_tokens = out, suffix, of_tokens
        self._is_file = out.suffix.lower() == f".{suffix}"
        self._drawn: dict[int, bool] = {}
        try:
            make_folder(out.parent if self._is_file else out)
        except RegardError as refusal:
            raise refusal.about("alignment_out") from None

    def write(self, number: int, translation: Translation) -> str:
        """Draw a translation, unless the sentence has a picture already; return ""."""
        from regard.translation.alignment import save_alignment

        if self._drawn.get(number):
            return ""  # another of the n best
        alignment = _alignment(translation, self._of_tokens)
        self._drawn[number] = bool(alignment.source_words and alignment.target_words)
        if self._drawn[number]:
            path = self._path(number)
            try:
                save_alignment(alignment, path)
            except OSError as refusal:
                raise unwritable("alignment_out", path, refusal) from None
        return ""

    def report_missing(self) -> None:
        """Print one line about all sentences without a picture; blank lines are common in files."""
        missing = [str(number + 1) for number, drawn in self._drawn.items() if not drawn]
        if missing:
            which = ", ".join(missing[:MAX_NAMED]) + (" and others" if len(missing) > MAX_NAMED else "")
            print(f"regard: nothing to draw for sentence {which}: it or its translation is empty.", file=sys.stderr)

    def _path(self, number: int) -> Path:
        if not self._is_file:
            return self._out / f"{number + 1}.{self._suffix}"
        return self._out if number == 0 else self._out.with_name(f"{self._out.stem}-{number + 1}{self._out.suffix}")
