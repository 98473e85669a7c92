"""Scores by name: what a string, a module or a callable given as `score=` means."""

from collections.abc import Callable

from torch import Tensor

from regard.errors import RegardError
from regard.scores.distance import (
    Biweight,
    Boxcar,
    CosineKernel,
    Epanechnikov,
    Gaussian,
    Laplacian,
    RadialScore,
    SquaredDistance,
    Triangular,
    Tricube,
)
from regard.scores.dot import Cosine, Dot, ScaledDot
from regard.scores.score import Score

KERNELS: dict[str, type[RadialScore]] = {
    kernel.link_name: kernel
    for kernel in (Gaussian, Laplacian, Boxcar, Triangular, Epanechnikov, Tricube, Biweight, CosineKernel)
}
WITHOUT_SIZES: dict[str, type[Score]] = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "cosine": Cosine,
    "squared_distance": SquaredDistance,
    **KERNELS,
}
WITH_SIZES = {
    "bilinear": "Bilinear(query_dim, key_dim)",
    "additive": "Additive(query_dim, key_dim, hidden_dim)",
}

ScoreLike = str | Score | Callable[[Tensor, Tensor], Tensor]


_NAMED = {name: kind() for name, kind in WITHOUT_SIZES.items()}


def named_score(name: str) -> Score:
    """The score of that name, with bandwidth 1 where it has one; it has no parameters, so one is enough for all."""
    if name in WITH_SIZES:
        raise RegardError(
            "score",
            got=repr(name),
            needed="a score that needs no sizes, when given by name",
            repair=f"This one has parameters: build regard.scores.{WITH_SIZES[name]} and pass it.",
        )
    if name not in _NAMED:
        raise RegardError(
            "score",
            got=repr(name),
            needed=f"one of {', '.join(sorted(_NAMED))}",
            repair="Use one of these names, a module of regard.scores, or any callable (query, key) -> scores.",
        )
    return _NAMED[name]


def check_score(score: object) -> None:
    """Refuse what is neither a name, nor a score, nor a callable."""
    if isinstance(score, type) or not (isinstance(score, str | Score) or callable(score)):
        raise RegardError(
            "score",
            got=f"{score!r:.80}",
            needed="a name, a module of regard.scores, or a callable (query, key) -> scores",
            repair="Build the score first, for example regard.scores.Gaussian(0.5).",
        )
