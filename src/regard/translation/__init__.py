"""Translation by a recurrent encoder-decoder with attention, from sentence pairs to sentences with alignments."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.translation.model import Architecture, EncoderDecoder
    from regard.translation.translator import Translation, Translator

__all__ = ["Architecture", "EncoderDecoder", "Translation", "Translator"]

# Each public name and its file, loaded when first asked for: a corpus is made and a file is read without a model.
_FILE_OF = {
    "Architecture": "model",
    "EncoderDecoder": "model",
    "Translation": "translator",
    "Translator": "translator",
}


def __getattr__(name: str) -> object:
    if name not in _FILE_OF:
        raise AttributeError(f"module 'regard.translation' has no attribute {name!r}")
    found = getattr(import_module(f"regard.translation.{_FILE_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
