"""Positions of tokens: rotary positions, which are a score, and ALiBi, which is a bias."""

import torch
from torch import Tensor, nn

from regard.checks import check_int
from regard.errors import RegardError
from regard.scores.base import PairScore, Score
from regard.scores.names import score_by_name


class Rotary(Score):
    """Any score over rotated queries and keys, so that dot products depend on relative positions only.

    Entries i and i + dim/2 of a token at position p are turned as a plane by the angle p * base^(-2i/dim),
    the layout of Llama and its kin. Positions enter through prepare: backends never hear of them.
    """

    def __init__(self, score: str | Score = "scaled_dot", *, base: float = 10_000.0) -> None:
        """Wrap the score that sees the rotated tokens."""
        super().__init__()
        if not isinstance(score, str | Score):
            raise RegardError(
                "score",
                got=f"{score!r:.80}",
                needed="a name or a module of regard.scores: rotary positions belong to its preparation",
                repair="Derive from regard.scores.Score, or rotate inside your own callable.",
            )
        if isinstance(base, bool) or not isinstance(base, int | float) or not 0 < base < float("inf"):
            raise RegardError(
                "base", got=repr(base), needed="a positive finite number", repair="The usual base is 10000."
            )
        self.score = type(score_by_name(score))() if isinstance(score, str) else score
        self.base = base

    @property
    def can_round_tokens(self) -> bool:
        """As for the inner score."""
        return self.score.can_round_tokens

    def prepare_query(self, query: Tensor, first: int = 0) -> Tensor:
        """Prepare for the inner score, then rotate."""
        return self._rotate("query", self.score.prepare_query(query, first), first)

    def prepare_key(self, key: Tensor, first: int = 0) -> Tensor:
        """Prepare for the inner score, then rotate."""
        return self._rotate("key", self.score.prepare_key(key, first), first)

    def pair(self, query: Tensor, key: Tensor) -> PairScore:
        """Return the inner score of the rotated tokens."""
        return self.score.pair(query, key)

    def sink_logits(self) -> Tensor | None:
        """The inner score's sink."""
        return self.score.sink_logits()

    def extra_repr(self) -> str:
        """Show the base."""
        return f"base={self.base}"

    def _rotate(self, argument: str, tokens: Tensor, first: int) -> Tensor:
        """tokens: (*batch, tokens, dim)."""
        count, dim = tokens.shape[-2:]
        if dim % 2:
            raise RegardError(
                argument,
                got=f"dim {dim}",
                needed="an even dim: rotary positions turn pairs of entries",
                repair="Choose an even head_dim.",
            )
        exponents = torch.arange(0, dim, 2, device=tokens.device, dtype=torch.float64) / dim
        positions = torch.arange(first, first + count, device=tokens.device, dtype=torch.float64)
        angles = positions.unsqueeze(-1) * self.base**-exponents
        # Angles grow with the position: formed in float64, a token at 100,000 is turned as exactly as one at 1.
        cosine, sine = angles.cos().to(tokens.dtype), angles.sin().to(tokens.dtype)
        left, right = tokens.chunk(2, dim=-1)
        return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


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
