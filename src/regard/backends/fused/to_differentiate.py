"""A call to be differentiated: what the launches of all backward kernels are made from."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from regard.backends.fused.configurations import columns_for
from regard.backends.fused.launch import settings_of, single
from regard.backends.fused.layout import Layout


class Given(NamedTuple):
    """grad_output, output: (outer, inner, queries, value_dim); grad_log_mass: (outer, inner, queries, 1).

    statistics: peak, inverse mass and mark of each row, (outer, inner, queries, 3).
    """

    layout: Layout
    link: str
    band: Sequence[int]
    grad_output: Tensor
    grad_log_mass: Tensor
    output: Tensor
    statistics: Tensor

    @classmethod
    def of(cls, results: Sequence[Tensor], layout: Layout, link: str, band: Sequence[int]) -> "Given":
        """results: the gradients of output and log_mass, then output, log_mass and the statistics."""
        grad_output, grad_log_mass, output, _, statistics = results
        rows = grad_output, grad_log_mass.unsqueeze(-1), output, statistics
        return cls(layout, link, band, *(x.reshape(layout.outer, layout.inner, *x.shape[-2:]) for x in rows))

    @property
    def dim(self) -> int:
        """The size of a query and of a key."""
        return self.layout.query.shape[-1]

    @property
    def value_dim(self) -> int:
        """The size of a value."""
        return self.layout.value.shape[-1]

    @property
    def query_columns(self) -> int:
        """The number of queries, padded to a multiple of every tile."""
        return columns_for(self.layout.query.shape[-2])

    @property
    def key_columns(self) -> int:
        """The number of keys, likewise."""
        return columns_for(self.layout.key.shape[-2])

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that every kernel has."""
        own = {"query_columns": self.query_columns, "key_columns": self.key_columns}
        return settings_of(self.layout, self.band) | own | {"LINK": self.link, "DIM": self.dim}

    def of_queries(self, numbers: int) -> Tensor:
        """Memory for numbers of each query, (outer, inner, numbers, columns)."""
        return self._empty(numbers, self.query_columns)

    def of_keys(self, numbers: int) -> Tensor:
        """Memory for numbers of each key."""
        return self._empty(numbers, self.key_columns)

    def _empty(self, numbers: int, columns: int) -> Tensor:
        layout = self.layout
        return single(layout.query, layout.outer, layout.inner, numbers, columns)
