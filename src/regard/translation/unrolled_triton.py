"""The four operations of a decoder step as Triton kernels, for a GPU; `unrolled` states what they compute.

Attention runs one program for each row of the batch, the gated unit one for each block of a row's state.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# ruff: noqa: N803 - constants of a kernel are spelt as Triton's users spell them


# The size of a tile of keys x hidden: a larger one would not stay in registers.
TILE = 4096
BLOCK = 256


def attend(
    query: Tensor, key: Tensor, weight: Tensor, bias: Tensor, value: Tensor, alpha: Tensor, context: Tensor
) -> None:
    """Compute `unrolled.attend`."""
    rows, keys, hidden = key.shape
    sizes = (keys, hidden, value.shape[-1])
    tensors = (query, query.stride(0), key, weight, bias, value, context, alpha)
    _launch(_attend, (rows,), *tensors, *sizes, **_blocks(keys))


def attend_backward(
    d_context: Tensor,
    alpha: Tensor,
    query: Tensor,
    key: Tensor,
    weight: Tensor,
    value: Tensor,
    d_query: Tensor,
    d_key: Tensor,
    d_weight: Tensor,
) -> None:
    """Compute `unrolled.attend_backward`."""
    rows, keys, hidden = key.shape
    sizes = (keys, hidden, value.shape[-1])
    read = (d_context, alpha, query, query.stride(0), key, weight, value)
    written = (d_query, d_query.stride(0), d_key, d_weight)
    _launch(_attend_backward, (rows,), *read, *written, *sizes, **_blocks(keys))


def gru(input_gates: Tensor, context_gates: Tensor | None, recurrent: Tensor, state: Tensor, out: Tensor) -> Tensor:
    """Compute `unrolled.gru`."""
    rows, size = state.shape
    saved = torch.empty((4, rows, size), dtype=state.dtype, device=state.device)
    second = input_gates if context_gates is None else context_gates
    tensors = (input_gates, input_gates.stride(0), second, recurrent, recurrent.stride(0), state, out, saved)
    _launch(_gru, (rows, -(-size // BLOCK)), *tensors, rows, size, HAS_CONTEXT=context_gates is not None, BLOCK=BLOCK)
    return saved


def gru_backward(
    d_out: Tensor, saved: Tensor, state: Tensor, d_gates: Tensor, d_recurrent: Tensor, d_direct: Tensor
) -> None:
    """Compute `unrolled.gru_backward`."""
    rows, size = state.shape
    tensors = (d_out, saved, state, d_gates, d_recurrent, d_recurrent.stride(0), d_direct)
    _launch(_gru_backward, (rows, -(-size // BLOCK)), *tensors, rows, size, BLOCK=BLOCK)


def _launch(kernel: Any, programs: tuple[int, ...], *arguments: Tensor | int, **constants: int) -> None:
    kernel[programs](*arguments, **constants)


def _blocks(keys: int) -> dict[str, int]:
    block = max(16, 1 << (keys - 1).bit_length())
    return {"BK": block, "BH": max(8, TILE // block)}


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _attend(
    query, query_stride, key, weight, bias, value, context, alpha, keys, hidden, dim, BK: tl.constexpr, BH: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BK)
    real = k < keys
    scores = tl.zeros([BK], tl.float32)
    for start in range(0, hidden, BH):
        h = start + tl.arange(0, BH)
        inside = h < hidden
        q = tl.load(query + row * query_stride + h, mask=inside, other=0.0)
        w = tl.load(weight + h, mask=inside, other=0.0)
        tile = tl.load(key + (row * keys + k[:, None]) * hidden + h, mask=real[:, None] & inside, other=0.0)
        scores += tl.sum(_tanh(q[None, :] + tile) * w[None, :], 1)
    scores += tl.load(bias + row * keys + k, mask=real, other=float("-inf"))
    mass = tl.exp(scores - tl.max(scores, 0))
    weights = mass / tl.sum(mass, 0)
    tl.store(alpha + row * keys + k, weights, mask=real)
    for start in range(0, dim, BH):
        d = start + tl.arange(0, BH)
        inside = d < dim
        tile = tl.load(value + (row * keys + k[:, None]) * dim + d, mask=real[:, None] & inside, other=0.0)
        tl.store(context + row * dim + d, tl.sum(weights[:, None] * tile, 0), mask=inside)


@triton.jit
def _attend_backward(
    d_context,
    alpha,
    query,
    query_stride,
    key,
    weight,
    value,
    d_query,
    d_query_stride,
    d_key,
    d_weight,
    keys,
    hidden,
    dim,
    BK: tl.constexpr,
    BH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BK)
    real = k < keys
    weights = tl.load(alpha + row * keys + k, mask=real, other=0.0)
    d_alpha = tl.zeros([BK], tl.float32)
    for start in range(0, dim, BH):
        d = start + tl.arange(0, BH)
        inside = d < dim
        tile = tl.load(value + (row * keys + k[:, None]) * dim + d, mask=real[:, None] & inside, other=0.0)
        d_c = tl.load(d_context + row * dim + d, mask=inside, other=0.0)
        d_alpha += tl.sum(tile * d_c[None, :], 1)
    d_scores = weights * (d_alpha - tl.sum(weights * d_alpha, 0))
    for start in range(0, hidden, BH):
        h = start + tl.arange(0, BH)
        inside = h < hidden
        both = real[:, None] & inside
        q = tl.load(query + row * query_stride + h, mask=inside, other=0.0)
        w = tl.load(weight + h, mask=inside, other=0.0)
        places = (row * keys + k[:, None]) * hidden + h
        t = _tanh(q[None, :] + tl.load(key + places, mask=both, other=0.0))
        inner = (1.0 - t * t) * w[None, :] * d_scores[:, None]
        tl.store(d_query + row * d_query_stride + h, tl.sum(inner, 0), mask=inside)
        tl.store(d_key + places, tl.load(d_key + places, mask=both, other=0.0) + inner, mask=both)
        d_w = d_weight + row * hidden + h
        tl.store(d_w, tl.load(d_w, mask=inside, other=0.0) + tl.sum(t * d_scores[:, None], 0), mask=inside)


@triton.jit
def _gru(
    input_gates,
    gates_stride,
    context_gates,
    recurrent,
    recurrent_stride,
    state,
    out,
    saved,
    rows,
    size,
    HAS_CONTEXT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    x, h = input_gates + row * gates_stride + i, recurrent + row * recurrent_stride + i
    reset_in, update_in = tl.load(x, mask=inside), tl.load(x + size, mask=inside)
    new_in = tl.load(x + 2 * size, mask=inside)
    if HAS_CONTEXT:
        c = context_gates + row * 3 * size + i
        reset_in += tl.load(c, mask=inside)
        update_in += tl.load(c + size, mask=inside)
        new_in += tl.load(c + 2 * size, mask=inside)
    reset = tl.sigmoid(reset_in + tl.load(h, mask=inside))
    update = tl.sigmoid(update_in + tl.load(h + size, mask=inside))
    new_h = tl.load(h + 2 * size, mask=inside)
    new = _tanh(new_in + reset * new_h)
    place = row * size + i
    before = tl.load(state + place, mask=inside)
    tl.store(out + place, new + update * (before - new), mask=inside)
    plane = rows * size
    tl.store(saved + place, reset, mask=inside)
    tl.store(saved + plane + place, update, mask=inside)
    tl.store(saved + 2 * plane + place, new, mask=inside)
    tl.store(saved + 3 * plane + place, new_h, mask=inside)


@triton.jit
def _gru_backward(
    d_out, saved, state, d_gates, d_recurrent, d_recurrent_stride, d_direct, rows, size, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    place = row * size + i
    plane = rows * size
    d_o = tl.load(d_out + place, mask=inside)
    reset = tl.load(saved + place, mask=inside)
    update = tl.load(saved + plane + place, mask=inside)
    new = tl.load(saved + 2 * plane + place, mask=inside)
    new_h = tl.load(saved + 3 * plane + place, mask=inside)
    d_new = d_o * (1.0 - update) * (1.0 - new * new)
    d_reset = d_new * new_h * reset * (1.0 - reset)
    d_update = d_o * (tl.load(state + place, mask=inside) - new) * update * (1.0 - update)
    x, h = d_gates + row * 3 * size + i, d_recurrent + row * d_recurrent_stride + i
    tl.store(x, d_reset, mask=inside)
    tl.store(x + size, d_update, mask=inside)
    tl.store(x + 2 * size, d_new, mask=inside)
    tl.store(h, d_reset, mask=inside)
    tl.store(h + size, d_update, mask=inside)
    tl.store(h + 2 * size, d_new * reset, mask=inside)
    tl.store(d_direct + place, d_o * update, mask=inside)
