"""Check arrays and tensors, and return results as the caller passed the inputs: as arrays or as tensors.

NumPy arrays are checked by scikit-learn, torch tensors by the same rules on their device.
"""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, validate_data  # pyrefly: ignore
from torch import Tensor

from regard.checks import describe
from regard.errors import RegardError

# Queries per block: a memory map is read this many rows at a time, or as many as there are keys, since the cost of a
# block beside its own rows grows with the keys.
QUERIES_PER_BLOCK = 2**18
DTYPES = [np.float64, np.float32]


class FitData(NamedTuple):
    """The checked data of a fit.

    Attributes:
        X: (rows, dim).
        y: (rows,) or (rows, outputs); labels are not converted.
        weight: (rows,), or None if none was given.
    """

    X: Tensor
    y: Any
    weight: Tensor | None


def check_fit(estimator: Any, X: Any, y: Any, sample_weight: Any, *, labels: bool) -> FitData:
    """Check the data of a fit by the rules of scikit-learn.

    Args:
        estimator: gets `n_features_in_` and `feature_names_in_`.
        X: (rows, dim), an array or a tensor.
        y: (rows,) or (rows, outputs).
        sample_weight: (rows,) or None.
        labels: whether y holds labels of any kind.

    Raises:
        RegardError: if the data are refused, or are too far apart.
    """
    observed = _check_arrays(estimator, X, y, sample_weight, labels=labels)
    check_extent(observed.X.amin(0).cpu().numpy(), observed.X.amax(0).cpu().numpy())
    if observed.weight is not None and not bool(observed.weight.sum().isfinite()):
        raise RegardError(
            "sample_weight",
            got="weights whose sum is no finite number",
            needed="a number of repetitions for each row",
            repair="Divide them by a large number.",
        )
    return observed


@np.errstate(over="ignore")
def check_extent(low: np.ndarray, high: np.ndarray) -> None:
    """Refuse data from low to high (dim,) that are so far apart that the square of a distance overflows."""
    extent = high - low
    if not np.isfinite(4 * np.square(extent).sum()):
        raise RegardError(
            "X",
            got=f"numbers that lie up to {float(extent.max()):.1e} apart",
            needed=f"distances whose squares are numbers of {extent.dtype}",
            repair="Divide X by a large number.",
        )


def _check_arrays(estimator: Any, X: Any, y: Any, sample_weight: Any, *, labels: bool) -> FitData:
    if isinstance(X, Tensor):
        return _check_tensors(estimator, X, y, sample_weight, labels=labels)
    y, sample_weight = (x.detach().cpu() if isinstance(x, Tensor) else x for x in (y, sample_weight))
    if labels:
        X, y = validate_data(estimator, X, y, dtype=DTYPES)
        check_classification_targets(y)
    else:
        X, y = validate_data(estimator, X, y, dtype=DTYPES, multi_output=True, y_numeric=True)
        if not isinstance(y, np.ndarray):
            raise RegardError(
                "y", got=type(y).__name__, needed="a dense array", repair="Pass y.toarray() of a sparse matrix."
            )
        with np.errstate(over="ignore"):
            y = _finite("y", as_tensor(y.astype(X.dtype, copy=False)))
    weight = None
    if sample_weight is not None:
        weight = as_tensor(_check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True))
    return FitData(as_tensor(X), y, weight)


def queries(estimator: Any, X: Any, keys: Tensor) -> Iterator[Tensor]:
    """Yield the queries in blocks (rows, dim), checked block by block, on the device and in the dtype of the keys."""
    size = max(QUERIES_PER_BLOCK, len(keys))
    if isinstance(X, Tensor):
        _check_width(estimator, _check_tensor("X", X, ndim=(2,)))
        for start in range(0, max(len(X), 1), size):
            yield _finite("X", X[start : start + size]).to(keys)
        return
    sliced = isinstance(X, np.ndarray) and X.ndim == 2 and len(X) > size
    for start in range(0, len(X) if sliced else 1, size):
        block = X[start : start + size] if sliced else X
        checked = validate_data(estimator, block, dtype=DTYPES, reset=False)
        # An input of another kind has become one array, which is cut into blocks too.
        for inner in range(0, len(checked), size):
            yield as_tensor(checked[inner : inner + size]).to(keys)


def is_dask(X: Any) -> bool:
    """Whether X is a Dask collection of any kind; this does not import Dask."""
    return hasattr(type(X), "__dask_graph__")


