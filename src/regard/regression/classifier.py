"""Class probabilities by kernel pooling, as a scikit-learn classifier."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from torch import Tensor

from regard.regression import arrays, distributed
from regard.regression.kernel_estimator import KernelEstimator
from regard.regression.smoother import Nearest


class NadarayaWatsonClassifier(ClassifierMixin, KernelEstimator):
    """The share of each class among the observations around a query, weighted by a kernel (eq. 4).

    Each class is a column of zeros and ones, and the columns are pooled as `NadarayaWatson` pools y: the results are
    non-negative and sum to 1.

    Parameters:
        kernel: its name: "gaussian", "laplacian", "boxcar", "triangular", "epanechnikov", "tricube", "biweight" or
            "cosine_kernel". bandwidth is the scale in the kernel's own formula.
        bandwidth: as in `NadarayaWatson`. "loo" takes the width with the smallest Brier score when every observation
            is predicted from the others: it is the squared residual of the pooled zeros and ones, a proper score,
            finite where a probability is 0 (the log loss is not), and smoother than the number of errors.
        per_dimension: refine one width per dimension by the gradient of the criterion.
        empty: the answer where a compact kernel sees no observation. A prediction must be a class, so NaN is not
            offered: "mean" gives the frequencies of the classes, "nearest" the class of the nearest observation,
            "raise" an error.
        exclude: rows left out on each side of a row, besides itself, when it is predicted from the others.
        tolerance: bounds the error of each probability; None is the rounding of the dtype.
        verbose: 0 prints nothing, 1 the result of a search, 2 every width tried.

    Attributes:
        classes_: the labels, in the order of the columns of `predict_proba`.
        bandwidth_, criterion_, loo_alone_, trials_, smoother_: as in `NadarayaWatson`; criterion_ of "loo" is the
            Brier score divided by the number of classes.

    >>> import numpy as np
    >>> from regard.regression import NadarayaWatsonClassifier
    >>> X, y = np.array([[0.0], [1.0], [3.0], [4.0]]), np.array(["low", "low", "high", "high"])
    >>> NadarayaWatsonClassifier(bandwidth=1.0).fit(X, y).predict([[0.5], [3.2]])
    array(['low', 'high'], dtype='<U4')
    """

    _policies = ("mean", "nearest", "raise")

    def __init__(
        self,
        kernel: str = "gaussian",
        bandwidth: float | str | np.ndarray | Nearest = "loo",
        *,
        per_dimension: bool = False,
        empty: str = "mean",
        exclude: int = 0,
        tolerance: float | None = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.per_dimension = per_dimension
        self.empty = empty
        self.exclude = exclude
        self.tolerance = tolerance
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "NadarayaWatsonClassifier":
        """Keep the observations and choose the width.

        X: (rows, dim). y: (rows,), labels. sample_weight: (rows,), counts repetitions. If the data or the parameters
        are refused, an earlier fit stays as it was.
        """
        with self._unchanged_if_refused():
            self._check_and_fit(X, y, sample_weight)
        return self

    def _check_and_fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        distributed.refuse_dask(X)
        X, y, weight = arrays.check_observations(self, X, y, sample_weight, labels=True)
        if isinstance(y, Tensor):
            self.classes_, label = torch.unique(y, return_inverse=True)
        else:
            self.classes_, label = np.unique(y, return_inverse=True)
        one_hot = torch.nn.functional.one_hot(torch.as_tensor(label).long(), len(self.classes_)).to(X.dtype)
        self._fit(X, one_hot, weight, degree=0)

    def predict_proba(self, X: Any) -> Any:
        """(queries, classes): the probability of each class, in the order of `classes_`."""
        # A mean of zeros and ones may leave [0, 1] by a rounding, which the metrics of scikit-learn refuse.
        return self._mean(X).clip(0, 1)

    def predict(self, X: Any) -> Any:
        """(queries,): the most probable class; of equal ones the first. Words are an array, whatever X is."""
        likeliest = self._mean(X).argmax(-1)
        if isinstance(X, Tensor) and not self._are_words:
            return torch.as_tensor(self.classes_, device=X.device)[likeliest]
        classes = self.classes_.cpu() if isinstance(self.classes_, Tensor) else self.classes_
        return np.asarray(classes)[likeliest.cpu() if isinstance(likeliest, Tensor) else likeliest]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of right predictions; tensors are compared on their device."""
        if not isinstance(X, Tensor):
            return super().score(X, y, sample_weight)
        if self._are_words:
            right = torch.as_tensor(self.predict(X) == np.asarray(y)).double()
        else:
            right = (self.predict(X) == torch.as_tensor(y, device=X.device)).double()
        weight = torch.ones_like(right) if sample_weight is None else torch.as_tensor(sample_weight).to(right)
        return float((right * weight).sum() / weight.sum())

    @property
    def _are_words(self) -> bool:
        """Whether the classes are no numbers, and so no tensor."""
        return not isinstance(self.classes_, Tensor) and self.classes_.dtype.kind not in "biuf"
