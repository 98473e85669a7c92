"""Names of scores, and the check of a `score` argument, which is a name, a module or a callable."""

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
    score.kernel_name: score
    for score in (Gaussian, Laplacian, Boxcar, Triangular, Epanechnikov, Tricube, Biweight, CosineKernel)
}
"""Kernel of Nadaraya-Watson regression -> its score."""
NAMED_SCORES: dict[str, type[Score]] = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "cosine": Cosine,
    "squared_distance": SquaredDistance,
    **KERNEL_SCORES,
}
"""Name -> class of a score that can be built without arguments."""
SIZED_SCORES = {
    "bilinear": "Bilinear(query_dim, key_dim)",
    "additive": "Additive(query_dim, key_dim, hidden_dim)",
}
"""Name -> constructor call of a score whose parameters have sizes, which cannot be given by name."""

ScoreLike = str | Score | Callable[[Tensor, Tensor], Tensor]
"""What a `score` argument accepts: a name, a module of `regard.scores`, or a callable."""

SHARED_SCORES = {name: score_class() for name, score_class in NAMED_SCORES.items()}
"""Name -> instance for all calls. These scores have no parameters, so one instance of each is enough."""


def score_by_name(name: str) -> Score:
    """Return the score with this name, with bandwidth 1 if it has a bandwidth.

    Args:
        name: a key of `NAMED_SCORES`.

    Returns:
        An instance that all callers share.

    Raises:
        RegardError: if there is no score with this name, or if the score needs sizes.
    """
    if name in SIZED_SCORES:
        raise RegardError(
            "score",
            got=repr(name),
            needed="the name of a score that has no parameters, or a score",
            repair=f"Build regard.scores.{SIZED_SCORES[name]} and pass it.",
        )
    if name not in SHARED_SCORES:
        raise RegardError(
            "score",
            got=repr(name),
            needed=f"one of {', '.join(sorted(SHARED_SCORES))}",
            repair="Use one of these names, a module of regard.scores, or any callable (query, key) -> scores.",
        )
    return SHARED_SCORES[name]


def new_score(name: str) -> Score:
    """Return a new instance of the score with this name, which shares nothing with other callers.

    Args:
        name: a key of `NAMED_SCORES`.

    Returns:
        The score, with bandwidth 1 if it has a bandwidth.

    Raises:
        RegardError: as for `score_by_name`.
    """
    return type(score_by_name(name))()


def check_score(score: object) -> None:
    """Raise a RegardError unless `score` is a string, a Score or a callable other than a class."""
    if isinstance(score, type) or not (isinstance(score, str) or callable(score)):
        raise RegardError(
            "score",
            got=f"{score!r:.80}",
            needed="a name, a module of regard.scores, or a callable (query, key) -> scores",
            repair="Build the score first, for example with regard.scores.Gaussian(0.5).",
        )
