"""From text to numbers and back: characters, words, or subwords."""

from regard.translation.vocabularies.characters import Characters
from regard.translation.vocabularies.choice import UNITS, Unit, learn, load
from regard.translation.vocabularies.subwords import Subwords
from regard.translation.vocabularies.vocabulary import Vocabulary, VocabularySizeError
from regard.translation.vocabularies.words import Words

__all__ = ["UNITS", "Characters", "Subwords", "Unit", "Vocabulary", "VocabularySizeError", "Words", "learn", "load"]
