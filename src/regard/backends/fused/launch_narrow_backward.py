"""The launch of the backward kernels for few dimensions and few values: tokens as columns, then rows and columns."""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.fused import configurations as tables
from regard.backends.fused.launch import Operand, bias_or, launch, place
from regard.backends.fused.layout import columns
from regard.backends.fused.narrow_backward import narrow_columns, narrow_rows
from regard.backends.fused.to_differentiate import Given


class NarrowLaunch(NamedTuple):
    """operands: what both kernels read of tokens. of_rows: gradients of outputs, and what rows have of their own."""

    given: Given
    operands: tuple[Operand, ...]
    of_rows: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, given: Given) -> "NarrowLaunch":
        """Everything becomes columns."""
        layout = given.layout
        query, key, value = columns(layout.query, 0.0), columns(layout.key, torch.inf), columns(layout.value, 0.0)
        operands = tuple(place(x) for x in (query, key, layout.width, value, bias_or(layout, key)))
        # dO'o - dlog_mass: what the gradient of a row's scores is measured from.
        mean = (given.grad_output.float() * given.output.float()).sum(-1, keepdim=True) - given.grad_log_mass
        own = torch.cat([given.statistics[..., :2], mean], -1)
        return cls(given, operands, (columns(given.grad_output, 0.0), columns(own, 0.0)))

    def rows(self) -> tuple[Tensor, Tensor]:
        """Gradients of query (.., .., queries, dim) and width (.., .., queries, 1) for each batch element."""
        given, layout = self.given, self.given.layout
        grad_query, grad_width = given.of_queries(given.dim), given.of_queries(1)
        queries = layout.query.shape[-2]
        tile = tables.narrow(tables.NARROW_BACKWARD, queries, layout.batch)
        blocks = tables.parts(queries, tile.queries)
        launch(
            narrow_rows, blocks * layout.batch,
            *self.operands, *self.of_rows, grad_query, grad_width, **given.settings, blocks=blocks,
            VALUE_DIM=given.value_dim, tile=tile,
        )  # fmt: skip
        return grad_query[..., :queries].mT, grad_width[..., :queries].mT

    def columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of key, value (.., .., keys, dim) and bias (.., .., 1, keys) for each batch element."""
        given, layout = self.given, self.given.layout
        grad_key, grad_value, grad_bias = (given.of_keys(numbers) for numbers in (given.dim, given.value_dim, 1))
        keys = layout.key.shape[-2]
        tile = tables.narrow(tables.NARROW_BACKWARD, keys, layout.batch)
        blocks = tables.parts(keys, tile.queries)
        # A thread for each key: the sides of the tile change places.
        launch(
            narrow_columns, blocks * layout.batch,
            *self.operands, *self.of_rows, grad_key, grad_value, grad_bias, **given.settings, blocks=blocks,
            VALUE_DIM=given.value_dim, tile=tile._replace(queries=tile.keys, keys=tile.queries),
        )  # fmt: skip
        return grad_key[..., :keys].mT, grad_value[..., :keys].mT, grad_bias[..., :keys]
