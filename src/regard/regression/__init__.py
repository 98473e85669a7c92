"""Kernel regression as attention pooling (eq. 4)."""

from importlib import import_module
from typing import TYPE_CHECKING

from regard.errors import RegardError

if TYPE_CHECKING:
    from regard.regression.band import Band
    from regard.regression.classifier import NadarayaWatsonClassifier
    from regard.regression.estimator import NadarayaWatson
    from regard.regression.smoother import Nearest
    from regard.regression.warning_kinds import BandwidthWarning, EmptyWindowWarning

__all__ = [
    "Band",
    "BandwidthWarning",
    "EmptyWindowWarning",
    "NadarayaWatson",
    "NadarayaWatsonClassifier",
    "Nearest",
]

# Each public name and its file, loaded when first asked for: kernel sums alone do not need scikit-learn.
_FILE_OF = {
    "Band": "band",
    "BandwidthWarning": "warning_kinds",
    "EmptyWindowWarning": "warning_kinds",
    "NadarayaWatson": "estimator",
    "NadarayaWatsonClassifier": "classifier",
    "Nearest": "nearest",
}


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
            needed="scikit-learn, whose manners the estimators have",
            repair='Install it with pip install "regard[regression]".',
        ) from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
