"""NadarayaWatson, NadarayaWatsonClassifier and what they share: scikit-learn estimators on the kernel sums (eq. 4)."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from regard.errors import RegardError
from regard.regression import (
    bandwidth,
    criteria,
    dask_arrays,
    dask_smoother,
    empty_windows,
    hat_matrix,
    inference,
    validation,
)
from regard.regression.smoother import Fit, Nearest, Smoother
from regard.regression.sums import Observations, Pool
from regard.scores.names import KERNEL_SCORES


class KernelEstimator(BaseEstimator):
    """Pooling of observed values with a kernel (eq. 4), with scikit-learn's manners."""

    _policies: tuple[str, ...] = empty_windows.POLICIES

    kernel: str
    bandwidth: Any
    per_dimension: bool
    empty_windows: str
    exclude: int
    tolerance: float | None
    verbose: int

    def _fit(self, X: Tensor, value: Tensor, weight: Tensor | None, degree: int) -> None:
        """X: (rows, dim), value: (rows, outputs), weight: (rows,) or None."""
        self._check_parameters()
        rows, kept = len(X), None
        if weight is not None:
            kept, weight = _positive(weight)
        # The estimator owns its data: the caller may change the arrays afterwards. Indexing copies them as well.
        X, value = (X.clone(), value.clone()) if kept is None else (X[kept], value[kept])
        wish = bandwidth.BandwidthOptions(self.bandwidth, int(self.exclude), self.per_dimension, self.verbose)
        chosen = bandwidth.select(
            Smoother(Observations(X, value, weight), self.kernel, 1.0, degree, self.tolerance), wish
        )
        self._rows, self._kept = rows, kept
        self._keep(chosen)

    @contextmanager
    def _unchanged_if_refused(self) -> Iterator[None]:
        """Give the estimator back all its attributes if `fit` raises, so that an earlier fit stays complete."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    def _keep(self, chosen: bandwidth.Chosen) -> None:
        self.smoother_ = chosen.smoother
        self.bandwidth_ = bandwidth.as_public(chosen.smoother)
        self.criterion_ = chosen.value
        self.loo_alone_ = chosen.alone
        self.trials_ = chosen.trials

    def log_mass(self, X: Any) -> Any:
        """The logarithm of the sum of the kernel over the observations, (queries,).

        It says how much data an answer rests on: log of the number of observations at the centre of a tight cluster,
        very negative far away from all of them (an extrapolation), minus infinity in an empty window.
        """
        if dask_arrays.is_dask(X):
            return dask_smoother.lazy_answers(self, X, "log_mass")
        return self._answer(X, lambda query: self.smoother_.pool(query).log_mass)

    def pool(self, X: Any) -> Pool:
        """The pooled values (queries, outputs) and log masses (queries,) as they are, empty windows as 0.

        Pools of the same queries over disjoint data have an exact union: `regard.merge` of Attended(mean, log_mass).
        """
        check_is_fitted(self)
        parts = [self.smoother_.pool(query) for query in self._queries(X)]
        mean, log_mass = torch.cat([part.mean for part in parts]), torch.cat([part.log_mass for part in parts])
        return Pool(validation.like_input(mean, X), validation.like_input(log_mass, X))

    def weights(self, X: Any) -> Any:
        """Rows of the hat matrix, (queries, rows of the fit): the answers are `weights(X) @ y`.

        A row of the fit with sample_weight 0 has weight 0. An empty window has the weights of the `empty` policy,
        NaN for "nan". The result is dense: ask for few queries at a time.
        """

        def rows(query: Tensor) -> Tensor:
            parts = [
                hat_matrix.hat_rows(self.smoother_, query[block]).weight
                for block in hat_matrix.row_blocks(self.smoother_, query)
            ]
            weight = empty_windows.fill_weights(torch.cat(parts), query, self.smoother_, self._policy)
            if self._kept is None:
                return weight
            full = weight.new_zeros(len(weight), self._rows)
            full[:, self._kept] = weight
            return full

        return self._answer(X, rows)

    def _mean(self, X: Any, also: Callable[[Tensor, Fit], None] | None = None) -> Any:
        """(queries, outputs): the estimate, empty windows answered by the policy.

        also: is given each block of queries with its fit, for what else is to be made of it.
        """
        check_is_fitted(self)
        parts, unanswered, asked = [], 0, 0
        for query in self._queries(X):
            fit = self.smoother_.fit(query)
            if also is not None:
                also(query, fit)
            missing = fit.log_mass.isneginf()
            unanswered, asked = unanswered + int(missing.sum()), asked + len(query)
            parts.append(empty_windows.fill(fit.mean, missing, query, self.smoother_, self._policy))
        empty_windows.report(unanswered, asked, self._policy)
        return validation.like_input(_joined(parts), X)

    @property
    def _policy(self) -> str:
        empty_windows.check_policy(self.empty, self._policies)  # set_params may have changed it since the fit
        return empty_windows.effective_policy(self.smoother_.kernel, self.empty)

    def _answer(self, X: Any, function: Callable[[Tensor], Tensor]) -> Any:
        """One row for each query, by blocks of queries in the coordinates of the keys."""
        check_is_fitted(self)
        return validation.like_input(_joined([function(query) for query in self._queries(X)]), X)

    def _queries(self, X: Any):
        dask_arrays.reject_dask(X)
        for query in validation.queries(self, X, self.smoother_.like):
            yield self.smoother_.place(query)

    def _check_parameters(self) -> None:
        if not isinstance(self.kernel, str) or self.kernel not in KERNEL_SCORES:
            raise RegardError(
                "kernel",
                got=f"{self.kernel!r:.60}",
                needed=f"one of {', '.join(KERNEL_SCORES)}",
                repair="Pass the name of a kernel.",
            )
        empty_windows.check_policy(self.empty, self._policies)
        if isinstance(self.exclude, bool) or not isinstance(self.exclude, int | np.integer) or self.exclude < 0:
            raise RegardError(
                "exclude",
                got=repr(self.exclude),
                needed="a whole number from 0: rows left out on each side of a row, besides itself",
                repair="Pass exclude=0 where rows are independent.",
            )
        if self.tolerance is not None and not _is_positive(self.tolerance):
            raise RegardError(
                "tolerance",
                got=repr(self.tolerance),
                needed="a positive number, or None for the rounding of the dtype",
                repair="Pass for example 1e-6.",
            )
        self._check_kind("per_dimension", (bool, np.bool_), "True or False")
        self._check_kind("verbose", (int, np.integer), "0, 1 or 2")

    def _check_kind(self, name: str, kinds: tuple[type, ...], needed: str) -> None:
        setting = getattr(self, name)
        if not isinstance(setting, kinds):
            raise RegardError(name, got=repr(setting), needed=needed, repair=f"Leave {name} out if you do not need it.")


def _is_positive(number: object) -> bool:
    is_number = isinstance(number, float | int | np.floating | np.integer) and not isinstance(number, bool)
    try:
        return is_number and 0 < float(number) < math.inf
    except OverflowError:
        return False


def _joined(parts: list[Tensor]) -> Tensor:
    """All rows; what is one part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _positive(weight: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The rows with a positive weight, None for all rows, and a copy of their weights, None if all of them are 1."""
    kept = (weight > 0).nonzero().flatten()
    if not len(kept):
        raise RegardError(
            "sample_weight",
            got="zeros only",
            needed="at least one positive weight",
            repair="A weight counts repetitions of its row.",
        )
    positive = weight[kept]
    return None if len(kept) == len(weight) else kept, None if bool((positive == 1).all()) else positive


class NadarayaWatson(MultiOutputMixin, RegressorMixin, KernelEstimator):
    """Kernel regression: the mean of the observations around a query, weighted by a kernel (eq. 4).

    It is attention with the query x, the keys x_i, the values y_i and the logarithm of the kernel as score.

    Parameters:
        kernel: its name: "gaussian", "laplacian", "boxcar", "triangular", "epanechnikov", "tricube", "biweight" or
            "cosine_kernel". The distance is Euclidean, each dimension divided by its bandwidth.
        bandwidth: the scale in the kernel's own formula.
            A positive number; or an array with one per dimension.
            "loo": the mean squared error of predicting each observation from the others is smallest. In one
            dimension the width itself is searched for, in several one factor of the standard deviations.
            "aicc": Akaike's criterion as corrected by Hurvich, Simonoff and Tsai. "gcv": generalised
            cross-validation. Both judge the residuals of the fit by its degrees of freedom.
            "scott", "silverman": density rules that do not look at y; starting points.
            `Nearest(k)`: at each query the distance to its k-th nearest observation; `Nearest("loo")` chooses k.
        degree: 0 for local means, 1 for local lines, which remove the bias at the boundary and where observations
            are unevenly spread. The weights of degree 1 may be negative, so that an estimate may leave the range of
            y, and does so quickly where it extrapolates. In a direction in which the observations of a window do not
            vary, the line is flat: a window with one observation gives its value.
        per_dimension: refine one width per dimension by the gradient of the criterion; for "loo", "aicc", "gcv" and
            kernels with a derivative. Every step costs all pairs of rows.
        empty: the answer where a compact kernel sees no observation: "nan" with a warning, "nearest" (the value of
            the nearest one), "mean" (of all y), or "raise". A Gaussian or Laplacian window is never empty: far away
            from all data the limit of a Gaussian is the nearest observation.
        exclude: rows left out on each side of a row, besides itself, when it is predicted from the others: for
            serial data, whose neighbours in time share their noise. It concerns "loo" only.
        tolerance: bounds |prediction - exact| / (max y - min y) at every query; None is the rounding of the dtype.
        verbose: 0 prints nothing, 1 the result of a search, 2 every width tried.

    Attributes:
        bandwidth_: the width: a number, an array with one per dimension, or `Nearest(k)`.
        criterion_: the criterion at that width; None where none was asked for.
        loo_alone_: how many observations had no other in their window at that width: they were predicted by the mean
            of the others. None where no criterion was asked for.
        trials_: Trials(tried, values): what was tried on all rows, and the criterion of each.
        smoother_: the curve itself, on tensors.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.

    A sample_weight counts repetitions: weight 2 is the row twice, weight 0 leaves it out, and in leave-one-out a row
    of weight w leaves out min(w, 1) of itself. y may have several columns; a criterion is then their average, so give
    columns of different units a common scale first.

    Torch tensors are accepted too: X, y and the answers stay on their device. The estimator computes where and in the
    dtype (float32 or float64) in which it was fitted, and answers as the queries came.

    So are Dask arrays, at degree 0: fit keeps their blocks where they are, predict and log_mass pool each block on the
    worker that holds or makes it, and lazy queries get lazy answers; see `regard.regression.dask_arrays`. Persist the
    arrays where the workers can hold them; otherwise every call reads the data again.

    >>> import numpy as np
    >>> from regard.regression import NadarayaWatson
    >>> X = np.linspace(0, 4, 9).reshape(-1, 1)
    >>> model = NadarayaWatson("epanechnikov", bandwidth=1.0).fit(X, 2 * np.sin(X[:, 0]) + X[:, 0])
    >>> model.predict([[1.0], [2.0]]).round(3)
    array([2.559, 3.685])
    """

    def __init__(
        self,
        kernel: str = "gaussian",
        bandwidth: float | str | np.ndarray | Nearest = "loo",
        *,
        degree: int = 0,
        per_dimension: bool = False,
        empty: str = "nan",
        exclude: int = 0,
        tolerance: float | None = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.degree = degree
        self.per_dimension = per_dimension
        self.empty = empty
        self.exclude = exclude
        self.tolerance = tolerance
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "NadarayaWatson":
        """Keep the observations and choose the width.

        X: (rows, dim). y: (rows,) or (rows, outputs). sample_weight: (rows,), counts repetitions. If the data or the
        parameters are refused, an earlier fit stays as it was.
        """
        with self._unchanged_if_refused():
            self._check_and_fit(X, y, sample_weight)
        return self

    def _check_and_fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        if isinstance(self.degree, bool) or not isinstance(self.degree, int | np.integer) or self.degree not in (0, 1):
            raise RegardError(
                "degree",
                got=repr(self.degree),
                needed="0 (local means) or 1 (local lines)",
                repair="Pass degree=1 to remove the bias at the boundary.",
            )
        if dask_arrays.is_dask(X):
            self._keep(dask_smoother.fit(self, X, y, sample_weight))
            return
        X, y, weight = validation.check_observations(self, X, y, sample_weight, labels=False)
        self._one_output = y.ndim == 1
        self._fit(X, y.reshape(len(y), -1), weight, int(self.degree))

    def predict(self, X: Any) -> Any:
        """The estimate at each query, (queries,) or (queries, outputs) as y was."""
        if dask_arrays.is_dask(X):
            return dask_smoother.lazy_answers(self, X, "predict")
        return self._shaped(self._mean(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The coefficient of determination R^2, averaged over the outputs."""
        if not isinstance(X, Tensor):
            return super().score(X, y, sample_weight)
        # scikit-learn's R^2 would ask for its own configuration to take tensors, and not take them from a GPU.
        return super().score(*(None if part is None else _as_plain(part) for part in (X, y, sample_weight)))

    def derivative(self, X: Any) -> Any:
        """The derivative of the estimate, (queries, dim) or (queries, dim, outputs).

        Degree 0: of the curve itself, exactly, for kernels that have a derivative. Degree 1: the slope of the local
        line, which estimates the derivative of the regression function; the curve's own derivative is another one.
        In an empty window it is NaN where the prediction is, and 0 where `empty` answers by a constant.
        """

        def slopes(query: Tensor) -> Tensor:
            smoother = self.smoother_
            if smoother.degree == 1:
                fit = smoother.fit(query)
                assert fit.slope is not None
                slope, log_mass = fit.slope, fit.log_mass
            else:
                slope, log_mass = inference.derivative(smoother, query)
            if smoother.scale is not None:
                slope = slope / smoother.scale.unsqueeze(-1)
            constant = torch.nan if self._policy == "nan" else 0.0
            return torch.where(log_mass.isneginf()[:, None, None], constant, slope)

        slope = self._answer(X, slopes)
        return slope[:, :, 0] if self._one_output else slope

    def confidence_band(self, X: Any, level: float = 0.95, variance: str = "local") -> inference.Band:
        """A pointwise band around the estimate: `Band(mean, lower, upper, standard_error)`.

        It covers the MEAN OF THE ESTIMATOR given the observed x, sum_j l_j(x) g(x_j), with probability `level`: not
        the regression function g. A kernel estimate is biased where g bends, and the band does not know by how much;
        with the width of "loo", bias and noise are of one size. The width counts as fixed, the noise as independent.

        level: the probability at each single query. variance: "local" lets the noise change with x, "global" takes
        it as the same everywhere, which is steadier.
        """
        check_is_fitted(self)
        wide = inference.quantile(level)
        smoother = self.smoother_
        noise = inference.noise_variance(smoother, variance)
        errors: list[Tensor] = []

        def also(query: Tensor, fit: Fit) -> None:
            error = inference.estimator_variance(smoother, query, fit.log_mass, noise).sqrt()
            errors.append(error.masked_fill(fit.log_mass.isneginf().unsqueeze(-1), torch.nan))

        mean = self._mean(X, also)
        error = validation.like_input(torch.cat(errors), X)
        return inference.Band(*(self._shaped(part) for part in (mean, mean - wide * error, mean + wide * error, error)))

    @property
    def effective_degrees_of_freedom_(self) -> float:
        """The trace of the hat matrix, repetitions counted: how many parameters the curve is worth."""
        check_is_fitted(self)
        return criteria.degrees_of_freedom(self.smoother_)

    @property
    def aicc_(self) -> float:
        """The corrected Akaike criterion of the fit (Hurvich, Simonoff and Tsai), to compare widths and kernels."""
        check_is_fitted(self)
        return float(criteria.aicc(self.smoother_, 0).value)

    def _shaped(self, answer: Any) -> Any:
        return answer[:, 0] if self._one_output else answer


def _as_plain(numbers: Any) -> np.ndarray:
    """In double precision, since NumPy has no bfloat16; complex numbers stay complex, and are refused."""
    tensor = torch.as_tensor(numbers).detach().cpu()
    return tensor.to(torch.promote_types(tensor.dtype, torch.float64)).numpy()


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
        dask_arrays.reject_dask(X)
        X, y, weight = validation.check_observations(self, X, y, sample_weight, labels=True)
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
