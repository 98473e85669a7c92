"""Kernel regression as attention pooling (eq. 4)."""

from importlib import import_module
from typing import TYPE_CHECKING

from regard.errors import RegardError

if TYPE_CHECKING:
    from regard.regression.estimators import NadarayaWatson, NadarayaWatsonClassifier
    from regard.regression.inference import Band
    from regard.regression.smoother import Nearest

__all__ = [
    "Band",
    "BandwidthWarning",
    "EmptyWindowWarning",
    "NadarayaWatson",
    "NadarayaWatsonClassifier",
    "Nearest",
]

# Public names that need scikit-learn or torch, and their files; they are imported when first used.
_FILE_OF = {
    "Band": "inference",
    "NadarayaWatson": "estimators",
    "NadarayaWatsonClassifier": "estimators",
    "Nearest": "smoother",
}


class EmptyWindowWarning(UserWarning):
    """Some queries have no observation in their window; their prediction is NaN."""


class BandwidthWarning(UserWarning):
    """The best bandwidth lies at the edge of the range that was searched, so the data do not determine it."""


def __getattr__(name: str) -> object:
    if name not in _FILE_OF:
        raise AttributeError(f"module 'regard.regression' has no attribute {name!r}")
    try:
        found = getattr(import_module(f"regard.regression.{_FILE_OF[name]}"), name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "sklearn":
            raise
        raise RegardError(
            name,
            got="no module named sklearn",
            needed="scikit-learn",
            repair='Install it with pip install "regard[regression]".',
        ) from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
