"""The launch of the backward kernels for many dimensions or values: tokens in parts, then rows and columns."""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.fused import configurations as tables
from regard.backends.fused.launch import bias_or, launch, operand, place, single
from regard.backends.fused.layout import columns
from regard.backends.fused.product_backward import product_columns, product_rows
from regard.backends.fused.split_backward import split_cotangents, split_keys, split_queries, split_values
from regard.backends.fused.to_differentiate import Given
from regard.backends.fused.wide_backward import wide_columns, wide_rows


class Values(NamedTuple):
    """Values and the gradients of outputs in parts, and what rows have of their own, (outer, inner, 3, columns)."""

    value: Tensor
    grad: Tensor
    grad_across: Tensor
    own: Tensor

    @classmethod
    def of(cls, given: Given) -> "Values":
        """One kernel each."""
        layout, width = given.layout, tables.chunk_backward(given.value_dim)
        numbers = tables.parts(given.value_dim, width) * width
        tile = tables.Tile(width, tables.split_at_once(width), 4)
        outer, inner, keys, _ = layout.value.shape
        value = single(layout.value, outer, inner, 2, given.key_columns, numbers)
        blocks = given.key_columns // tile.keys
        launch(
            split_values, outer * inner * blocks, operand(layout.value), value,
            inner=inner, count=keys, columns=given.key_columns, blocks=blocks,
            DIM=given.value_dim, WIDTH=numbers, tile=tile,
        )  # fmt: skip
        count, blocks = given.query_columns, given.query_columns // tile.keys
        grad = single(value, layout.outer, layout.inner, 2, count, numbers)
        across, own = single(value, layout.outer, layout.inner, 2, numbers, count), given.of_queries(3)
        launch(
            split_cotangents, layout.batch * blocks,
            operand(given.grad_output), operand(given.output), operand(given.grad_log_mass),
            given.statistics.contiguous(), grad, across, own,
            inner=layout.inner, count=given.output.shape[-2], columns=count, blocks=blocks,
            DIM=given.value_dim, WIDTH=numbers, tile=tile,
        )  # fmt: skip
        return cls(value, grad, across, own)


class Centred(NamedTuple):
    """Queries and keys about the centre of the keys, in parts, with their squares; far: flags of blocks of queries."""

    query: Tensor
    query_across: Tensor
    query_squares: Tensor
    far: Tensor
    key: Tensor
    key_across: Tensor
    key_squares: Tensor

    @classmethod
    def of(cls, given: Given) -> "Centred":
        """One kernel each."""
        layout, dims = given.layout, tables.padded(given.dim)
        tile = tables.Tile(1, tables.split_at_once(dims), 4)
        outer, inner, keys, _ = layout.key.shape
        count, key_blocks = given.key_columns, given.key_columns // tile.keys
        key, key_across, key_squares = _parts(layout.key, outer, inner, count, dims)
        frame = single(key, outer, inner, dims + key_blocks)
        launch(
            split_keys, outer * inner * key_blocks, operand(layout.key), key, key_across, key_squares, frame,
            inner=inner, count=keys, columns=count, blocks=key_blocks, DIM=given.dim, DIMS=dims, tile=tile,
        )  # fmt: skip
        # A query has a centre for each batch element that its keys differ in, and widths may make more of them far.
        outer, inner = (max(x.shape[axis] for x in (layout.query, layout.key, layout.width)) for axis in (0, 1))
        count, blocks = given.query_columns, given.query_columns // tile.keys
        query, query_across, query_squares = _parts(layout.query, outer, inner, count, dims)
        far = key.new_empty(outer, inner, blocks, dtype=torch.int32)
        launch(
            split_queries, outer * inner * blocks, operand(layout.query), place(layout.width), place(frame),
            query, query_across, query_squares, far,
            inner=inner, count=layout.query.shape[-2], columns=count, blocks=blocks, key_blocks=key_blocks,
            DIM=given.dim, DIMS=dims, LINK=given.link, PER_QUERY=layout.width.shape[-1] > 1, tile=tile,
        )  # fmt: skip
        return cls(query, query_across, query_squares, far, key, key_across, key_squares)


