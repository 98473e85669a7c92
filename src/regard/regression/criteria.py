"""How good a width is: leave-one-out, AICc and generalised cross-validation, weights counted as repetitions."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.regression import leave_out
from regard.regression.smoother import Smoother

# A curve that is as near to the observations as so many of their roundings passes through them.
ROUNDINGS = 4


class Judgement(NamedTuple):
    """value: a tensor without axes, the smaller the better; differentiable. alone: rows without a neighbour."""

    value: Tensor
    alone: int = 0


Criterion = Callable[[Smoother, int], Judgement]


def loo(smoother: Smoother, exclude: int) -> Judgement:
    """The mean squared error of predicting each observation from the others."""
    predicted = leave_out.predict(smoother, exclude)
    residual = smoother.data.value.double() - predicted.mean.double()
    errors = _beyond_rounding(smoother.average(residual.square()), smoother)
    return Judgement(errors.mean(), int(predicted.alone.sum()))


def aicc(smoother: Smoother, exclude: int) -> Judgement:
    """Akaike's criterion, corrected (Hurvich, Simonoff and Tsai 1998): log s2 + 1 + 2 (tr + 1) / (n - tr - 2).

    s2 is the mean squared residual, tr the trace of the hat matrix; of several outputs log s2 is the average.
    """
    del exclude
    n, trace, errors = _in_sample(smoother)
    if n - float(trace.detach()) <= 2 or float(errors.detach().min()) <= 0:
        return Judgement(errors.new_tensor(math.inf).mean())
    return Judgement(errors.log().mean() + 1 + 2 * (trace + 1) / (n - trace - 2))


def gcv(smoother: Smoother, exclude: int) -> Judgement:
    """Generalised cross-validation: s2 / (1 - tr / n)^2. A fit that leaves less than one degree is not considered."""
    del exclude
    n, trace, errors = _in_sample(smoother)
    if n - float(trace.detach()) < 1:
        return Judgement(errors.new_tensor(math.inf).mean())
    return Judgement(errors.mean() / (1 - trace / n) ** 2)


CRITERIA: dict[str, Criterion] = {"loo": loo, "aicc": aicc, "gcv": gcv}


def degrees_of_freedom(smoother: Smoother) -> float:
    """The trace of the hat matrix: how many parameters the curve is worth."""
    return float(_in_sample(smoother)[1])


def _in_sample(smoother: Smoother) -> tuple[float, Tensor, Tensor]:
    """Observations, trace of the hat matrix, mean squared residual of each output."""
    fit = smoother.fit(smoother.data.key)
    errors = smoother.average((smoother.data.value.double() - fit.mean.double()).square())
    errors = _beyond_rounding(errors, smoother)
    n = smoother.total()
    return n, smoother.average(fit.leverage) * n, errors


def _beyond_rounding(errors: Tensor, smoother: Smoother) -> Tensor:
    """(outputs,), with 0 for what is no more than the rounding of y, which would choose a width by chance."""
    value = smoother.data.value.detach()
    rounding = ROUNDINGS * torch.finfo(value.dtype).eps * value.abs().amax(0).double()
    return torch.where(errors > rounding.square(), errors, 0.0 * errors)
