"""NadarayaWatson and NadarayaWatsonClassifier: kernel regression as scikit-learn estimators (eq. 4)."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from regard.errors import RegardError
from regard.regression import bandwidth, criteria, dask_smoother, empty_windows, hat_matrix, inference, validation
from regard.regression.bandwidth_search import SelectedBandwidth
from regard.regression.smoother import Fit, Nearest, Smoother
from regard.regression.sums import Observations, Pool
from regard.scores.names import KERNEL_SCORES


class _Parameter(NamedTuple):
    """A parameter of an estimator: whether a value is valid, what is needed, and how to repair it."""

    is_valid: Callable[[Any], bool]
    needed: str
    repair: str


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_positive(value: object) -> bool:
    is_number = isinstance(value, float | int | np.floating | np.integer) and not isinstance(value, bool)
    try:
        return is_number and 0 < float(value) < math.inf
    except OverflowError:
        return False


def _policy_parameter(policies: tuple[str, ...]) -> _Parameter:
    return _Parameter(
        lambda value: isinstance(value, str) and value in policies,
        f"one of {', '.join(map(repr, policies))}",
        "It says what a query without an observation in its window is answered.",
    )


class KernelEstimator(BaseEstimator):
    """Base class of the regressor and the classifier: their parameters, data and bandwidth."""

    _parameters: Mapping[str, _Parameter] = {
        "kernel": _Parameter(
            lambda value: isinstance(value, str) and value in KERNEL_SCORES,
            f"one of {', '.join(KERNEL_SCORES)}",
            "Pass the name of a kernel.",
        ),
        "empty": _policy_parameter(empty_windows.POLICIES),
        "exclude": _Parameter(
            lambda value: _is_whole(value) and value >= 0,
            "a whole number from 0: rows left out on each side of a row, besides itself",
            "Pass exclude=0 where rows are independent.",
        ),
        "tolerance": _Parameter(
            lambda value: value is None or _is_positive(value),
            "a positive number, or None for the rounding of the dtype",
            "Pass for example 1e-6.",
        ),
        "per_dimension": _Parameter(
            lambda value: isinstance(value, bool | np.bool_),
            "True or False",
            "Leave per_dimension out if you do not need it.",
        ),
        "verbose": _Parameter(
            lambda value: isinstance(value, int | np.integer), "0, 1 or 2", "Leave verbose out if you do not need it."
        ),
    }

    kernel: str
    bandwidth: Any
    per_dimension: bool
    empty: str
    exclude: int
    tolerance: float | None
    verbose: int

    def log_mass(self, X: Any) -> Any:
        """Return the logarithm of the sum of the kernel over the observations.

        It says how much data an estimate rests on: the log of the number of observations at the centre of a tight
        cluster, very negative far away from all of them (an extrapolation), minus infinity in an empty window.

        Args:
            X: (queries, dim), an array, a tensor or a Dask array.

        Returns:
            (queries,), of the kind of X.
        """
        if validation.is_dask(X):
            return dask_smoother.lazy_answers(self, X, "log_mass")
        return self._answer(X, lambda query: self.smoother_.pool(query).log_mass)

    def pool(self, X: Any) -> Pool:
        """Return the pooled values and log masses, with 0 in empty windows.

        Pools of the same queries over disjoint data have an exact union: `regard.merge` of Attended(mean, log_mass).

        Args:
            X: (queries, dim).

        Returns:
            Pool(mean (queries, outputs), log_mass (queries,)).
        """
        check_is_fitted(self)
        parts = [self.smoother_.pool(query) for query in self._queries(X)]
        mean, log_mass = torch.cat([part.mean for part in parts]), torch.cat([part.log_mass for part in parts])
        return Pool(validation.like_input(mean, X), validation.like_input(log_mass, X))

    def weights(self, X: Any) -> Any:
        """Return rows of the hat matrix: the estimates are `weights(X) @ y`.

        A row of the fit with sample_weight 0 has weight 0. An empty window has the weights of the `empty` policy, NaN
        for "nan". The result is dense: pass few queries at a time.

        Args:
            X: (queries, dim).

        Returns:
            (queries, rows of the fit).
        """

        def rows(query: Tensor) -> Tensor:
            smoother = self.smoother_
            blocks = [query[block] for block in hat_matrix.row_blocks(smoother.data, len(query))]
            weight = torch.cat([hat_matrix.hat_rows(smoother.task(block), smoother.degree).weight for block in blocks])
            weight = empty_windows.fill_weights(weight, query, smoother, self._policy)
            if self._kept is None:
                return weight
            full = weight.new_zeros(len(weight), self._rows)
            full[:, self._kept] = weight
            return full

        return self._answer(X, rows)

    def _fit(self, X: Tensor, value: Tensor, weight: Tensor | None, degree: int) -> None:
        """Keep the observations and select the bandwidth: X (rows, dim), value (rows, outputs), weight (rows,)."""
        rows, kept = len(X), None
        if weight is not None:
            kept, weight = _positive_weights(weight)
        # The estimator owns its data: the caller may change the arrays afterwards. Indexing copies them as well.
        X, value = (X.clone(), value.clone()) if kept is None else (X[kept], value[kept])
        smoother = Smoother(Observations(X, value, weight), self.kernel, 1.0, degree, self.tolerance)
        options = bandwidth.BandwidthOptions(self.bandwidth, int(self.exclude), self.per_dimension, self.verbose)
        selected = bandwidth.select(smoother, options)
        self._rows, self._kept = rows, kept
        self._keep(selected)

    def _keep(self, selected: SelectedBandwidth) -> None:
        self.smoother_ = selected.smoother
        self.bandwidth_ = bandwidth.as_public(selected.smoother)
        self.criterion_ = selected.value
        self.loo_alone_ = selected.isolated
        self.trials_ = selected.trials

    @contextmanager
    def _unchanged_if_refused(self) -> Iterator[None]:
        """Restore all attributes if `fit` raises, so that an earlier fit stays complete."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    def _mean(self, X: Any, also: Callable[[Tensor, Fit], None] | None = None) -> Any:
        """Return the estimate (queries, outputs), empty windows answered by the policy.

        also: called with each block of queries and its fit, for what else follows from it.
        """
        check_is_fitted(self)
        parts, empty, queries, policy = [], 0, 0, self._policy
        for query in self._queries(X):
            fit = self.smoother_.fit(query)
            if also is not None:
                also(query, fit)
            is_empty = fit.log_mass.isneginf()
            empty, queries = empty + int(is_empty.sum()), queries + len(query)
            parts.append(empty_windows.fill(fit.mean, is_empty, query, self.smoother_, policy))
        empty_windows.report(empty, queries, policy)
        return validation.like_input(_joined(parts), X)

    @property
    def _policy(self) -> str:
        self._check("empty")  # set_params may have changed it since the fit
        return empty_windows.effective_policy(self.smoother_.kernel, self.empty)

    def _answer(self, X: Any, function: Callable[[Tensor], Tensor]) -> Any:
        """Return one row for each query, by blocks of queries in the coordinates of the keys."""
        check_is_fitted(self)
        return validation.like_input(_joined([function(query) for query in self._queries(X)]), X)

    def _queries(self, X: Any) -> Iterator[Tensor]:
        validation.reject_dask(X)
        for query in validation.queries(self, X, self.smoother_.reference):
            yield self.smoother_.scale(query)

    def _check(self, *names: str) -> None:
        """Check these parameters, by default all."""
        for name in names or self._parameters:
            value, parameter = getattr(self, name), self._parameters[name]
            if not parameter.is_valid(value):
                raise RegardError(name, got=f"{value!r:.60}", needed=parameter.needed, repair=parameter.repair)


