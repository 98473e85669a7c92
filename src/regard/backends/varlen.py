"""Padded batches of dot products without reading padding (eq. 1 and 9).

On a GPU: the variable-length kernels of torch. They take the tokens of a batch as one line, cut into segments by
`cu_seqlens`. In training each example contributes two segments: its real keys, seen by all its queries, and its
padding, seen by no query, so that the backward pass writes gradient 0 for padding. On a CPU: one call for each example,
over its real keys.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.base import Problem, Result
from regard.checks import has_empty, needs_grad
from regard.masks.bound import Lengths, cached, key_condition
from regard.scores.dot import DotPair
from regard.torch_compat import aten, can_read_values, is_plain_tensor, is_traced, varlen_attn

# Takes float32 and causal masks counted from the first key. The public varlen_attn takes neither.
EFFICIENT = aten("_efficient_attention_forward")
DEVICE, MIN_CAPABILITY = "cuda", (8, 0)
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALVES)
# Pairs of tokens from which the kernels are faster than zeroed padding with a bias, without and with a gradient; below,
# the host decides. `python -m benchmarks --cuda dot`.
MIN_PAIRS = {torch.float32: (2**21, 2**24), torch.bfloat16: (2**26, 2**27), torch.float16: (2**26, 2**27)}
# Bytes that the kernels load at once, and the largest head; some GPUs have no half-precision gradient of larger ones.
ALIGNMENT, MAX_DIM, MAX_DIM_WITH_GRADIENT = 16, 256, 192
# The grid has one block row per segment, and positions are 32-bit numbers.
MAX_SEGMENTS, MAX_TOKENS = 2**16 - 1, 2**31 - 1

Pool = Callable[[Problem, bool], Tensor]
"""Attention of a problem without a mask, causal or not."""


class Line(NamedTuple):
    """The layout of a batch as one line of rows.

    rows: rows of an example: 1, or one for each head where the heads lie apart in memory.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    rows: int


def plan(problem: Problem, pool: Pool) -> Callable[[Problem], Result] | None:
    """Return the computation that does not read padding, or None if there is none or it would not be faster.

    Args:
        problem: dot products with a mask and without a bias.
        pool: computes one example on a CPU.
    """
    pair, value, mask = problem.pair, problem.value, problem.mask
    if mask is None or problem.bias is not None or not isinstance(pair, DotPair) or pair.scale <= 0:
        return None
    on_gpu = value.device.type == DEVICE
    if not on_gpu and not can_read_values(value):
        return None
    lengths, causal = key_condition(mask)
    if type(lengths) is not Lengths or lengths.lengths.shape[1:].numel() != 1 or has_empty(pair.query, pair.key, value):
        return None
    if not on_gpu:
        return _plan_examples(problem, lengths, causal, pool)
    line = _line_of(problem, causal)
    return None if line is None else partial(_run_line, line, lengths, causal)


def _plan_examples(problem: Problem, mask: Lengths, causal: bool, pool: Pool) -> Callable[[Problem], Result] | None:
    pair, value = problem.pair, problem.value
    if value.ndim < 3:
        return None
    batch = value.shape[0]
    if not pair.query.shape[0] == pair.key.shape[0] == batch:
        return None
    lengths = mask.lengths.flatten().long().clamp(0, value.shape[-2]).tolist()  # a uint8 cannot hold every bound
    if not any(lengths):
        return None  # outputs that no kernel computes would not be connected to the inputs, for autograd
    return partial(_run_examples, lengths * batch if len(lengths) == 1 else lengths, causal, pool)


def _run_examples(lengths: list[int], causal: bool, pool: Pool, problem: Problem) -> Result:
    """One call for each run of examples of the same length."""
    pair, value, outputs, start = problem.pair, problem.value, [], 0
    for length, run in groupby(lengths):
        rows = slice(start, start := start + len(list(run)))
        query, key, own = pair.query[rows], pair.key[rows, ..., :length, :], value[rows, ..., :length, :]
        if length:
            outputs.append(pool(problem._replace(pair=pair.replace(query, key), value=own), causal))
        else:
            outputs.append(value.new_zeros((*query.shape[:-1], value.shape[-1])))
    if len(outputs) == 1:
        return Result(outputs[0])
    if value.ndim < 4:
        return Result(torch.cat(outputs))
    # The kernel returns (batch, tokens, heads, dim) in memory: joined in that order nothing moves.
    return Result(torch.cat([output.transpose(-3, -2) for output in outputs]).transpose(-3, -2))


