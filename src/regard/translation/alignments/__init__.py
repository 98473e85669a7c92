"""Alignments: attention between words, as records, lines of text, pictures and figures of merit."""

from regard.translation.alignments.alignment import Alignment
from regard.translation.alignments.flatness import UNIFORM, flatness
from regard.translation.alignments.formats import to_json, to_pharaoh
from regard.translation.alignments.picture import draw, picture
from regard.translation.alignments.spans import SpanMass, mass_on_spans
from regard.translation.alignments.words import merge_to_words

__all__ = [
    "UNIFORM",
    "Alignment",
    "SpanMass",
    "draw",
    "flatness",
    "mass_on_spans",
    "merge_to_words",
    "picture",
    "to_json",
    "to_pharaoh",
]