class NadarayaWatson(MultiOutputMixin, RegressorMixin, KernelEstimator):
    """Kernel regression: the mean of the observations around a query, weighted by a kernel (eq. 4).

    It is attention with the query x, the keys x_i, the values y_i and the logarithm of the kernel as score.

    A sample_weight counts repetitions: weight 2 is the row twice, weight 0 leaves it out, and in leave-one-out a row
    of weight w leaves out min(w, 1) of itself. y may have several columns. A criterion is then their average, so give
    columns of different units a common scale first.

    Torch tensors are accepted too: X, y and the answers stay on their device. The estimator computes on the device and
    in the dtype (float32 or float64) in which it was fitted, and returns the kind of array that the queries are.

    So are Dask arrays, at degree 0: `fit` keeps their blocks where they are, `predict` and `log_mass` pool each block
    on the worker that holds or makes it, and lazy queries get lazy answers; see `regard.regression.dask_arrays`.
    Persist the arrays if the workers can hold them; otherwise every call reads the data again.

    Args:
        kernel: its name: "gaussian", "laplacian", "boxcar", "triangular", "epanechnikov", "tricube", "biweight" or
            "cosine_kernel". The distance is Euclidean, each dimension divided by its bandwidth.
        bandwidth: the scale in the kernel's own formula.

            - A positive number, or an array with one per dimension.
            - "loo": the mean squared error of predicting each observation from the others is smallest. In one
              dimension the bandwidth itself is searched for, in several one factor of the standard deviations.
            - "aicc": the criterion of Akaike as corrected by Hurvich, Simonoff and Tsai. "gcv": generalised
              cross-validation. Both judge the residuals of the fit by its degrees of freedom.
            - "scott", "silverman": rules for densities that do not look at y; starting points.
            - `Nearest(k)`: at each query the distance to its k-th nearest observation. `Nearest("loo")`, "aicc" and
              "gcv" choose k.
        degree: 0 for local means, 1 for local lines, which remove the bias at the boundary and where observations are
            unevenly spread. The weights of degree 1 may be negative, so an estimate may leave the range of y, and does
            so quickly where it extrapolates. In a direction in which the observations of a window do not vary, the line
            is flat: a window with one observation gives its value.
        per_dimension: whether to refine one bandwidth per dimension by the gradient of the criterion; for "loo",
            "aicc", "gcv" and kernels with a derivative. Every step computes all pairs of rows.
        empty: the answer where no observation is in the window of a compact kernel: "nan" with a warning, "nearest"
            (the value of the nearest one), "mean" (of all y), or "raise". A Gaussian or Laplacian window is never
            empty: far away from all data the limit of a Gaussian is the nearest observation.
        exclude: rows left out on each side of a row, besides itself, when it is predicted from the others: for serial
            data, whose neighbours in time share their noise. It concerns "loo" only.
        tolerance: bounds |prediction - exact| / (max y - min y) at every query; None is the rounding of the dtype.
        verbose: 0 prints nothing, 1 the result of a search, 2 every bandwidth tried.

    Attributes:
        bandwidth_: the bandwidth: a number, an array with one per dimension, or `Nearest(k)`.
        criterion_: the criterion at that bandwidth; None if there is no criterion.
        loo_alone_: how many observations had no other in their window at that bandwidth. They were predicted by the
            mean of the others. None if there is no criterion.
        trials_: Trials(tried, values): what was tried on all rows, and the criterion of each.
        smoother_: the curve, on tensors.
        n_features_in_: the number of columns of X.
        feature_names_in_: their names, if X has names.

    >>> import numpy as np
    >>> from regard.regression import NadarayaWatson
    >>> X = np.linspace(0, 4, 9).reshape(-1, 1)
    >>> model = NadarayaWatson("epanechnikov", bandwidth=1.0).fit(X, 2 * np.sin(X[:, 0]) + X[:, 0])
    >>> model.predict([[1.0], [2.0]]).round(3)
    array([2.559, 3.685])
    """

    _parameters: Mapping[str, _Parameter] = {
        "degree": _Parameter(
            lambda value: _is_whole(value) and value in (0, 1),
            "0 (local means) or 1 (local lines)",
            "Pass degree=1 to remove the bias at the boundary.",
        ),
        **KernelEstimator._parameters,
    }

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
        """Keep the observations and select the bandwidth. If this is refused, an earlier fit stays as it was.

        Args:
            X: (rows, dim), an array, a tensor or a Dask array.
            y: (rows,) or (rows, outputs).
            sample_weight: (rows,), the number of repetitions of each row; None where all are 1.

        Returns:
            The estimator.

        Raises:
            RegardError: if a parameter or the data are refused.
            ValueError: if scikit-learn refuses the data.
        """
        with self._unchanged_if_refused():
            self._check()
            if validation.is_dask(X):
                self._keep(dask_smoother.fit(self, X, y, sample_weight))
            else:
                X, y, weight = validation.check_fit(self, X, y, sample_weight, labels=False)
                self._one_output = y.ndim == 1
                self._fit(X, y.reshape(len(y), -1), weight, int(self.degree))
        return self

    def predict(self, X: Any) -> Any:
        """Return the estimate at each query.

        Args:
            X: (queries, dim), an array, a tensor or a Dask array.

        Returns:
            (queries,) or (queries, outputs) as y was, of the kind of X.
        """
        if validation.is_dask(X):
            return dask_smoother.lazy_answers(self, X, "predict")
        return self._shaped(self._mean(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination R^2, averaged over the outputs.

        Args:
            X: (queries, dim).
            y: (queries,) or (queries, outputs).
            sample_weight: (queries,) or None.
        """
        if not isinstance(X, Tensor):
            return super().score(X, y, sample_weight)
        # scikit-learn's R^2 needs a configuration of its own for tensors, and refuses those of a GPU.
        return super().score(*(None if part is None else _as_array(part) for part in (X, y, sample_weight)))

    def derivative(self, X: Any) -> Any:
        """Return the derivative of the estimate.

        Degree 0: of the curve itself, exactly, for kernels that have a derivative. Degree 1: the slope of the local
        line, which estimates the derivative of the regression function; the curve's own derivative is another one. In
        an empty window it is NaN where the prediction is, and 0 where `empty` answers by a constant.

        Args:
            X: (queries, dim).

        Returns:
            (queries, dim) or (queries, dim, outputs).

        Raises:
            RegardError: if the curve has no derivative.
        """

        def slopes(query: Tensor) -> Tensor:
            smoother = self.smoother_
            if smoother.degree == 1:
                fit = smoother.fit(query)
                assert fit.slope is not None
                slope, log_mass = fit.slope, fit.log_mass
            else:
                slope, log_mass = inference.derivative(smoother, query)
            if smoother.unit is not None:
                slope = slope / smoother.unit.unsqueeze(-1)
            constant = torch.nan if self._policy == "nan" else 0.0
            return torch.where(log_mass.isneginf()[:, None, None], constant, slope)

        slope = self._answer(X, slopes)
        return slope[:, :, 0] if self._one_output else slope

    def confidence_band(self, X: Any, level: float = 0.95, variance: str = "local") -> inference.Band:
        """Return a pointwise band around the estimate.

        It covers the mean of the estimator given the observed x, sum_j l_j(x) g(x_j), with probability `level`: not the
        regression function g. A kernel estimate is biased where g bends, and the band does not know by how much; with
        the bandwidth of "loo", bias and noise are of similar size. The bandwidth counts as fixed, the noise as
        independent.

        Args:
            X: (queries, dim).
            level: the probability at each single query.
            variance: "local" lets the noise change with x; "global" takes it as the same everywhere, which is steadier.

        Returns:
            Band(mean, lower, upper, standard_error), each shaped like a prediction.

        Raises:
            RegardError: if the curve passes through all observations.
        """
        check_is_fitted(self)
        factor = inference.quantile(level)
        smoother = self.smoother_
        noise = inference.noise_variance(smoother, variance)
        errors: list[Tensor] = []

        def also(query: Tensor, fit: Fit) -> None:
            error = inference.estimator_variance(smoother, query, fit.log_mass, noise).sqrt()
            errors.append(error.masked_fill(fit.log_mass.isneginf().unsqueeze(-1), torch.nan))

        mean = self._mean(X, also)
        error = validation.like_input(torch.cat(errors), X)
        parts = (mean, mean - factor * error, mean + factor * error, error)
        return inference.Band(*(self._shaped(part) for part in parts))

    @property
    def effective_degrees_of_freedom_(self) -> float:
        """The trace of the hat matrix, repetitions counted: how many parameters the curve is worth."""
        check_is_fitted(self)
        return criteria.degrees_of_freedom(self.smoother_)

    @property
    def aicc_(self) -> float:
        """The corrected criterion of Akaike (Hurvich, Simonoff and Tsai), to compare bandwidths and kernels."""
        check_is_fitted(self)
        return float(criteria.aicc(self.smoother_, 0).value)

    def _shaped(self, answer: Any) -> Any:
        return answer[:, 0] if self._one_output else answer


class NadarayaWatsonClassifier(ClassifierMixin, KernelEstimator):
    """The share of each class among the observations around a query, weighted by a kernel (eq. 4).

    Each class is a column of zeros and ones, and the columns are pooled as `NadarayaWatson` pools y: the results are
    non-negative and sum to 1.

    Args:
        kernel: its name: "gaussian", "laplacian", "boxcar", "triangular", "epanechnikov", "tricube", "biweight" or
            "cosine_kernel".
        bandwidth: as in `NadarayaWatson`. "loo" takes the bandwidth with the smallest Brier score when every
            observation is predicted from the others: it is the squared residual of the pooled zeros and ones, a proper
            score, finite where a probability is 0 (the log loss is not), and smoother than the number of errors.
        per_dimension: whether to refine one bandwidth per dimension by the gradient of the criterion.
        empty: the answer where no observation is in the window of a compact kernel. A prediction must be a class, so
            NaN is not offered: "mean" gives the frequencies of the classes, "nearest" the class of the nearest
            observation, "raise" an error.
        exclude: rows left out on each side of a row, besides itself, when it is predicted from the others.
        tolerance: bounds the error of each probability; None is the rounding of the dtype.
        verbose: 0 prints nothing, 1 the result of a search, 2 every bandwidth tried.

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

    _parameters: Mapping[str, _Parameter] = {
        **KernelEstimator._parameters,
        "empty": _policy_parameter(("mean", "nearest", "raise")),
    }

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
        """Keep the observations and select the bandwidth. If this is refused, an earlier fit stays as it was.

        Args:
            X: (rows, dim), an array or a tensor.
            y: (rows,), labels.
            sample_weight: (rows,), the number of repetitions of each row; None where all are 1.

        Returns:
            The estimator.

        Raises:
            RegardError: if a parameter or the data are refused.
            ValueError: if scikit-learn refuses the data.
        """
        with self._unchanged_if_refused():
            self._check()
            validation.reject_dask(X)
            X, y, weight = validation.check_fit(self, X, y, sample_weight, labels=True)
            if isinstance(y, Tensor):
                self.classes_, label = torch.unique(y, return_inverse=True)
            else:
                self.classes_, label = np.unique(y, return_inverse=True)
            label = torch.as_tensor(label, device=X.device).long()
            one_hot = torch.nn.functional.one_hot(label, len(self.classes_)).to(X.dtype)
            self._fit(X, one_hot, weight, degree=0)
        return self

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class, in the order of `classes_`.

        Args:
            X: (queries, dim).

        Returns:
            (queries, classes).
        """
        # A mean of zeros and ones may leave [0, 1] by a rounding, which the metrics of scikit-learn refuse.
        return self._mean(X).clip(0, 1)

    def predict(self, X: Any) -> Any:
        """Return the most probable class, of equally probable ones the first.

        Args:
            X: (queries, dim).

        Returns:
            (queries,), of the kind of X; an array if the labels are words.
        """
        likeliest = self._mean(X).argmax(-1)
        if isinstance(X, Tensor) and not self._are_words:
            return torch.as_tensor(self.classes_, device=X.device)[likeliest]
        classes = self.classes_.cpu() if isinstance(self.classes_, Tensor) else self.classes_
        return np.asarray(classes)[likeliest.cpu() if isinstance(likeliest, Tensor) else likeliest]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of correct predictions; tensors are compared on their device.

        Args:
            X: (queries, dim).
            y: (queries,), labels.
            sample_weight: (queries,) or None.
        """
        if not isinstance(X, Tensor):
            return super().score(X, y, sample_weight)
        if self._are_words:
            correct = torch.as_tensor(self.predict(X) == np.asarray(y), device="cpu").double()
        else:
            correct = (self.predict(X) == torch.as_tensor(y, device=X.device)).double()
        weight = torch.ones_like(correct)
        if sample_weight is not None:
            weight = torch.as_tensor(sample_weight, device=correct.device).to(correct.dtype)
        return float((correct * weight).sum() / weight.sum())

    @property
    def _are_words(self) -> bool:
        """Whether the classes are no numbers, and so no tensor."""
        return not isinstance(self.classes_, Tensor) and self.classes_.dtype.kind not in "biuf"


def _joined(parts: list[Tensor]) -> Tensor:
    """Return all rows; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _positive_weights(weight: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the rows of positive weight, None for all rows, and a copy of their weights, None if all of them are 1."""
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


def _as_array(numbers: Any) -> np.ndarray:
    """Return numbers in double precision, since NumPy has no bfloat16; complex numbers stay complex, to be refused."""
    tensor = torch.as_tensor(numbers, device="cpu").detach()
    return tensor.to(torch.promote_types(tensor.dtype, torch.float64)).numpy()
