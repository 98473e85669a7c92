"""Translation by a recurrent encoder-decoder with attention, from sentence pairs to sentences with alignments.

Read `model`, `training`, `search` and `translator` in this order, with arXiv 1409.0473 beside them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.translation.dataset import Corpus, Pair
    from regard.translation.evaluation import evaluate
    from regard.translation.model import Architecture, EncoderDecoder
    from regard.translation.recipe import Data, Recipe, Training
    from regard.translation.training import Trainer, train
    from regard.translation.translator import Translation, Translator

__all__ = [
    "Architecture",
    "Corpus",
    "Data",
    "EncoderDecoder",
    "Pair",
    "Recipe",
    "Trainer",
    "Training",
    "Translation",
    "Translator",
    "evaluate",
    "train",
]

# The module of each public name, imported when the name is first used: reading a corpus needs no model.
_MODULES = {
    "Architecture": "model",
    "Corpus": "dataset",
    "Data": "recipe",
    "EncoderDecoder": "model",
    "Pair": "dataset",
    "Recipe": "recipe",
    "Trainer": "training",
    "Training": "recipe",
    "Translation": "translator",
    "Translator": "translator",
    "evaluate": "evaluation",
    "train": "training",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'regard.translation' has no attribute {name!r}")
    found = getattr(import_module(f"regard.translation.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
