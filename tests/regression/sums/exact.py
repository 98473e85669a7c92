"""Kernel sums on a line in 80-bit NumPy, pair by pair: the judge of the near-linear sums."""

from typing import NamedTuple

import numpy as np
import torch

from regard.regression import sums
from regard.regression.sums import Moments, Pool, PoolTask, line
from regard.scores.kernels import KERNELS as RADIAL_KERNELS

COMPACT = ("boxcar", "triangular", "epanechnikov", "biweight", "tricube", "cosine_kernel")
ALL = (*COMPACT, "gaussian", "laplacian")
KERNELS = {
    "triangular": lambda d: 1 - d,
    "epanechnikov": lambda d: 1 - d**2,
    "biweight": lambda d: (1 - d**2) ** 2,
    "tricube": lambda d: (1 - d**3) ** 3,
    "cosine_kernel": lambda d: np.sin(np.longdouble(np.pi) / 2 * (1 - d)),
}


class Kernel(NamedTuple):
    """A kernel by its name, and its width."""

    name: str
    width: float | torch.Tensor


def log_kernel(name, query, key, width):
    """log f of every pair (queries, keys) minus a number of each query, and these (queries, 1).

    Without that the logarithm of a weight drowns in (1e6)^2 / 2, even in 80 bits. The boxcar's edge is decided in the
    dtype of the data.
    """
    none = np.zeros((len(query), 1), np.longdouble)
    if name == "boxcar":
        inside = np.abs(query[:, None] - key) <= query.dtype.type(width)
        return np.where(inside, 0.0, -np.inf).astype(np.longdouble), none
    d = np.abs(query[:, None].astype(np.longdouble) - key.astype(np.longdouble)) / np.longdouble(width)
    near = d.min(-1, keepdims=True, initial=np.inf)
    if name == "gaussian" and len(key):
        # d^2 - near^2 as a product of differences of keys: exact where d and near are alike in nearly all digits.
        wide, nearest = key.astype(np.longdouble), key[d.argmin(-1), None].astype(np.longdouble)
        middle = (wide - query[:, None]) + (nearest - query[:, None])
        return -(wide - nearest) / np.longdouble(width) * (middle / np.longdouble(width)) / 2, -(near**2) / 2
    if name == "laplacian":
        return near - d, -near
    with np.errstate(divide="ignore"):
        return np.where(d < 1, np.log(np.maximum(KERNELS[name](np.minimum(d, 1)), 0)), -np.inf), none


def pool(query, data, kernel: Kernel, exclude=None) -> Pool:
    """Every pair, in 80 bits; a row without mass is 0. With moments, always."""
    q, k = query[:, 0].numpy(), data.key[:, 0].numpy()
    weight = np.ones(len(k), np.longdouble) if data.weight is None else data.weight.numpy().astype(np.longdouble)
    weights = np.broadcast_to(weight, (len(q), len(k))).copy()
    if exclude == 0:
        weights[np.arange(len(k)), np.arange(len(k))] -= np.minimum(weight, 1)
    with np.errstate(divide="ignore"):
        score, base = log_kernel(kernel.name, q, k, kernel.width)
        score = score + np.log(weights)
    peak = score.max(-1, keepdims=True, initial=-np.inf)
    peak = np.where(np.isfinite(peak), peak, 0)
    mass = np.exp(score - peak)
    total = mass.sum(-1, keepdims=True)
    share = mass / np.where(total > 0, total, 1)
    away = k.astype(np.longdouble) - q[:, None]
    value = data.value.numpy().astype(np.longdouble)
    with np.errstate(divide="ignore"):
        log_mass = np.where(total > 0, np.log(total) + peak + base, -np.inf)[:, 0]
    shift, spread = (share * away).sum(-1), (share * away**2).sum(-1)
    moments = Moments(
        _double(shift[:, None]), _double(spread[:, None, None]), _double(((share * away) @ value)[:, None])
    )
    return Pool(_double(share @ value), _double(log_mass), moments)


def task_of(query, data, kernel: Kernel, *, exclude=None, moments=False, tolerance=None) -> PoolTask:
    """The kernel sums of a test as a task."""
    return PoolTask(query, data, RADIAL_KERNELS[kernel.name], kernel.width, exclude, moments, tolerance)


def near_linear(query, data, kernel: Kernel, **options) -> Pool:
    """The sums under test, for data of any size, sorted or not."""
    task = task_of(query, data, kernel, **options)
    return line.pool(task, sums.line_method(task))


def pool_any(query, data, kernel: Kernel, **options) -> Pool:
    """The kernel sums by the method that supports the task."""
    return sums.pool(task_of(query, data, kernel, **options))


def assert_close(found: Pool, exact: Pool, values: torch.Tensor, tolerance: float) -> None:
    """Means within the tolerance of the range of the values, log mass within it relative to its size; empty alike."""
    assert torch.equal(found.log_mass == -torch.inf, exact.log_mass == -torch.inf)
    scale = values.amax(0) - values.amin(0) + values.abs().amax(0) * 1e-3 if len(values) else 1.0
    error = ((found.mean.double() - exact.mean).abs() / scale).nan_to_num(torch.inf)
    assert error.numel() == 0 or error.max() <= tolerance, f"mean is off by {error.max():.1e}"
    some = exact.log_mass > -torch.inf
    error = (found.log_mass.double() - exact.log_mass)[some].abs() / exact.log_mass[some].abs().clamp(min=1)
    assert error.numel() == 0 or error.nan_to_num(torch.inf).max() <= tolerance, f"log_mass is off by {error.max():.1e}"


def assert_moments_close(found: Moments, exact: Moments, width: float, tolerance: float) -> None:
    """Each kind of moment within the tolerance of its own size and of the width."""
    for power, one, other in zip((1, 2, 1), found, exact, strict=True):
        size = other.abs().clamp(min=width**power)
        assert ((one - other).abs() / size).nan_to_num(torch.inf).max() <= tolerance


def _double(array) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float64))
