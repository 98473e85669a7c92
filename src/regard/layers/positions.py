"""Positions as a bias of the scores: ALiBi's straight lines."""

import torch
from torch import Tensor, nn

from regard.shapes import check_int


class Alibi(nn.Module):
    """-slope * |query position - key position|, a slope for each head (Press et al. 2022).

    A callable bias: `attend(..., bias=Alibi(heads))` with heads as the last batch axis, or
    `MultiHeadAttention(dim, heads, position_bias=Alibi(heads))`. Slopes are 2^(-8 i / heads); where heads are no power
    of two, those of the next smaller power come first, then every other one of its double.

    >>> Alibi(4)(torch.tensor([2]), torch.arange(3))[0]
    tensor([[-0.5000, -0.2500, -0.0000]])
    """

    def __init__(self, heads: int) -> None:
        """Nothing to learn: the slopes follow from the number of heads."""
        super().__init__()
        check_int("heads", heads)
        self.heads = heads

    def slopes(self, device: torch.device | None = None) -> Tensor:
        """The slope of each head, float32 (heads,).

        Computed where it is asked for: a buffer would be rounded when a layer is moved to half precision.
        """
        power = 2 ** (self.heads.bit_length() - 1)
        number = torch.arange(1, self.heads + 1, device=device, dtype=torch.float32)
        exponent = torch.where(number <= power, number, number - power - 0.5) * (-8 / power)
        return torch.exp2(exponent)

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """The tile (heads, queries, keys)."""
        distance = (query_positions.unsqueeze(-1) - key_positions).abs()
        return distance * -self.slopes(distance.device)[:, None, None]

    def extra_repr(self) -> str:
        """Show the heads."""
        return f"heads={self.heads}"
