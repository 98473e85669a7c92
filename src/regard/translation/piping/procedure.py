"""From sentences to lines: the translations, their rivals, and where the model looked."""

from contextlib import ExitStack
from itertools import chain, islice

from regard.errors import RegardError
from regard.translation.piping.alignments import aligner
from regard.translation.piping.outlets import ReaderLeftError, outlet
from regard.translation.piping.sentences import comes_from_keyboard, sentences_of
from regard.translation.piping.wishes import Wishes, check
from regard.translation.translator import Translation, Translator

# A stream reads so many batches ahead to put sentences of one length together.
BATCHES_AHEAD = 16


def run(wishes: Wishes) -> None:
    """Translate everything; each chunk of sentences is written as soon as it is done."""
    check(wishes)
    translator = Translator.load(*wishes.models, device=wishes.device)
    if wishes.alignment is not None and all(one.model.architecture.attention == "none" for one in translator.models):
        raise RegardError(
            "alignment",
            got=f"{wishes.alignment} of a model without attention",
            needed="a model that attends",
            repair="Train one with another score than none.",
        )
    single = comes_from_keyboard(wishes) or wishes.batch_size == 1
    found = translator.stream(
        sentences_of(wishes),
        beams=wishes.beams,
        nbest=wishes.nbest,
        length_penalty=wishes.length_penalty,
        shortest=wishes.shortest,
        longest=wishes.longest,
        batch_size=wishes.batch_size,
        ahead=1 if single else BATCHES_AHEAD * wishes.batch_size,
    )
    # What is wrong with the first sentences is said before a file is emptied for their translations.
    found = chain(list(islice(found, 1)), found)
    try:
        with ExitStack() as opened:
            # A folder for pictures may be refused, and then no file is to be emptied: it comes first.
            align = opened.enter_context(aligner(wishes, translator))
            lines = opened.enter_context(outlet("output", wishes.output))
            for number, translation in enumerate(found):
                ranked = (translation, *translation.others)
                lines.write(*(_line(number, one, wishes.nbest) + align(number, one) for one in ranked))
    except ReaderLeftError:
        return


def _line(number: int, translation: Translation, nbest: int) -> str:
    """The text alone, or as Moses lists its n best: the sentence's number from 0, text, score."""
    return translation.text if nbest == 1 else f"{number} ||| {translation.text} ||| {translation.score:.6f}"
