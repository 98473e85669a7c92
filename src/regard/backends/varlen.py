"""Padded batches of dot products without reading padding (eq. 1 and 9).

On a GPU the variable-length kernels of torch run. They take a packed sequence, the tokens of all examples one after
another, and its segments as `cu_seqlens`. In training each example has two segments: its real keys with all its
queries, and its padding without queries, so that the backward pass writes gradient 0 for padding. On a CPU each example
is one call over its real keys.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.base import Problem, Result
from regard.checks import has_empty_input, needs_grad
from regard.masks.bound import Lengths, cached, key_condition
from regard.scores.dot import DotPair
from regard.torch_compat import EFFICIENT_ATTENTION, can_read_values, is_plain_tensor, is_traced, varlen_attn

DEVICE, MIN_CAPABILITY = "cuda", (8, 0)
HALF_DTYPES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALF_DTYPES)
# Smallest number of pairs of tokens for which the kernels are faster than a mask over zeroed padding, without and with
# a gradient. Smaller calls are bound by the time of their launches. `python -m benchmarks --cuda dot`.
MIN_PAIRS = {torch.float32: (2**21, 2**24), torch.bfloat16: (2**26, 2**27), torch.float16: (2**26, 2**27)}
# The kernels load this many bytes at once.
ALIGNMENT = 16
# Largest size of a head. Some GPUs have no half-precision gradient for more than MAX_DIM_WITH_GRADIENT.
MAX_DIM, MAX_DIM_WITH_GRADIENT = 256, 192
# The kernels have one row of blocks for each segment, and 32-bit positions.
MAX_SEGMENTS, MAX_TOKENS = 2**16 - 1, 2**31 - 1

Attend = Callable[[Problem, bool], Tensor]
"""Returns the output of a problem without reading its mask; the second argument is whether it is causal."""


class PackedLayout(NamedTuple):
    """The sizes of a batch that is packed into one sequence.

    Attributes:
        batch: number of examples.
        heads: number of heads.
        queries: number of queries of an example.
        keys: number of keys of an example, padding included.
        parts: how many parts of the packed sequence an example has: 1, or one for each head if memory holds the tokens
            of each head together.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    parts: int


def choose_run(problem: Problem, attend: Attend) -> Callable[[Problem], Result] | None:
    """Choose a computation that does not read padding.

    Args:
        problem: dot products with a mask and without a bias.
        attend: computes examples of equal length on a CPU.

    Returns:
        The computation, or None if there is none or it would not be faster.
    """
    pair, value, mask = problem.pair, problem.value, problem.mask
    if mask is None or problem.bias is not None or not isinstance(pair, DotPair) or pair.scale <= 0:
        return None
    is_on_gpu = value.device.type == DEVICE
    if not is_on_gpu and not can_read_values(value):
        return None
    padding, causal = key_condition(mask)
    if type(padding) is not Lengths or padding.lengths.shape[1:].numel() != 1:
        return None
    if has_empty_input(pair.query, pair.key, value):
        return None
    if not is_on_gpu:
        return _choose_examples(problem, padding, causal, attend)
    layout = _packed_layout(problem, causal)
    return None if layout is None else partial(_run_packed, layout, padding, causal)


def _choose_examples(
    problem: Problem, padding: Lengths, causal: bool, attend: Attend
) -> Callable[[Problem], Result] | None:
    """Return the computation by one CPU call for each example, or None if the batch axes or the lengths forbid it."""
    pair, value = problem.pair, problem.value
    if value.ndim < 3:
        return None
    batch = value.shape[0]
    if not pair.query.shape[0] == pair.key.shape[0] == batch:
        return None
    # long() first: the number of keys may be too large for the dtype of the lengths.
    lengths = padding.lengths.flatten().long().clamp(0, value.shape[-2]).tolist()
    if not any(lengths):
        return None  # the output would be zeros only, without a connection to the inputs for autograd
    return partial(_run_examples, lengths * batch if len(lengths) == 1 else lengths, causal, attend)


def _run_examples(lengths: list[int], causal: bool, attend: Attend, problem: Problem) -> Result:
    """Return the output, with one call for each group of consecutive examples of equal length."""
    pair, value, outputs, start = problem.pair, problem.value, [], 0
    for length, group in groupby(lengths):
        rows = slice(start, start := start + len(list(group)))
        query, real_key, real_value = pair.query[rows], pair.key[rows, ..., :length, :], value[rows, ..., :length, :]
        if length:
            outputs.append(attend(problem._replace(pair=pair.replace(query, real_key), value=real_value), causal))
        else:
            outputs.append(value.new_zeros((*query.shape[:-1], value.shape[-1])))
    if len(outputs) == 1:
        return Result(outputs[0])
    if value.ndim < 4:
        return Result(torch.cat(outputs))
    # The kernel's output has the memory order (batch, tokens, heads, dim). Keep it, so that later reshapes do not copy.
    return Result(torch.cat([output.transpose(-3, -2) for output in outputs]).transpose(-3, -2))


