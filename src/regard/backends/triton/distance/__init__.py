"""Distance scores on a GPU (eq. 4 to 6): which kernels run, forward and backward.

This module does not import Triton; the modules with kernels are imported by the first call that runs one. No step waits
for the GPU.
"""

import math

import torch
from torch import Tensor

from regard.backends.base import Problem, full_precision
from regard.backends.custom_op import ForwardResults, Gradients, Needs, Operator, OperatorFunctions, Shapes
from regard.backends.encoding import Options
from regard.backends.triton.distance.inputs import (
    MAX_NARROW_DIM,
    MAX_NARROW_VALUE_DIM,
    ROW_STATS,
    BackwardRows,
    Inputs,
    empty_results,
    prepare,
)
from regard.backends.triton.launch import unfold
from regard.scores.kernels import SquaredExponential

# Calls of at most this number of pairs of tokens are short: one launch computes their differences, though other kernels
# would take less time on the GPU. `python -m benchmarks map --cuda`.
MAX_SHORT_PAIRS = 2**23


def _forward(problem: Problem, options: Options) -> ForwardResults:
    """Return output, log_mass and row_stats (*batch, queries, 3), see `inputs.ROW_STATS`."""
    from regard.backends.triton.distance import narrow, tiled_forward

    del options
    with full_precision(problem.value.device), torch.cuda.device_of(problem.value):
        if _is_short(problem):
            results, bias_maximum = tiled_forward.short_forward(problem)
        else:
            inputs = prepare(problem)
            results, bias_maximum = empty_results(inputs), inputs.bias_maximum
            if _is_narrow(inputs):
                narrow.forward(inputs, results)
                # A boxcar without a bias flags no row: its mass is a number of keys, and it squares no width.
                if inputs.kernel.name != "boxcar" or inputs.bias is not None:
                    tiled_forward.forward_by_differences(inputs, results, only_flagged=True)
            elif _can_use_products(inputs):
                tiled_forward.forward_by_products(inputs, results)
                tiled_forward.forward_by_differences(inputs, results, only_flagged=True)
            else:
                tiled_forward.forward_by_differences(inputs, results, only_flagged=False)
        output, log_mass, row_stats = results
        if bias_maximum is not None:
            log_mass = log_mass + bias_maximum.squeeze(-1)
        return output.to(problem.value.dtype), log_mass, row_stats


def _kept_shapes(problem: Problem, options: Options) -> Shapes:
    del options
    return [(*problem.full_batch, problem.queries, len(ROW_STATS))]


def _backward(
    problem: Problem, options: Options, saved: ForwardResults, d_output: Tensor, d_log_mass: Tensor, needs: Needs
) -> Gradients:
    from regard.backends.triton.distance import narrow, tiled_backward

    del options
    output, _, row_stats = saved
    needs_query, needs_key, needs_width = needs.pair
    for_queries, for_keys = needs_query or needs_width, needs_key or needs.value or needs.bias
    with full_precision(output.device), torch.cuda.device_of(output):
        inputs = prepare(problem)
        tensors = d_output, d_log_mass.unsqueeze(-1), output, row_stats
        per_query = BackwardRows(*(x.reshape(inputs.outer, inputs.inner, *x.shape[-2:]) for x in tensors))
        if _is_narrow(inputs):
            found = narrow.backward(inputs, per_query, for_queries=for_queries, for_keys=for_keys)
        else:
            is_short = _is_short(problem)
            found = tiled_backward.backward(
                inputs, per_query, by_products=_can_use_products(inputs) and not is_short, is_short=is_short,
                for_queries=for_queries, for_keys=for_keys,
            )  # fmt: skip

    def unfolded(grad: Tensor | None, source: Tensor | None, is_needed: bool) -> Tensor | None:
        return None if grad is None or source is None or not is_needed else unfold(grad, inputs.batch, source)

    pair = problem.pair
    sources = pair.query, pair.key, *pair.parameters()
    assert not callable(problem.bias)
    return Gradients(
        [unfolded(*each) for each in zip(found.pair, sources, needs.pair, strict=True)],
        unfolded(found.value, problem.value, needs.value),
        unfolded(found.bias, problem.bias, needs.bias),
    )


def _is_short(problem: Problem) -> bool:
    """Return whether the host needs more time for a few launches than the GPU for the differences of all pairs."""
    return math.prod(problem.batch) * problem.queries * problem.keys <= MAX_SHORT_PAIRS


def _is_narrow(inputs: Inputs) -> bool:
    """Return whether the kernels for few dimensions and few values run."""
    return inputs.dim <= MAX_NARROW_DIM and inputs.value_dim <= MAX_NARROW_VALUE_DIM


def _can_use_products(inputs: Inputs) -> bool:
    """Return whether squared distances are computed by products.

    Only for squared exponentials, because a Laplacian near 0 would take the square root of the rounding error.
    """
    return inputs.dim > MAX_NARROW_DIM and isinstance(inputs.kernel, SquaredExponential)


OPERATOR = Operator(
    "triton_distance", OperatorFunctions(_forward, _backward, kept_shapes=_kept_shapes, num_kept=1), backend="triton"
)
