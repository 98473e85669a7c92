"""The record of a multi-head pooling: what the layer gave, and what each head gave before they were joined."""

from dataclasses import dataclass, field

import torch

from regard.pooling import Attended


@dataclass(frozen=True, eq=False, repr=False)
class MultiHeadAttended(Attended):
    """What a multi-head layer gave: output (*batch, queries, output_dim), and everything else per head.

    log_mass is (*batch, heads, queries), weights are (*batch, heads, queries, keys), and so on.
    heads: the heads' own pooling, h_j of eq. 14, an `Attended` whose output is (*batch, heads, queries,
        value_head_dim). That is what can be merged over sets of keys; `layer.join` makes it an output.
    """

    heads: Attended = field(default_factory=lambda: Attended(torch.empty(0), torch.empty(0)))

    def __repr__(self) -> str:
        """Shapes, not numbers."""
        heads = tuple(self.heads.output.shape)
        return f"MultiHeadAttended(output={tuple(self.output.shape)}, heads={heads})"
