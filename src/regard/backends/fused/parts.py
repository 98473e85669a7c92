"""Numbers in two parts of 11 bits, and products of them by matrix units that know TF32 alone.

A number is split into the nearest one of 11 bits and its rest; of the four products of parts the least is left out:
what is lost is 2^-22 of the product of two numbers. Tokens in parts lie row by row, (2, columns, width), and for sums
over tokens across, (2, width, columns): a matrix unit wants the numbers that it sums over side by side.
"""
# ruff: noqa: N803 - Triton's dialect: capital constants, tuples by +, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.fused.tiles import row_of


@triton.jit
def split(number):
    """The nearest number of 11 bits, and the rest, of which the products see 11 bits too."""
    bits = number.to(tl.int32, bitcast=True)
    head = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return head, number - head


@triton.jit
def product_of_parts(left, left_rest, right, right_rest):
    """The product of left (a, x) and the transpose of right (b, x): the small products first, which lose least then.

    A tile's own sum, to be added to a long one: the matrix units cut off what an addition cannot hold, so that over
    thousands of tokens a sum would drift.
    """
    total = tl.dot(left_rest, right.T, input_precision="tf32")
    total = tl.dot(left, right_rest.T, acc=total, input_precision="tf32")
    return tl.dot(left, right.T, acc=total, input_precision="tf32")


@triton.jit
def load_rows(parts, t, x, columns, WIDTH: tl.constexpr):
    """And parts (tokens, numbers) of the tokens t."""
    place = parts + row_of(0, t, WIDTH)[:, None] + x[None, :]
    return tl.load(place), tl.load(place + row_of(0, columns, WIDTH))


@triton.jit
def load_across(parts, t, x, columns, WIDTH: tl.constexpr):
    """And parts (numbers, tokens) of the tokens t."""
    place = parts + row_of(0, x, columns)[:, None] + t[None, :]
    return tl.load(place), tl.load(place + row_of(0, columns, WIDTH))


@triton.jit
def load_tokens(tokens, t, x, count, DIM: tl.constexpr):
    """Tokens (tokens, numbers) as they came, in float32, 0 beyond the last token and number.

    tokens: the pointer of a batch element, the strides of tokens and of numbers.
    """
    place = tokens[0] + t.to(tl.int64)[:, None] * tokens[1] + x.to(tl.int64)[None, :] * tokens[2]
    return tl.load(place, mask=(t < count)[:, None] & (x < DIM)[None, :], other=0.0).to(tl.float32)


@triton.jit
def store_parts(tile, rows, across, batch, t, x, columns, WIDTH: tl.constexpr, ACROSS: tl.constexpr):
    """Split tokens (tokens, numbers) of a batch element, and store them row by row, and perhaps across."""
    head, rest = split(tile)
    to = row_of(rows, batch * 2 * columns + t, WIDTH)[:, None] + x[None, :]
    tl.store(to, head)
    tl.store(to + row_of(0, columns, WIDTH), rest)
    if ACROSS:
        to = row_of(across, batch * 2 * WIDTH + x, columns)[None, :] + t[:, None]
        tl.store(to, head)
        tl.store(to + row_of(0, columns, WIDTH), rest)
