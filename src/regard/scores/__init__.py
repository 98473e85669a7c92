"""Scoring functions: the similarity of a query and a key, whose softmax gives the attention weights."""

from regard.scores.additive import Additive
from regard.scores.base import Score
from regard.scores.distance import (
    Biweight,
    Boxcar,
    CosineKernel,
    Epanechnikov,
    Gaussian,
    Laplacian,
    SquaredDistance,
    Triangular,
    Tricube,
)
from regard.scores.dot import Bilinear, Cosine, Dot, ScaledDot
from regard.scores.positions import Rotary

__all__ = [
    "Additive",
    "Bilinear",
    "Biweight",
    "Boxcar",
    "Cosine",
    "CosineKernel",
    "Dot",
    "Epanechnikov",
    "Gaussian",
    "Laplacian",
    "Rotary",
    "ScaledDot",
    "Score",
    "SquaredDistance",
    "Triangular",
    "Tricube",
]
