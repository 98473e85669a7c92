"""Which kernels pool a call, and their launch; no step waits for the GPU."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.fused import configurations as tables
from regard.backends.fused.exact import exact_forward
from regard.backends.fused.launch import bias_or, launch, operand, place, settings_of, single
from regard.backends.fused.layout import Layout, columns, lay_out, shift_of
from regard.backends.fused.narrow import narrow_forward
from regard.backends.fused.product import product_forward, split_tokens
from regard.checks import common_batch

# Links that are 0 beyond a width: nothing of theirs is ever too small for float32, unless a bias makes it so.
COMPACT = ("boxcar", "triangular", "epanechnikov", "biweight", "tricube", "cosine_kernel")
# Links for which products of tokens are good enough: a Laplacian near 0 would take the root of their rounding.
BY_PRODUCT = ("gaussian", "squared_distance")


class Results(NamedTuple):
    """What the kernels write: (*batch, queries, value_dim), (*batch, queries), (*batch, queries, 3), in float32."""

    output: Tensor
    log_mass: Tensor
    statistics: Tensor


def pool(tensors: Sequence[Tensor], link: str, band: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Output in value's dtype, log_mass, and peak, inverse mass and mark of each row (*batch, queries, 3)."""
    query, value = tensors[0], tensors[3]
    batch, queries, dim, value_dim = common_batch(*tensors), query.shape[-2], query.shape[-1], value.shape[-1]
    layout = lay_out(tensors, link, batch)
    results = Results(
        single(query, *batch, queries, value_dim), single(query, *batch, queries), single(query, *batch, queries, 3)
    )
    with torch.cuda.device_of(query):
        if dim <= tables.NARROW_DIM and value_dim <= tables.NARROW_VALUES:
            _narrow(layout, results, link, band)
            if link not in COMPACT or layout.bias is not None:
                _exact(layout, results, link, band, marked=True)
        elif link in BY_PRODUCT and dim > tables.NARROW_DIM:
            _product(layout, results, link, band)
            _exact(layout, results, link, band, marked=True)
        else:
            _exact(layout, results, link, band, marked=False)
    output, log_mass, statistics = results
    if len(tensors) > 4:
        log_mass = log_mass + shift_of(tensors[4].float()).squeeze(-1)
    return output.to(value.dtype), log_mass, statistics


def _narrow(layout: Layout, results: Results, link: str, band: Sequence[int]) -> None:
    key, value = columns(layout.key, torch.inf), columns(layout.value, 0.0)
    queries = layout.query.shape[-2]
    tile = tables.narrow(tables.NARROW, queries, layout.batch)
    blocks = tables.parts(queries, tile.queries)
    launch(
        narrow_forward, blocks * layout.batch,
        operand(layout.query), place(key), place(layout.width), place(value), place(bias_or(layout, key)),
        *results, **settings_of(layout, band), key_columns=key.shape[-1], blocks=blocks,
        DIM=key.shape[-2], VALUE_DIM=value.shape[-2], LINK=link, COMPACT=link in COMPACT, tile=tile,
    )  # fmt: skip


def _exact(layout: Layout, results: Results, link: str, band: Sequence[int], *, marked: bool) -> None:
    query, key, value = layout.query, layout.key, layout.value
    if not marked:  # for all rows it pays to have every dimension's tokens side by side
        query, key, value = columns(query, 0.0).mT, columns(key, 0.0).mT, columns(value, 0.0).mT
    tile, width = tables.EXACT, tables.chunk(value.shape[-1])
    blocks, chunks = tables.parts(layout.query.shape[-2], tile.queries), tables.parts(value.shape[-1], width)
    launch(
        exact_forward, blocks * chunks * layout.batch,
        operand(query), operand(key), place(layout.width), operand(value), place(bias_or(layout, key)), *results,
        **settings_of(layout, band), blocks=blocks, chunks=chunks,
        DIM=query.shape[-1], VALUE_DIM=value.shape[-1], LINK=link, MARKED=marked, BV=width,
        tile=tile,
    )  # fmt: skip


def _product(layout: Layout, results: Results, link: str, band: Sequence[int]) -> None:
    key, value = layout.key.contiguous(), layout.value.contiguous()
    (keys, dim), value_dim = key.shape[-2:], value.shape[-1]
    dims, value_dims, width = tables.padded(dim), tables.padded(value_dim), tables.chunk(value_dim)
    count = tables.columns_for(keys)
    size = tables.split_at_once(max(dims, value_dims))
    key_blocks = count // size
    outer, inner = key.shape[:2]
    key_parts, squares = single(key, outer, inner, 2, count, dims), single(key, outer, inner, count)
    frame = single(key, outer, inner, dims + key_blocks)
    value_parts = single(value, *value.shape[:2], 2, value_dims, count)
    of_keys, of_values = (x.shape[0] * x.shape[1] * key_blocks for x in (key, value))
    launch(
        split_tokens, of_keys + of_values, key, value, key_parts, value_parts, squares, frame,
        count=keys, columns=count, blocks=key_blocks, chunks=of_keys,
        DIM=dim, DIMS=dims, VALUE_DIM=value_dim, VALUE_DIMS=value_dims, tile=tables.Tile(1, size, 4),
    )  # fmt: skip
    tile = tables.by_width(tables.PRODUCT, dims, width)
    blocks, chunks = tables.parts(layout.query.shape[-2], tile.queries), tables.parts(value_dim, width)
    launch(
        product_forward, blocks * chunks * layout.batch,
        operand(layout.query), place(key_parts), place(squares), place(frame), place(layout.width),
        place(value_parts), place(bias_or(layout, squares)), *results,
        **settings_of(layout, band), key_columns=count, key_blocks=key_blocks, blocks=blocks, chunks=chunks,
        DIM=dim, DIMS=dims, VALUE_DIM=value_dim, VALUE_DIMS=value_dims, LINK=link, BV=width, tile=tile,
    )  # fmt: skip
