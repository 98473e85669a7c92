"""Translation by a recurrent encoder-decoder with attention, from sentence pairs to sentences with alignments."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.translation.dataset import Corpus, Pair
    from regard.translation.evaluation import evaluate
    from regard.translation.model import Architecture, EncoderDecoder
    from regard.translation.recipe import Recipe
    from regard.translation.training import Trainer, train
    from regard.translation.translator import Translation, Translator

__all__ = [
    "Architecture",
    "Corpus",
    "EncoderDecoder",
    "Pair",
    "Recipe",
    "Trainer",
    "Translation",
    "Translator",
    "evaluate",
    "train",
]

# Public name -> file. Files are imported when they are first used: a corpus is made and a file is read without a model.
_FILE_OF = {
    "Architecture": "model",
    "Corpus": "dataset",
    "EncoderDecoder": "model",
    "Pair": "dataset",
    "Recipe": "recipe",
    "Trainer": "training",
    "Translation": "translator",
    "Translator": "translator",
    "evaluate": "evaluation",
    "train": "training",
}


def __getattr__(name: str) -> object:
    if name not in _FILE_OF:
        raise AttributeError(f"module 'regard.translation' has no attribute {name!r}")
    value = getattr(import_module(f"regard.translation.{_FILE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
