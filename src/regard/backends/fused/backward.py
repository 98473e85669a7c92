"""Which kernels differentiate a call, their launch, and the sums over axes that a tensor was shared along."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.fused import configurations as tables
from regard.backends.fused.forward import BY_PRODUCT
from regard.backends.fused.launch import Operand, bias_or, launch, place, settings_of
from regard.backends.fused.layout import Layout, columns, lay_out
from regard.backends.fused.narrow_backward import narrow_columns, narrow_rows
from regard.backends.fused.wide_backward import wide_columns, wide_rows
from regard.shapes import common_batch


class Arguments(NamedTuple):
    """What both kernels of a pair read: operands, then the rows' own tensors."""

    query: Tensor
    key: Tensor
    value: Tensor
    operands: tuple[Operand, ...]
    rows: tuple[Tensor, Tensor]


def gradients(
    results: Sequence[Tensor], tensors: Sequence[Tensor], link: str, band: Sequence[int], needs: Sequence[bool]
) -> list[Tensor]:
    """A gradient for each of query, key, width, value and perhaps bias; empty where it is not needed."""
    batch = common_batch(*tensors)
    layout = lay_out(tensors, link, batch)
    arguments = _arguments(results, layout, tensors[0].shape[-1] <= tables.NARROW_DIM)
    with torch.cuda.device_of(tensors[0]):
        query = width = key = value = bias = None
        if needs[0] or needs[2]:
            query, width = _rows(layout, arguments, link, band)
        if needs[1] or any(needs[3:]):
            key, value, bias = _columns(layout, arguments, link, band)
    found = [query, key, width, value, bias][: len(tensors)]
    return [
        _shared(grad, source, batch) if need and grad is not None else source.new_empty(0)
        for grad, source, need in zip(found, tensors, needs, strict=True)
    ]


def _arguments(results: Sequence[Tensor], layout: Layout, narrow: bool) -> Arguments:
    grad_output, grad_log_mass, output, _, statistics = results
    full = layout.outer, layout.inner
    # dO'o - dlog_mass: what the gradient of a row's scores is measured from.
    mean = (grad_output.float() * output.float()).sum(-1) - grad_log_mass
    rows = torch.cat([statistics[..., :2], mean.unsqueeze(-1)], -1)
    grad, rows = (columns(x.reshape(*full, *x.shape[-2:]), 0.0) for x in (grad_output, rows))
    query, key, value = columns(layout.query, 0.0), columns(layout.key, torch.inf), columns(layout.value, 0.0)
    operands = tuple(place(x) for x in (query, key, layout.width, value, bias_or(layout, key)))
    if not narrow or value.shape[-2] > tables.NARROW_VALUES:
        centre = layout.key.float().mean(-2, keepdim=True)
        reach = (layout.key.float() - centre).square_().sum(-1).amax(-1, keepdim=True)
        operands += place(centre), place(reach)
    return Arguments(query, key, value, operands, (grad, rows))


def _rows(layout: Layout, arguments: Arguments, link: str, band: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Gradients of query (.., .., queries, dim) and width (.., .., queries, 1) for each batch element."""
    query, key, value = arguments.query, arguments.key, arguments.value
    full, (dim, count) = (layout.outer, layout.inner), query.shape[-2:]
    grad_query, grad_width = query.new_empty(*full, dim, count), query.new_empty(*full, 1, count)
    settings = settings_of(layout, band) | {
        "query_columns": count,
        "key_columns": key.shape[-1],
        "LINK": link,
        "DIM": dim,
    }
    queries, value_dim = layout.query.shape[-2], value.shape[-2]
    if len(arguments.operands) == 5:
        tile = tables.narrow(tables.NARROW_BACKWARD, queries, layout.batch)
        blocks = tables.parts(queries, tile.queries)
        launch(
            narrow_rows, blocks * layout.batch,
            *arguments.operands, *arguments.rows, grad_query, grad_width, **settings, blocks=blocks,
            VALUE_DIM=value_dim, tile=tile,
        )  # fmt: skip
    else:
        dims, width = tables.padded(dim), tables.chunk(value_dim)
        tile = tables.by_width(tables.WIDE_ROWS, dims, width)
        blocks = tables.parts(queries, tile.queries)
        launch(
            wide_rows, blocks * layout.batch,
            *arguments.operands, *arguments.rows, grad_query, grad_width, **settings, blocks=blocks,
            DIMS=dims, VALUE_DIM=value_dim, PRODUCT=_by_product(link, dim),
            BV=width, tile=tile,
        )  # fmt: skip
    return grad_query[..., :queries].mT, grad_width[..., :queries].mT


def _columns(layout: Layout, arguments: Arguments, link: str, band: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of key, value (.., .., keys, dim) and bias (.., .., 1, keys) for each batch element."""
    query, key, value = arguments.query, arguments.key, arguments.value
    full, (dim, count), value_dim = (layout.outer, layout.inner), key.shape[-2:], value.shape[-2]
    grad_key, grad_value = key.new_empty(*full, dim, count), key.new_empty(*full, value_dim, count)
    grad_bias = key.new_empty(*full, 1, count)
    settings = settings_of(layout, band) | {
        "query_columns": query.shape[-1],
        "key_columns": count,
        "LINK": link,
        "DIM": dim,
    }
    keys = layout.key.shape[-2]
    if len(arguments.operands) == 5:
        tile = tables.narrow(tables.NARROW_BACKWARD, keys, layout.batch)
        blocks = tables.parts(keys, tile.queries)
        # A thread for each key: the sides of the tile change places.
        launch(
            narrow_columns, blocks * layout.batch,
            *arguments.operands, *arguments.rows, grad_key, grad_value, grad_bias, **settings, blocks=blocks,
            VALUE_DIM=value_dim, tile=tile._replace(queries=tile.keys, keys=tile.queries),
        )  # fmt: skip
    else:
        dims, width = tables.padded(dim), tables.chunk(value_dim)
        tile = tables.by_width(tables.WIDE_COLUMNS, dims, width)
        blocks, chunks = tables.parts(keys, tile.keys), tables.parts(value_dim, width)
        launch(
            wide_columns, blocks * chunks * layout.batch,
            *arguments.operands, *arguments.rows, grad_key, grad_value, grad_bias, **settings, blocks=blocks,
            chunks=chunks, DIMS=dims, VALUE_DIM=value_dim, PRODUCT=_by_product(link, dim),
            BV=width, tile=tile,
        )  # fmt: skip
    return grad_key[..., :keys].mT, grad_value[..., :keys].mT, grad_bias[..., :keys]


def _by_product(link: str, dim: int) -> bool:
    return link in BY_PRODUCT and dim > tables.NARROW_DIM


def _shared(grad: Tensor, source: Tensor, batch: Sequence[int]) -> Tensor:
    """A gradient (outer, inner, rows, columns) as one of its source, summed over the axes on which that has size 1."""
    grad = grad.reshape(*batch, *grad.shape[-2:])
    return (grad if grad.shape == source.shape else grad.sum_to_size(source.shape)).to(source.dtype).contiguous()
