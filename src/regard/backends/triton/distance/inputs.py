"""The tensors of a problem as the kernels of distances read and write them, and the limits of the narrow kernels."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.backends.base import Problem
from regard.backends.triton.launch import (
    NO_BAND,
    empty_float32,
    fold,
    kernel_mask_of,
    padded_length,
    transposed,
)
from regard.scores.distance import DistancePair
from regard.scores.kernels import Kernel

# Up to these sizes the kernels of `narrow` run: a thread keeps the dimensions and values of a token in registers.
MAX_NARROW_DIM = 16
MAX_NARROW_VALUE_DIM = 8
# The columns of row_stats, (*batch, queries, 3), which the forward kernels write for each query:
# - peak: the number that is subtracted from all scores to base 2 before exp2: the largest score, or 0;
# - inverse mass: 1 over the sum of exp2(score - peak), or 0 if this mass is 0;
# - redo: 1 if `tiled_forward.difference_forward` has to compute the row again, else 0.
ROW_STATS = ("peak", "inverse mass", "redo")


class Inputs(NamedTuple):
    """A problem with two batch axes.

    Attributes:
        query: (outer or 1, inner or 1, queries, dim), with the dtype and strides of the caller.
        key: (outer or 1, inner or 1, keys, dim), likewise.
        value: (outer or 1, inner or 1, keys, value_dim), likewise.
        width: the bandwidths, (outer or 1, inner or 1, padded queries or 1); for a boxcar their `squared_limit`.
        bias: (outer or 1, inner or 1, padded keys), to base 2 and at most 0; None without bias and key masks.
        bias_maximum: the maximum over the keys, which is subtracted from the bias, (*batch or 1, 1, 1), to base e.
        batch: the batch shape of the problem, which is folded into the axes `outer` and `inner`.
        outer: size of the first batch axis.
        inner: size of the second batch axis.
        kernel: the radial kernel.
        band: bounds of the offset key - query, see `launch.KernelMask`.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    width: Tensor
    bias: Tensor | None
    bias_maximum: Tensor | None
    batch: tuple[int, ...]
    outer: int
    inner: int
    kernel: Kernel
    band: tuple[int, int, int, int]

    @property
    def batch_size(self) -> int:
        """Number of batch elements."""
        return self.outer * self.inner

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.query.shape[-2]

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.key.shape[-2]

    @property
    def dim(self) -> int:
        """Size of a query and of a key."""
        return self.query.shape[-1]

    @property
    def value_dim(self) -> int:
        """Size of a value."""
        return self.value.shape[-1]

    def bias_or_dummy(self, dummy: Tensor) -> Tensor:
        """Return the bias, or another tensor if there is none, because a kernel needs a pointer in any case."""
        return dummy if self.bias is None else self.bias

    def pair_arguments(self) -> dict[str, Any]:
        """Return the arguments that all kernels over pairs of a query and a key have."""
        return {
            "inner": self.inner,
            "queries": self.queries,
            "keys": self.keys,
            "band": self.band,
            "DIM": self.dim,
            "PROFILE": self.kernel.name,
            "PER_QUERY": self.width.shape[-1] > 1,
            "HAS_BIAS": self.bias is not None,
            "HAS_BAND": self.band != NO_BAND,
        }

    def padded_lengths(self) -> dict[str, int]:
        """Return the lengths of transposed queries and keys, arguments of all backward kernels over pairs."""
        return {"padded_queries": padded_length(self.queries), "padded_keys": padded_length(self.keys)}

    def empty_for_queries(self, count: int) -> Tensor:
        """Return float32 memory for `count` numbers of each query, (outer, inner, count, padded queries)."""
        return empty_float32(self.query, self.outer, self.inner, count, padded_length(self.queries))

    def empty_for_keys(self, count: int) -> Tensor:
        """Return float32 memory for `count` numbers of each key, (outer, inner, count, padded keys)."""
        return empty_float32(self.query, self.outer, self.inner, count, padded_length(self.keys))


