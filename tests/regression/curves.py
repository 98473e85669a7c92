"""Small data for the tests of kernel regression, and the formulas in NumPy loops that judge it."""

import numpy as np

KERNELS = {
    "gaussian": lambda d: np.exp(-d * d / 2),
    "laplacian": lambda d: np.exp(-d),
    "boxcar": lambda d: (d <= 1).astype(float),
    "triangular": lambda d: np.maximum(0, 1 - d),
    "epanechnikov": lambda d: np.maximum(0, 1 - d * d),
    "tricube": lambda d: np.maximum(0, 1 - d**3) ** 3,
    "biweight": lambda d: np.maximum(0, 1 - d * d) ** 2,
    "cosine_kernel": lambda d: np.where(d < 1, np.cos(np.pi * np.minimum(d, 1) / 2), 0.0),
}


def wave(n=53, dim=1, seed=0):
    """x uniform on [0, 4], y = 2 sin(x) + x in the first column, a slope in the others, noise of deviation 1."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(0, 4, (n, dim))
    y = 2 * np.sin(x[:, 0]) + x[:, 0] + 0.3 * x[:, 1:].sum(1) + generator.standard_normal(n)
    return x, y


def two_valleys():
    """Observations whose leave-one-out criterion has two local minima: a fast and a slow wave under noise."""
    generator = np.random.default_rng(5)
    x = np.sort(generator.uniform(0, 1, 150)).reshape(-1, 1)
    y = np.sin(2 * np.pi * x[:, 0]) + 0.45 * np.sin(40 * np.pi * x[:, 0]) + 0.35 * generator.standard_normal(150)
    return x, y


def estimate(query, x, y, kernel, width, *, weight=None, degree=0):
    """The estimate at one query (dim,) by weighted least squares, NaN where no key is in the window."""
    weight = np.ones(len(x)) if weight is None else weight
    mass = weight * KERNELS[kernel](np.sqrt((((query - x) / width) ** 2).sum(1)))
    if mass.sum() == 0:
        return np.nan
    if degree == 0:
        return (mass * y).sum() / mass.sum()
    root = np.sqrt(mass)[:, None]
    design = np.column_stack([np.ones(len(x)), x - query])
    return np.linalg.lstsq(root * design, root[:, 0] * y, rcond=None)[0][0]


def left_out(x, y, kernel, width, *, degree=0, exclude=0):
    """Each row predicted from the rows that are not within `exclude` of it; by the mean of those where it is alone."""
    found = []
    for row in range(len(x)):
        others = np.abs(np.arange(len(x)) - row) > exclude
        found.append(estimate(x[row], x[others], y[others], kernel, width, degree=degree))
        if np.isnan(found[-1]):
            found[-1] = y[others].mean()
    return np.array(found)
