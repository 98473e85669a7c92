"""Kernel regression: seconds and memory of near-linear sums, and ratios against statsmodels and KeOps.

Each long run has a process of its own, so that its peak of memory is its own too.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import torch

from benchmarks.measure import compare
from benchmarks.memory import clear_peak, peak
from regard import attend, inspect, scores
from regard.regression import NadarayaWatson

COMPACT = ("boxcar", "triangular", "epanechnikov", "biweight", "tricube", "cosine_kernel")
# (kernel, points, width as a share of the range)
POOLED = [
    *((kernel, 10**6, 1e-3) for kernel in (*COMPACT, "gaussian", "laplacian")),
    *(("epanechnikov", 10**6, share) for share in (1e-6, 1e-1)),
    *(("gaussian", 10**6, share) for share in (1e-6, 1e-1)),
    ("epanechnikov", 10**7, 1e-3),
    ("tricube", 10**7, 1e-3),
]
# What is hard on sums: an offset, a gap, one huge value, queries so many widths outside. (kernel, width)
OFFSET, HUGE, FARTHEST = 1e6, 1e15, 1e6
EXTREMES = [(kernel, share) for kernel in ("boxcar", "epanechnikov", "tricube", "gaussian") for share in (1e-6, 1e-3)]
# From the huge value, in widths: there no kernel sees it, and errors are judged by the range of the other values.
OUT_OF_SIGHT = 50
JUDGED = 300
PASSES = 3


def run(device: str) -> list[dict]:
    """Rows of five kinds: pooled, extremes, searched, fitted, three dimensions."""
    if device != "cpu":
        return []
    pooled = [_child("pooled", kernel, points, share) for kernel, points, share in POOLED]
    extremes = [_child("extremes", kernel, 10**7, share) for kernel, share in EXTREMES]
    return [*pooled, *extremes, _statsmodels(), _child("fitted", 10**6), *_three_dimensions()]


def _child(what: str, *arguments: object) -> dict:
    command = [sys.executable, "-m", "benchmarks.regression", what, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def _pooled(kernel: str, points: int, share: float) -> dict:
    """Seconds to fit at a given width and to predict as many queries, both uniform; the error at some of them."""
    rng = np.random.default_rng(0)
    x, queries = rng.random((points, 1)), rng.random((points, 1))
    y = np.sin(20 * x[:, 0]) + rng.standard_normal(points)
    NadarayaWatson(kernel, bandwidth=share, empty="nearest").fit(x[:1000], y[:1000]).predict(queries[:1000])
    clear_peak()
    before, fits, seconds = peak(), [], []
    for _ in range(PASSES):
        begin = time.perf_counter()
        # Anew in each pass: a model that is fitted again would hold its old data until it has the new.
        model = NadarayaWatson(kernel, bandwidth=share, empty="nearest").fit(x, y)
        fits.append(time.perf_counter() - begin)
        found = model.predict(queries)
        seconds.append(time.perf_counter() - begin)
        del model
    memory = peak() - before
    chosen = rng.choice(points, JUDGED, replace=False)
    error = _error(kernel, share, x, y, queries[chosen], found[chosen])
    times = {"min": min(seconds), "median": statistics.median(seconds)}
    return {
        "kind": "pooled", "kernel": kernel, "points": points, "share": share,
        "seconds": times, "fit_seconds": min(fits), "error": error,
        "peak_bytes": memory, "bytes_a_point": memory / points,
    }  # fmt: skip


def _extremes(kernel: str, points: int, share: float) -> dict:
    """The error on data that are hard on sums, at queries among the keys, in a gap, and far outside."""
    rng = np.random.default_rng(0)
    x = rng.random(points)
    x[(x > 0.4) & (x < 0.6)] -= 0.4
    y = np.sin(20 * x) + rng.standard_normal(points)
    spread = np.ptp(y)
    huge = np.abs(x - 0.9).argmin()
    away = share * np.array([0.5, 3, 8, 40, FARTHEST])
    queries = np.concatenate([rng.choice(x, 40), [0.5], 0.6 - away[:3], x.max() + away, x.min() - away])
    queries = queries[np.abs(queries - x[huge]) > OUT_OF_SIGHT * share]
    y[huge] = HUGE
    x, queries = x + OFFSET, queries + OFFSET
    found = NadarayaWatson(kernel, bandwidth=share, empty="nearest").fit(x[:, None], y).predict(queries[:, None])
    exact = np.array([_in_long_double(kernel, share, x, y, query) for query in queries])
    known = ~np.isnan(exact)
    error = float(np.abs(found - exact)[known].max() / spread)
    return {
        "kind": "extremes", "kernel": kernel, "points": points, "share": share, "queries": len(queries),
        "offset": OFFSET, "huge": HUGE, "farthest": FARTHEST, "error": error,
    }  # fmt: skip


def _in_long_double(kernel: str, width: float, x: np.ndarray, y: np.ndarray, query: float) -> float:
    """The estimate in 64 bits of mantissa, NaN in an empty window: a million widths away float64 is no judge."""
    away = np.abs(x - query)
    near = away <= away.min() + OUT_OF_SIGHT * width
    ratio = (x[near].astype(np.longdouble) - np.longdouble(query)) / np.longdouble(width)
    if kernel == "gaussian":
        weight = np.exp((np.square(ratio).min() - np.square(ratio)) / 2)
    elif kernel == "boxcar":
        weight = (away[near] <= width).astype(np.longdouble)
    else:
        power = {"epanechnikov": (2, 1), "tricube": (3, 3)}[kernel]
        weight = np.clip(1 - np.abs(ratio) ** power[0], 0, None) ** power[1]
    return float((weight * y[near]).sum() / weight.sum()) if weight.any() else np.nan


def _error(kernel: str, width: float, x: np.ndarray, y: np.ndarray, queries: np.ndarray, found: np.ndarray) -> float:
    """The largest error of predictions that have a neighbour, as a share of the range of y, judged by `attend`."""
    score = scores.names.KERNEL_SCORES[kernel](width)
    record = inspect(*(torch.from_numpy(part) for part in (queries, x, y[:, None])), score, backend="blocked")
    exact, near = record.output[:, 0].numpy(), record.log_mass.isfinite().numpy()
    return float(np.abs(found - exact)[near].max(initial=0.0) / np.ptp(y))


def _fitted(points: int) -> dict:
    """Seconds of a leave-one-out fit of a curve with noise."""
    x, y = _curve(points)
    NadarayaWatson("gaussian", "loo").fit(x[:2000], y[:2000])
    clear_peak()
    before, seconds = peak(), []
    for _ in range(PASSES):
        begin = time.perf_counter()
        width = float(NadarayaWatson("gaussian", "loo").fit(x, y).bandwidth_)
        seconds.append(time.perf_counter() - begin)
    return {
        "kind": "fitted", "kernel": "gaussian", "points": points, "bandwidth": width,
        "seconds": {"min": min(seconds), "median": statistics.median(seconds)}, "peak_bytes": peak() - before,
    }  # fmt: skip


def _curve(points: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = 4 * rng.random((points, 1))
    return x, 2 * np.sin(x[:, 0]) + x[:, 0] + rng.standard_normal(points)


def _statsmodels(points: int = 2000) -> dict:
    """The same search by statsmodels, in turns: it takes long enough for few passes to be believed."""
    from statsmodels.nonparametric.kernel_regression import KernelReg

    x, y = _curve(points)
    model, theirs, ours = NadarayaWatson("gaussian", "loo").fit(x, y), [], []
    for _ in range(PASSES):
        seconds, found = _timed(lambda: KernelReg(y, x, "c", reg_type="lc", bw="cv_ls"))
        theirs.append(seconds)
        ours += [_timed(lambda: model.fit(x, y))[0] for _ in range(5)]
    both = {
        name: {"min": min(seconds), "median": statistics.median(seconds)}
        for name, seconds in (("statsmodels KernelReg", theirs), ("regard.NadarayaWatson", ours))
    }
    widths = {"statsmodels": float(found.bw[0]), "regard": float(model.bandwidth_)}
    return {"kind": "searched", "points": points, "seconds": both, "widths": widths}


def _timed(call: Callable[[], object]) -> tuple[float, object]:
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def _three_dimensions(points: int = 30_000, width: float = 0.1) -> list[dict]:
    """The exact Gaussian over all pairs in float32, with KeOps where it is installed."""
    if find_spec("pykeops") is None:
        return []
    from pykeops.torch import LazyTensor

    torch.manual_seed(0)
    query, key, value = torch.rand(points, 3), torch.rand(points, 3), torch.rand(points, 1)
    with_one = torch.cat([value, torch.ones_like(value)], 1)

    def keops() -> torch.Tensor:
        squared = ((LazyTensor(query[:, None]) - LazyTensor(key[None])) ** 2).sum(-1)
        sums = (-squared / (2 * width**2)).exp() @ with_one
        return sums[:, :1] / sums[:, 1:]

    score = scores.Gaussian(width)
    timing = compare({"KeOps": keops, "regard.attend": lambda: attend(query, key, value, score)})
    exact = attend(query[:500].double(), key.double(), value.double(), score)
    errors = {
        "KeOps": float((keops()[:500] - exact).abs().max()),
        "regard.attend": float((attend(query, key, value, score)[:500] - exact).abs().max()),
    }
    return [{"kind": "three dimensions", "points": points, "errors": errors, **timing}]


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "fitted":
        print(json.dumps(_fitted(int(arguments[0]))))
    else:
        row = {"pooled": _pooled, "extremes": _extremes}[what]
        print(json.dumps(row(arguments[0], int(arguments[1]), float(arguments[2]))))
