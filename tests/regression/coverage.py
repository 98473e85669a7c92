"""How often a confidence band covers what it promises, measured by simulation.

The chapter's data, y = 2 sin(x) + x + noise with x uniform on [0, 4], are drawn again and again. A band promises to
cover the mean of the estimator given x, which is known here: sum_j l_j g(x_j). That it covers the curve g less often,
because the estimator is biased, is printed beside it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from regard.regression import NadarayaWatson


class Coverage(NamedTuple):
    """Shares of (simulation, query) pairs where the band holds the estimator's mean, and the curve g itself."""

    of_mean: float
    of_curve: float


def curve(x: np.ndarray) -> np.ndarray:
    """The curve without noise."""
    return 2 * np.sin(x) + x


def constant_noise(x: np.ndarray) -> np.ndarray:
    """The standard deviation of the chapter's noise: 1 everywhere."""
    return np.ones_like(x)


def growing_noise(x: np.ndarray) -> np.ndarray:
    """A standard deviation that grows from 0.5 to 2.5 over [0, 4]."""
    return 0.5 + 0.5 * x


def measure(
    model: NadarayaWatson,
    *,
    simulations: int = 400,
    samples: int = 100,
    noise: Callable[[np.ndarray], np.ndarray] = constant_noise,
    level: float = 0.95,
    variance: str = "local",
    seed: int = 0,
) -> Coverage:
    """Fit the model to every draw and count what its band covers at 21 queries over the range of x."""
    generator = np.random.default_rng(seed)
    queries = np.linspace(0.2, 3.8, 21).reshape(-1, 1)
    of_mean = of_curve = 0.0
    for _ in range(simulations):
        x = generator.uniform(0, 4, samples)
        y = curve(x) + noise(x) * generator.standard_normal(samples)
        model.fit(x.reshape(-1, 1), y)
        band = model.confidence_band(queries, level, variance)
        mean = model.weights(queries) @ curve(x)
        of_mean += float(np.mean((band.lower <= mean) & (mean <= band.upper)))
        of_curve += float(np.mean((band.lower <= curve(queries[:, 0])) & (curve(queries[:, 0]) <= band.upper)))
    return Coverage(of_mean / simulations, of_curve / simulations)
