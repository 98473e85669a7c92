"""Scores by name: what a string, a module or a callable given as `score=` means."""

from collections.abc import Callable

from torch import Tensor

from regard.errors import RegardError
from regard.scores.base import Score
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

KERNEL_SCORES: dict[str, type[RadialScore]] = {
    kernel.kernel_name: kernel
    for kernel in (Gaussian, Laplacian, Boxcar, Triangular, Epanechnikov, Tricube, Biweight, CosineKernel)
}
NAMED_SCORES: dict[str, type[Score]] = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "cosine": Cosine,
    "squared_distance": SquaredDistance,
    **KERNEL_SCORES,
}
SIZED_SCORES = {
    "bilinear": "Bilinear(query_dim, key_dim)",
    "additive": "Additive(query_dim, key_dim, hidden_dim)",
}

ScoreLike = str | Score | Callable[[Tensor, Tensor], Tensor]


NAMED = {name: kind() for name, kind in NAMED_SCORES.items()}


def score_by_name(name: str) -> Score:
    """The score of that name, with bandwidth 1 where it has one; it has no parameters, so one is enough for all."""
    if name in SIZED_SCORES:
        raise RegardError(
            "score",
            got=repr(name),
            needed="a score that needs no sizes, when given by name",
            repair=f"This one has parameters: build regard.scores.{SIZED_SCORES[name]} and pass it.",
        )
    if name not in NAMED:
        raise RegardError(
            "score",
            got=repr(name),
            needed=f"one of {', '.join(sorted(NAMED))}",
            repair="Use one of these names, a module of regard.scores, or any callable (query, key) -> scores.",
        )
    return NAMED[name]


def check_score(score: object) -> None:
    """Refuse what is neither a name, nor a score, nor a callable."""
    if isinstance(score, type) or not (isinstance(score, str | Score) or callable(score)):
        raise RegardError(
            "score",
            got=f"{score!r:.80}",
            needed="a name, a module of regard.scores, or a callable (query, key) -> scores",
            repair="Build the score first, for example regard.scores.Gaussian(0.5).",
        )