class WideLaunch(NamedTuple):
    """The kernels whose distances are differences; centred: where only queries that are far are wanted."""

    given: Given
    values: Values
    query: Tensor
    key: Tensor
    centred: Centred | None

    @classmethod
    def of(cls, given: Given) -> "WideLaunch":
        """For all queries it pays to have every dimension's tokens side by side."""
        query, key = (columns(x, 0.0)[..., : x.shape[-2]].mT for x in (given.layout.query, given.layout.key))
        return cls(given, Values.of(given), query, key, None)

    def rows(self, found: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Gradients of query (.., .., queries, dim) and width (.., .., queries, 1) for each batch element.

        found: those of queries that are not wanted, as columns.
        """
        given, layout, values = self.given, self.given.layout, self.values
        grad_query, grad_width = found or (given.of_queries(given.dim), given.of_queries(1))
        dims, width = tables.padded(given.dim), tables.chunk_backward(given.value_dim)
        tile, queries = tables.by_width(tables.WIDE_ROWS, dims, width), layout.query.shape[-2]
        blocks = tables.parts(queries, tile.queries)
        squares = values.own if self.centred is None else self.centred.query_squares
        launch(
            wide_rows, blocks * layout.batch, operand(self.query), operand(self.key),
            *(place(x) for x in (layout.width, bias_or(layout, values.own), values.value, values.grad, squares)),
            values.own, grad_query, grad_width, **given.settings, blocks=blocks,
            DIMS=dims, VALUE_DIMS=values.value.shape[-1], MARKED=self.centred is not None, BV=width, tile=tile,
        )  # fmt: skip
        return grad_query[..., :queries].mT, grad_width[..., :queries].mT

    def columns(self, found: tuple[Tensor, Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of key, value (.., .., keys, dim) and bias (.., .., 1, keys) for each batch element.

        found: what queries that are not wanted give to them, as columns.
        """
        given, layout, values = self.given, self.given.layout, self.values
        grad_key, grad_value, grad_bias = found or _of_keys(given)
        dims, width = tables.padded(given.dim), tables.chunk_backward(given.value_dim)
        tile, keys = tables.by_width(tables.WIDE_COLUMNS, dims, width), layout.key.shape[-2]
        blocks, chunks = tables.parts(keys, tile.keys), tables.parts(given.value_dim, width)
        own, centred = values.own, self.centred
        squares, far = (own, own) if centred is None else (centred.query_squares, centred.far)
        tensors = layout.width, bias_or(layout, own), values.value, values.grad, values.grad_across, squares, far
        launch(
            wide_columns, blocks * chunks * layout.batch, operand(self.query), operand(self.key),
            *(place(x) for x in tensors), own, grad_key, grad_value, grad_bias,
            **given.settings, blocks=blocks, chunks=chunks, far_blocks=far.shape[-1],
            DIMS=dims, VALUE_DIM=given.value_dim, VALUE_DIMS=values.value.shape[-1], MARKED=centred is not None,
            BV=width, tile=tile,
        )  # fmt: skip
        return grad_key[..., :keys].mT, grad_value[..., :keys].mT, grad_bias[..., :keys]


class ProductLaunch(NamedTuple):
    """The kernels whose distances are products, and then the others for queries that are too far."""

    given: Given
    values: Values
    centred: Centred

    @classmethod
    def of(cls, given: Given) -> "ProductLaunch":
        """Tokens are split, and nothing else is copied."""
        return cls(given, Values.of(given), Centred.of(given))

    def rows(self) -> tuple[Tensor, Tensor]:
        """As of `WideLaunch`."""
        given, layout, values, centred = self.given, self.given.layout, self.values, self.centred
        found = given.of_queries(given.dim), given.of_queries(1)
        dims, width = tables.padded(given.dim), tables.chunk_backward(given.value_dim)
        tile = tables.by_width(tables.PRODUCT_ROWS, dims, width)
        blocks = tables.parts(layout.query.shape[-2], tile.queries)
        tokens = centred.query, centred.query_squares, centred.key, centred.key_across, centred.key_squares
        tensors = *tokens, layout.width, bias_or(layout, values.own), values.value, values.grad
        launch(
            product_rows, blocks * layout.batch, *(place(x) for x in tensors), values.own, *found,
            **given.settings, blocks=blocks,
            DIMS=dims, VALUE_DIMS=values.value.shape[-1], BV=width, tile=tile,
        )  # fmt: skip
        return self._beyond().rows(found)

    def columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """As of `WideLaunch`."""
        given, layout, values, centred = self.given, self.given.layout, self.values, self.centred
        found = _of_keys(given)
        dims, width = tables.padded(given.dim), tables.chunk_backward(given.value_dim)
        tile = tables.by_width(tables.PRODUCT_COLUMNS, dims, width)
        blocks, chunks = tables.parts(layout.key.shape[-2], tile.keys), tables.parts(given.value_dim, width)
        tokens = centred.query, centred.query_across, centred.query_squares, centred.key, centred.key_squares
        rest = layout.width, bias_or(layout, values.own), values.value, values.grad, values.grad_across
        launch(
            product_columns, blocks * chunks * layout.batch, *(place(x) for x in (*tokens, *rest)), values.own, *found,
            **given.settings, blocks=blocks, chunks=chunks,
            DIMS=dims, VALUE_DIM=given.value_dim, VALUE_DIMS=values.value.shape[-1], BV=width, tile=tile,
        )  # fmt: skip
        return self._beyond().columns(found)

    def _beyond(self) -> WideLaunch:
        layout = self.given.layout
        return WideLaunch(self.given, self.values, layout.query, layout.key, self.centred)


def _of_keys(given: Given) -> tuple[Tensor, Tensor, Tensor]:
    return given.of_keys(given.dim), given.of_keys(given.value_dim), given.of_keys(1)


def _parts(like: Tensor, outer: int, inner: int, count: int, dims: int) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for tokens in parts, the same across, and squares."""
    rows, across = single(like, outer, inner, 2, count, dims), single(like, outer, inner, 2, dims, count)
    return rows, across, single(like, outer, inner, count)