def _line_of(problem: Problem, causal: bool) -> Line | None:
    """Return the layout of the problem as a line, or None if the kernels do not take it or are not faster."""
    pair, value = problem.pair, problem.value
    query, key = pair.query, pair.key
    if query.dtype not in DTYPES or query.ndim != 4 or problem.dropout or is_traced() or not _is_enabled(query.device):
        return None
    (batch, heads, queries, dim), keys, gradient = query.shape, problem.keys, needs_grad(query, key, value)
    if key.shape != (batch, heads, keys, dim) or value.shape != key.shape:
        return None
    if not causal and batch * heads * queries * keys < MIN_PAIRS[query.dtype][gradient]:
        return None
    in_half = query.dtype in HALVES and not causal
    if dim > (MAX_DIM_WITH_GRADIENT if in_half and gradient else MAX_DIM):
        return None
    tokens = (query, key, value)
    unit = ALIGNMENT // query.element_size()
    for x in tokens:
        if not is_plain_tensor(x) or x.stride(3) != 1 or x.data_ptr() % ALIGNMENT:
            return None
        if dim % unit or any(step % unit for step in x.stride()[:3]):
            return None
    if batch == 1 or all(x.stride(0) == x.shape[2] * x.stride(2) for x in tokens):
        rows = 1
    elif all(x.is_contiguous() for x in tokens):
        rows = heads
    else:
        return None
    fits = batch * rows * max(queries, keys) <= MAX_TOKENS and 2 * batch * rows + 1 <= MAX_SEGMENTS
    return Line(batch, heads, queries, keys, rows) if fits else None


def _run_line(line: Line, mask: Lengths, causal: bool, problem: Problem) -> Result:
    """One kernel over the whole batch."""
    pair, value = problem.pair, problem.value
    assert isinstance(pair, DotPair)
    batch, heads, queries, keys, rows = line
    query, key, device = pair.query, pair.key, value.device
    in_half = query.dtype in HALVES and not causal
    gradient = needs_grad(query, key, value)
    split = in_half or gradient
    starts, edges, used = cached(mask.cache, (line, split), device, lambda: _segments(line, mask.lengths, split))
    if not in_half and gradient:
        # This kernel writes no gradient for queries without keys: where() replaces what is there by 0.
        empty = cached(mask.cache, "empty", device, lambda: mask.lengths <= 0)
        query = torch.where(empty, 0.0, query)
    if rows == 1:
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    query, key, value = (x.reshape(-1, heads // rows, x.shape[-1]) for x in (query, key, value))
    if in_half:
        output = varlen_attn(query, key, value, starts, edges, queries, keys, scale=pair.scale)
    else:
        tokens = query[None], key[None], value[None]
        sizes = starts, edges, queries, keys
        how = 0.0, int(causal), gradient
        output = EFFICIENT(*tokens, None, *sizes, *how, scale=pair.scale, seqlen_k=used)[0]
    if rows > 1:
        return Result(output.view(batch, heads, queries, -1))
    return Result(output.view(batch, queries, heads, -1).transpose(1, 2))


def _segments(line: Line, lengths: Tensor, split: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return where segments begin among queries and among keys (cu_seqlens), and how many keys of each are real.

    split: whether padding is a segment of its own. One segment for each row, of which some keys are real, is up to a
    quarter faster (`python -m benchmarks --cuda dot`), but the backward pass does not know how many are real.

    Returns:
        int32 (segments + 1), (segments + 1), and (segments) or None.
    """
    row = torch.arange(line.batch * line.rows + 1, device=lengths.device, dtype=torch.int32)
    real = lengths.long().clamp(0, line.keys).to(torch.int32).view(-1, 1).expand(line.batch, line.rows).reshape(-1)
    if not split:
        return row * line.queries, row * line.keys, real.contiguous()  # one length for all examples is expanded
    start, end = row[:-1], row[1:] * line.queries
    starts = torch.stack((end, end), 1).flatten()
    edges = torch.stack((start * line.keys + real, row[1:] * line.keys), 1).flatten()
    zero = row[:1]
    return torch.cat((zero, starts)), torch.cat((zero, edges)), None


def _is_enabled(device: torch.device) -> bool:
    """Return whether torch's fused kernels exist here and are not switched off."""
    cuda = torch.backends.cuda
    return cuda.mem_efficient_sdp_enabled() and cuda.flash_sdp_enabled() and _has_kernels(device)


@lru_cache
def _has_kernels(device: torch.device) -> bool:
    is_built = EFFICIENT is not None and torch.version.hip is None
    is_built = is_built and torch.backends.cuda.is_flash_attention_available()
    return is_built and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
