"""The translation room's answers: which models there are, how they learnt, and what they make of a sentence."""

import threading
from typing import Any

from regard.studio.asked import Asked
from regard.studio.limits import MOST_CANDIDATES, MOST_CHARACTERS
from regard.studio.models.shelf import Shelf
from regard.translation import Translation, Translator
from regard.translation.vocabulary import UNKNOWN_SIGN

UNITS = ("auto", "tokens", "words")
MOST_FRAMES = 10_000
DIGITS = 6


class TranslationRoom:
    """Answers over a shelf of models; sentences are translated one at a time, since a processor has few cores."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._one = threading.Lock()

    def models(self) -> dict[str, Any]:
        """Every model and its state."""
        return self.shelf.facts()

    def begin(self, asked: Asked) -> dict[str, Any]:
        """The room was entered: models that are not there yet begin to be trained."""
        del asked
        self.shelf.begin()
        return self.shelf.facts()

    def looks(self, asked: Asked) -> dict[str, Any]:
        """How a model learnt: asked for by its name, from a frame's number on."""
        return self.shelf.looks(asked.text("model", 100), asked.whole("first", 0, MOST_FRAMES, 0))

    def translate(self, asked: Asked) -> dict[str, Any]:
        """The best translations of a sentence with their alignments.

        asked: model, text; candidates: how many; unit: what is aligned, tokens or words.
        """
        text = asked.text("text", MOST_CHARACTERS)
        count = asked.whole("candidates", 1, MOST_CANDIDATES, 5)
        unit = asked.choice("unit", UNITS, "auto")
        translator = self.shelf.translator(asked.text("model", 100))
        if unit == "auto":
            unit = suited_unit(translator)
        with self._one:
            best = translator.translate([text], beams=max(count, 5), nbest=count)[0]
        source = best.source.pieces if unit == "tokens" else best.source.words
        return {
            "text": best.source.text,
            "unit": unit,
            "source": list(source),
            "unknown": sum(piece == UNKNOWN_SIGN for piece in best.source.pieces),
            "candidates": [_candidate(one, unit) for one in (best, *best.others)],
        }


def suited_unit(translator: Translator) -> str:
    """Characters are shown one by one; subwords are joined to words."""
    units = translator.source_vocabulary.unit, translator.target_vocabulary.unit
    return "tokens" if "characters" in units else "words"


def _candidate(one: Translation, unit: str) -> dict[str, Any]:
    alignment = one.alignment_of_tokens if unit == "tokens" else one.alignment
    target = one.target.pieces if unit == "tokens" else one.target.words
    weights = None
    if alignment is not None:
        weights = [[round(weight, DIGITS) for weight in row] for row in alignment.weights.tolist()]
    return {
        "text": one.text,
        "log_probability": one.log_probability,
        "score": one.score,
        "finished": one.finished,
        "target": list(target),
        "weights": weights,
    }
