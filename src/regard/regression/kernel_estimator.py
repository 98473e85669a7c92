"""What the regressor and the classifier share: their data, their width, and the questions both can answer."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from regard.errors import RegardError
from regard.regression import arrays, bandwidth, distributed, empty, hat_matrix
from regard.regression.smoother import Fit, Smoother
from regard.regression.sums import Observations, Pool
from regard.scores.names import KERNEL_SCORES


class KernelEstimator(BaseEstimator):
    """Pooling of observed values with a kernel (eq. 4), with scikit-learn's manners."""

    _policies: tuple[str, ...] = empty.POLICIES

    kernel: str
    bandwidth: Any
    per_dimension: bool
    empty: str
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
        wish = bandwidth.Wish(self.bandwidth, int(self.exclude), self.per_dimension, self.verbose)
        chosen = bandwidth.choose(
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
        self.bandwidth_ = bandwidth.shown(chosen.smoother)
        self.criterion_ = chosen.value
        self.loo_alone_ = chosen.alone
        self.trials_ = chosen.trials

    def log_mass(self, X: Any) -> Any:
        """The logarithm of the sum of the kernel over the observations, (queries,).

        It says how much data an answer rests on: log of the number of observations at the centre of a tight cluster,
        very negative far away from all of them (an extrapolation), minus infinity in an empty window.
        """
        if distributed.is_dask(X):
            return distributed.answer_block_by_block(self, X, "log_mass")
        return self._answer(X, lambda query: self.smoother_.pool(query).log_mass)

    def pool(self, X: Any) -> Pool:
        """The pooled values (queries, outputs) and log masses (queries,) as they are, empty windows as 0.

        Pools of the same queries over disjoint data have an exact union: `regard.merge` of Attended(mean, log_mass).
        """
        check_is_fitted(self)
        parts = [self.smoother_.pool(query) for query in self._queries(X)]
        mean, log_mass = torch.cat([part.mean for part in parts]), torch.cat([part.log_mass for part in parts])
        return Pool(arrays.give_back(mean, X), arrays.give_back(log_mass, X))

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
            weight = empty.fill_weights(torch.cat(parts), query, self.smoother_, self._policy)
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
            parts.append(empty.fill(fit.mean, missing, query, self.smoother_, self._policy))
        empty.tell(unanswered, asked, self._policy)
        return arrays.give_back(_joined(parts), X)

    @property
    def _policy(self) -> str:
        empty.check_policy(self.empty, self._policies)  # set_params may have changed it since the fit
        return empty.policy_of(self.smoother_.kernel, self.empty)

    def _answer(self, X: Any, function: Callable[[Tensor], Tensor]) -> Any:
        """One row for each query, by blocks of queries in the coordinates of the keys."""
        check_is_fitted(self)
        return arrays.give_back(_joined([function(query) for query in self._queries(X)]), X)

    def _queries(self, X: Any):
        distributed.refuse_dask(X)
        for query in arrays.queries(self, X, self.smoother_.like):
            yield self.smoother_.place(query)

    def _check_parameters(self) -> None:
        if not isinstance(self.kernel, str) or self.kernel not in KERNEL_SCORES:
            raise RegardError(
                "kernel",
                got=f"{self.kernel!r:.60}",
                needed=f"one of {', '.join(KERNEL_SCORES)}",
                repair="Pass the name of a kernel.",
            )
        empty.check_policy(self.empty, self._policies)
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