class KernelResults(NamedTuple):
    """The memory that the forward kernels write, in float32.

    Attributes:
        output: (*batch, queries, value_dim).
        log_mass: (*batch, queries).
        row_stats: (*batch, queries, 3), see `ROW_STATS`.
    """

    output: Tensor
    log_mass: Tensor
    row_stats: Tensor


def empty_results(inputs: Inputs) -> KernelResults:
    """Return the memory for the results of a problem."""
    shape = *inputs.batch, inputs.queries
    output = empty_float32(inputs.value, *shape, inputs.value_dim)
    return KernelResults(output, empty_float32(output, *shape), empty_float32(output, *shape, len(ROW_STATS)))


class BackwardRows(NamedTuple):
    """What the backward kernels read for each query.

    Attributes:
        d_output: (outer, inner, queries, value_dim).
        d_log_mass: (outer, inner, queries, 1).
        output: (outer, inner, queries, value_dim).
        row_stats: (outer, inner, queries, 3), see `ROW_STATS`.
    """

    d_output: Tensor
    d_log_mass: Tensor
    output: Tensor
    row_stats: Tensor


def prepare(problem: Problem) -> Inputs:
    """Return the tensors of a problem of distances as the kernels read them."""
    pair, keys, batch = problem.pair, problem.keys, problem.full_batch
    assert isinstance(pair, DistancePair)
    mask = kernel_mask_of(problem.mask)
    assert mask is not None
    assert not callable(problem.bias)
    bias, maximum = mask.key_bias(keys, problem.value.device, problem.bias), None
    tensors = [pair.query, pair.key, problem.value, pair.width]
    if bias is not None:
        bias = bias.float()
        maximum = _bias_maximum(bias)
        # Subtract the maximum, so that exp2(bias) is at most 1.
        bias = (bias - maximum).mul_(math.log2(math.e))
        tensors.append(bias.expand(*bias.shape[:-1], keys))
    folded = fold(batch, tensors)
    query, key, value, width, *biases = folded.tensors
    width = width.squeeze(-1).float()
    width = squared_limit(width, query.dtype) if pair.kernel.name == "boxcar" else width
    width = width.contiguous() if width.shape[-1] == 1 else transposed(width.unsqueeze(-1), 1.0).squeeze(-2)
    bias = transposed(biases[0].mT, 0.0).squeeze(-2) if biases else None
    outer, inner = folded.outer, folded.inner
    return Inputs(query, key, value, width, bias, maximum, batch, outer, inner, pair.kernel, mask.band)


def _bias_maximum(bias: Tensor) -> Tensor:
    """Return the maximum of a bias over the keys; a finite number if all keys are forbidden."""
    return bias.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)


def squared_limit(width: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the largest float32 whose square root, rounded to the dtype of the data, is at most the width.

    With it, |q - k| <= width is decided as in the dtype of the data (`Boxcar.log_kernel`), without a square root for
    each pair.

    Args:
        width: float32.
        dtype: the dtype of queries and keys, to which the width is rounded.
    """
    width = width.to(dtype)
    if dtype != torch.float32:
        above = (width.view(torch.int16) + 1).view(dtype)
        # Round half the way to the next number; if that rounds up, take the float32 below it.
        middle = (width.float() + above.float()) / 2
        rounds_to_width = middle.to(dtype) == width
        width = torch.where(rounds_to_width, middle, torch.nextafter(middle, middle.new_zeros(())))
    # The middle between this width and the next float32 has 25 bits and its square 50. So the square is exact in
    # float64 and never a float32, so no float32 square root can tie.
    above = torch.nextafter(width, width.new_full((), math.inf))
    square = ((width.double() + above.double()) / 2).square()
    limit = square.float()
    return torch.where(limit.double() > square, torch.nextafter(limit, limit.new_zeros(())), limit)