def _packed_layout(problem: Problem, causal: bool) -> PackedLayout | None:
    """Return the layout of a packed batch, or None if the kernels do not support the problem or are not faster."""
    pair, value = problem.pair, problem.value
    query, key = pair.query, pair.key
    if query.dtype not in DTYPES or query.ndim != 4 or problem.dropout or is_traced():
        return None
    if EFFICIENT_ATTENTION is None or not can_use_fused_kernels(query.device):
        return None
    (batch, heads, queries, dim), keys, gradient = query.shape, problem.keys, needs_grad(query, key, value)
    if key.shape != (batch, heads, keys, dim) or value.shape != key.shape:
        return None
    min_forward, min_training = MIN_PAIRS[query.dtype]
    if not causal and batch * heads * queries * keys < (min_training if gradient else min_forward):
        return None
    if dim > (MAX_DIM_WITH_GRADIENT if gradient and _uses_public_kernel(query, causal) else MAX_DIM):
        return None
    inputs = (query, key, value)
    aligned_entries = ALIGNMENT // query.element_size()
    for x in inputs:
        if not is_plain_tensor(x) or x.stride(3) != 1 or x.data_ptr() % ALIGNMENT:
            return None
        if dim % aligned_entries or any(stride % aligned_entries for stride in x.stride()[:3]):
            return None
    if batch == 1 or all(x.stride(0) == x.shape[2] * x.stride(2) for x in inputs):
        parts = 1
    elif all(x.is_contiguous() for x in inputs):
        parts = heads
    else:
        return None
    is_in_limits = batch * parts * max(queries, keys) <= MAX_TOKENS and 2 * batch * parts + 1 <= MAX_SEGMENTS
    return PackedLayout(batch, heads, queries, keys, parts) if is_in_limits else None


def _run_packed(layout: PackedLayout, padding: Lengths, causal: bool, problem: Problem) -> Result:
    """Return the output, computed by one kernel over the packed batch."""
    pair, value = problem.pair, problem.value
    assert isinstance(pair, DotPair)
    batch, heads, queries, keys, parts = layout
    query, key, device = pair.query, pair.key, value.device
    uses_public_kernel = _uses_public_kernel(query, causal)
    gradient = needs_grad(query, key, value)
    splits_padding = uses_public_kernel or gradient
    cu_seqlens_q, cu_seqlens_k, seqlens_k = cached(
        padding.cache, (layout, splits_padding), device, lambda: _segments(layout, padding.lengths, splits_padding)
    )
    if not uses_public_kernel and gradient:
        # This kernel writes no gradient for queries without keys. The gradient of where() is 0 for them.
        empty = cached(padding.cache, "empty", device, lambda: padding.lengths <= 0)
        query = torch.where(empty, 0.0, query)
    if parts == 1:
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    query, key, value = (x.reshape(-1, heads // parts, x.shape[-1]) for x in (query, key, value))
    segments = cu_seqlens_q, cu_seqlens_k, queries, keys
    if uses_public_kernel:
        output = varlen_attn(query, key, value, *segments, scale=pair.scale)
    else:
        bias, dropout, custom_mask_type = None, 0.0, int(causal)
        output, *_ = EFFICIENT_ATTENTION(
            query[None],
            key[None],
            value[None],
            bias,
            *segments,
            dropout,
            custom_mask_type,
            gradient,
            scale=pair.scale,
            seqlen_k=seqlens_k,
        )
    if parts > 1:
        return Result(output.view(batch, heads, queries, -1))
    return Result(output.view(batch, queries, heads, -1).transpose(1, 2))


def _segments(layout: PackedLayout, lengths: Tensor, splits_padding: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the segments of a packed batch.

    Args:
        layout: the sizes.
        lengths: number of real keys, for each example or one for all.
        splits_padding: whether padding is a segment of its own. Without it each part has one segment and a number of
            real keys. That is up to a quarter faster (`python -m benchmarks --cuda dot`), but the backward pass does
            not use the numbers of real keys.

    Returns:
        cu_seqlens_q and cu_seqlens_k, int32 (segments + 1), where the segments begin among queries and among keys; and
        seqlens_k, int32 (segments), the numbers of real keys, or None if padding is a segment of its own.
    """
    batch, _, queries, keys, parts = layout
    part = torch.arange(batch * parts + 1, device=lengths.device, dtype=torch.int32)
    real_keys = lengths.long().clamp(0, keys).to(torch.int32).view(-1, 1).expand(batch, parts).reshape(-1)
    if not splits_padding:
        return part * queries, part * keys, real_keys.contiguous()  # one length for all examples is expanded
    query_end, key_start, key_end = part[1:] * queries, part[:-1] * keys, part[1:] * keys
    query_ends = torch.stack((query_end, query_end), 1).flatten()
    key_ends = torch.stack((key_start + real_keys, key_end), 1).flatten()
    zero = part[:1]
    return torch.cat((zero, query_ends)), torch.cat((zero, key_ends)), None


def _uses_public_kernel(query: Tensor, causal: bool) -> bool:
    """Return whether the public varlen_attn computes a call, which supports neither float32 nor causal masks.

    EFFICIENT_ATTENTION supports float32, and causal masks where query i attends to the keys 0..i.
    """
    return query.dtype in HALF_DTYPES and not causal


def can_use_fused_kernels(device: torch.device) -> bool:
    """Return whether torch's fused attention kernels, flash and memory-efficient, can run and are enabled.

    Args:
        device: a CUDA device.

    Returns:
        False as well if the user has disabled one of them by `torch.nn.attention.sdpa_kernel`.
    """
    cuda = torch.backends.cuda
    return cuda.mem_efficient_sdp_enabled() and cuda.flash_sdp_enabled() and _has_kernels(device)


@lru_cache
def _has_kernels(device: torch.device) -> bool:
    """Return whether this build of torch has the kernels and the device can run them."""
    is_built = torch.version.hip is None and torch.backends.cuda.is_flash_attention_available()
    return is_built and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