def reject_dask(X: Any) -> None:
    """Refuse a Dask array where it would be collected in this process."""
    if is_dask(X):
        raise RegardError(
            "X",
            got=f"a Dask {type(X).__name__}",
            needed="an array in memory: only fit, predict and log_mass of NadarayaWatson support Dask arrays",
            repair="Pass X.compute(), or call the method on each block with X.map_blocks.",
        )


def as_tensor(array: np.ndarray) -> Tensor:
    """Return the array as a tensor on the CPU; a copy where torch cannot share its memory."""
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def like_input(answer: Tensor, X: Any) -> Any:
    """Return the answer as the queries X came: on their device, or as a NumPy array."""
    return answer.to(X.device) if isinstance(X, Tensor) else answer.cpu().numpy()


def _check_tensors(estimator: Any, X: Tensor, y: Any, sample_weight: Any, *, labels: bool) -> FitData:
    if y is None:
        raise RegardError("y", got="None", needed="one row for each row of X", repair="Pass the observed values.")
    X = _finite("X", _floating(_check_tensor("X", X, ndim=(2,))))
    y = _check_labels(y, X.device) if labels else _finite("y", _to("y", y, X))
    if len(y) != len(X) or not len(X) or not X.shape[1] or (not labels and not y.numel()):
        raise RegardError(
            "X",
            got=f"X of shape {tuple(X.shape)} with y of shape {tuple(y.shape)}",
            needed="at least one row and column in both, and one y for each row of X",
            repair="Pass rows that belong together.",
        )
    weight = None
    if sample_weight is not None:
        weight = _finite("sample_weight", _to("sample_weight", sample_weight, X))
        if weight.shape != (len(X),) or bool((weight < 0).any()):
            raise RegardError(
                "sample_weight",
                got=f"shape {tuple(weight.shape)}, smallest {float(weight.min()) if weight.numel() else None}",
                needed=f"{len(X)} numbers, none negative",
                repair="A weight counts repetitions of its row; 0 leaves the row out.",
            )
    estimator.n_features_in_ = X.shape[1]
    if hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
    return FitData(X, y, weight)


def _to(argument: str, numbers: Any, X: Tensor) -> Tensor:
    """Return numbers for each row as a tensor on the device of X, detached from their graph."""
    try:
        tensor = torch.as_tensor(numbers, device=X.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RegardError(
            argument, got=describe(numbers), needed="a number for each row of X", repair="Pass an array or a tensor."
        ) from error
    return _check_tensor(argument, tensor.detach().to(X.device, X.dtype), ndim=(1, 2))


def _check_labels(labels: Any, device: torch.device) -> Any:
    """Return labels (rows,): a tensor on the device of X, or an array of words."""
    if not isinstance(labels, Tensor):
        labels = np.asarray(labels)
        if labels.dtype.kind not in "biuf":
            check_classification_targets(labels)
            return labels
    labels = _check_tensor("y", torch.as_tensor(labels, device=device), ndim=(1,))
    if labels.is_floating_point() and not torch.equal(_finite("y", labels), labels.round()):
        raise RegardError(
            "y",
            got="numbers that are not whole",
            needed="labels of classes",
            repair="Regress continuous values with NadarayaWatson.",
        )
    return labels.detach()


def _check_tensor(argument: str, tensor: Tensor, ndim: tuple[int, ...]) -> Tensor:
    if tensor.ndim not in ndim or tensor.is_complex():
        raise RegardError(
            argument,
            got=f"shape {tuple(tensor.shape)} of {tensor.dtype}",
            needed=f"real numbers with {' or '.join(map(str, ndim))} axes",
            repair="Reshape one feature with X.reshape(-1, 1).",
        )
    return tensor


def _check_width(estimator: Any, X: Tensor) -> None:
    if X.shape[1] != estimator.n_features_in_:
        raise RegardError(
            "X",
            got=f"{X.shape[1]} features",
            needed=f"the {estimator.n_features_in_} that the estimator was fitted on",
            repair="Pass the same columns.",
        )


def _floating(X: Tensor) -> Tensor:
    """Return float32 and float64 as they are, half precision as float32, integers as float64."""
    if X.dtype in (torch.float32, torch.float64):
        return X.detach()
    return X.detach().to(torch.float32 if X.is_floating_point() else torch.float64)


def _finite(argument: str, tensor: Tensor) -> Tensor:
    if not bool(tensor.isfinite().all()):
        raise RegardError(
            argument,
            got="NaN or infinity",
            needed="finite numbers",
            repair="Drop or fill the missing rows first.",
        )
    return tensor
