"""Nadaraya-Watson regression as a scikit-learn estimator (eq. 4)."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

from typing import Any

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from regard.errors import RegardError
from regard.regression import arrays, band, criteria, derivative, distributed
from regard.regression.kernel_estimator import KernelEstimator
from regard.regression.smoother import Fit, Nearest


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
    worker that holds or makes it, and lazy queries get lazy answers; see `regard.regression.distributed`. Persist the
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
        if distributed.is_dask(X):
            self._keep(distributed.fit(self, X, y, sample_weight))
            return
        X, y, weight = arrays.check_observations(self, X, y, sample_weight, labels=False)
        self._one_output = y.ndim == 1
        self._fit(X, y.reshape(len(y), -1), weight, int(self.degree))

    def predict(self, X: Any) -> Any:
        """The estimate at each query, (queries,) or (queries, outputs) as y was."""
        if distributed.is_dask(X):
            return distributed.answer_block_by_block(self, X, "predict")
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
                slope, log_mass = derivative.of_pooling(smoother, query)
            if smoother.scale is not None:
                slope = slope / smoother.scale.unsqueeze(-1)
            constant = torch.nan if self._policy == "nan" else 0.0
            return torch.where(log_mass.isneginf()[:, None, None], constant, slope)

        slope = self._answer(X, slopes)
        return slope[:, :, 0] if self._one_output else slope

    def confidence_band(self, X: Any, level: float = 0.95, variance: str = "local") -> band.Band:
        """A pointwise band around the estimate: `Band(mean, lower, upper, standard_error)`.

        It covers the MEAN OF THE ESTIMATOR given the observed x, sum_j l_j(x) g(x_j), with probability `level`: not
        the regression function g. A kernel estimate is biased where g bends, and the band does not know by how much;
        with the width of "loo", bias and noise are of one size. The width counts as fixed, the noise as independent.

        level: the probability at each single query. variance: "local" lets the noise change with x, "global" takes
        it as the same everywhere, which is steadier.
        """
        check_is_fitted(self)
        wide = band.quantile(level)
        smoother = self.smoother_
        noise = band.noise(smoother, variance)
        errors: list[Tensor] = []

        def also(query: Tensor, fit: Fit) -> None:
            error = band.variance_factor(smoother, query, fit.log_mass, noise).sqrt()
            errors.append(error.masked_fill(fit.log_mass.isneginf().unsqueeze(-1), torch.nan))

        mean = self._mean(X, also)
        error = arrays.give_back(torch.cat(errors), X)
        return band.Band(*(self._shaped(part) for part in (mean, mean - wide * error, mean + wide * error, error)))

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
