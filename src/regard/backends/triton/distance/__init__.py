"""Scores of distance on a GPU (eq. 4 to 6): which kernels run, forward and backward.

This module does not import Triton; the modules with kernels are imported by the first call that runs one. No step waits
for the GPU.
"""

import torch
from torch import Tensor

from regard.backends.base import Problem
from regard.backends.custom_op import Gradients, Kernels, Needs, Operator, Saved, Shapes
from regard.backends.encoding import Options, batch_of
from regard.backends.triton.distance.inputs import Inputs, Rows, prepare
from regard.backends.triton.launch import empty_float32, unfold
from regard.scores.kernels import SquaredExponential


def _forward(problem: Problem, options: Options) -> Saved:
    """Return output, log_mass, and peak, inverse mass and redo flag of each row, (*batch, queries, 3)."""
    from regard.backends.triton.distance import narrow, tiled_forward

    del options
    inputs = prepare(problem)
    shape = *inputs.batch, inputs.queries
    output = empty_float32(problem.value, *shape, inputs.value_dim)
    log_mass, row_stats = empty_float32(output, *shape), empty_float32(output, *shape, 3)
    results = output, log_mass, row_stats
    with torch.cuda.device_of(output):
        if _is_narrow(inputs):
            narrow.forward(inputs, results)
            # The mass of a compact kernel is 0 or far above the smallest float32, unless a bias makes it smaller, so
            # no row is computed again.
            if not inputs.kernel.is_compact or inputs.bias is not None:
                tiled_forward.forward_by_differences(inputs, results, only_flagged=True)
        elif _can_use_products(inputs):
            tiled_forward.forward_by_products(inputs, results)
            tiled_forward.forward_by_differences(inputs, results, only_flagged=True)
        else:
            tiled_forward.forward_by_differences(inputs, results, only_flagged=False)
    if inputs.bias_maximum is not None:
        log_mass = log_mass + inputs.bias_maximum.squeeze(-1)
    return output.to(problem.value.dtype), log_mass, row_stats


def _kept_shapes(problem: Problem, options: Options) -> Shapes:
    del options
    return [(*batch_of(problem), problem.queries, 3)]


def _backward(
    problem: Problem, options: Options, saved: Saved, d_output: Tensor, d_log_mass: Tensor, needs: Needs
) -> Gradients:
    from regard.backends.triton.distance import narrow, tiled_backward

    del options
    inputs = prepare(problem)
    output, _, row_stats = saved
    per_row = d_output, d_log_mass.unsqueeze(-1), output, row_stats
    rows = Rows(*(x.reshape(inputs.outer, inputs.inner, *x.shape[-2:]) for x in per_row))
    needs_query, needs_key, needs_width = needs.pair
    for_queries, for_keys = needs_query or needs_width, needs_key or needs.value or needs.bias
    with torch.cuda.device_of(output):
        if _is_narrow(inputs):
            found = narrow.backward(inputs, rows, for_queries=for_queries, for_keys=for_keys)
        else:
            found = tiled_backward.backward(
                inputs, rows, by_products=_can_use_products(inputs), for_queries=for_queries, for_keys=for_keys
            )

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


def _is_narrow(inputs: Inputs) -> bool:
    """Return whether the kernels for few dimensions and few values run."""
    from regard.backends.triton.distance.narrow import MAX_DIM, MAX_VALUE_DIM

    return inputs.dim <= MAX_DIM and inputs.value_dim <= MAX_VALUE_DIM


def _can_use_products(inputs: Inputs) -> bool:
    """Return whether squared distances are computed by products.

    Only for squared exponentials, because a Laplacian near 0 would take the square root of the rounding error.
    """
    from regard.backends.triton.distance.narrow import MAX_DIM

    return inputs.dim > MAX_DIM and isinstance(inputs.kernel, SquaredExponential)


OPERATOR = Operator(
    "triton_distance", Kernels(_forward, _backward, kept_shapes=_kept_shapes, num_kept=1), backend="triton"
)
