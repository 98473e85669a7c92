"""Position encodings: rotary positions (Su et al. 2021), which are a score, and ALiBi (Press et al. 2022), a bias."""

import torch
from torch import Tensor, nn

from regard.checks import check_int
from regard.errors import RegardError
from regard.scores.base import PairScore, Score
from regard.scores.names import new_score


class Rotary(Score):
    """Rotary position embedding (RoPE; Su et al. 2021): a score of rotated queries and keys.

    Dot products of rotated tokens depend on relative positions only. In a token at position p, the pair of entries i
    and i + dim/2 is rotated by the angle p * base^(-2i/dim), the layout of Llama. The rotation is part of the
    preparation of tokens, so every backend supports it.

    Args:
        score: the score of the rotated tokens, a name or a module of `regard.scores`.
        base: base of the angles.

    Raises:
        RegardError: if `score` is neither a name nor a Score, or if `base` is not positive and finite.

    >>> import regard, torch
    >>> x = torch.randn(2, 7, 4)
    >>> regard.attend(x, x, x, Rotary()).shape
    torch.Size([2, 7, 4])
    """

    def __init__(self, score: str | Score = "scaled_dot", *, base: float = 10_000.0) -> None:
        """Store the inner score; a name gives a new instance."""
        super().__init__()
        if not isinstance(score, str | Score):
            raise RegardError(
                "score",
                got=f"{score!r:.80}",
                needed="a name or a module of regard.scores, which prepares the tokens that are rotated",
                repair="Derive from regard.scores.Score, or rotate queries and keys inside your callable.",
            )
        if isinstance(base, bool) or not isinstance(base, int | float) or not 0 < base < float("inf"):
            raise RegardError(
                "base",
                got=repr(base),
                needed="a positive finite number",
                repair="Pass base=10000.0, the usual value.",
            )
        self.score = new_score(score) if isinstance(score, str) else score
        self.base = base

    @property
    def can_round_tokens(self) -> bool:
        """Whether the inner score allows it."""
        return self.score.can_round_tokens

    def prepare_query(self, query: Tensor, first: int = 0) -> Tensor:
        """Return queries prepared by the inner score, then rotated, (*batch, queries, dim)."""
        return self._rotate("query", self.score.prepare_query(query, first), first)

    def prepare_key(self, key: Tensor, first: int = 0) -> Tensor:
        """Return keys prepared by the inner score, then rotated, (*batch, keys, dim)."""
        return self._rotate("key", self.score.prepare_key(key, first), first)

    def pair(self, query: Tensor, key: Tensor) -> PairScore:
        """Return the closed form of the inner score."""
        return self.score.pair(query, key)

    def sink_logits(self) -> Tensor | None:
        """Return the attention sink of the inner score."""
        return self.score.sink_logits()

    def extra_repr(self) -> str:
        """Return the base as text."""
        return f"base={self.base}"

    def _rotate(self, argument: str, tokens: Tensor, first: int) -> Tensor:
        """Return tokens (*batch, tokens, dim), rotated according to their positions, which start at `first`."""
        num_tokens, dim = tokens.shape[-2:]
        if dim % 2:
            raise RegardError(
                argument,
                got=f"dim {dim}",
                needed="an even dim, because rotary positions rotate pairs of entries",
                repair="Pass tokens with an even last axis (head_dim in a layer).",
            )
        exponents = torch.arange(0, dim, 2, device=tokens.device, dtype=torch.float64) / dim
        positions = torch.arange(first, first + num_tokens, device=tokens.device, dtype=torch.float64)
        angles = positions.unsqueeze(-1) * self.base**-exponents
        # Angles grow with the position. In float64 they are as accurate at position 100,000 as at position 1.
        cosine, sine = angles.cos().to(tokens.dtype), angles.sin().to(tokens.dtype)
        left, right = tokens.chunk(2, dim=-1)
        return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


class Alibi(nn.Module):
    """Attention with linear biases (ALiBi; Press et al. 2022): -slope * |query position - key position|.

    A callable bias: `attend(..., bias=Alibi(heads))` with heads as the last batch axis, or
    `MultiHeadAttention(dim, heads, position_bias=Alibi(heads))`. The slope of head i = 1, ..., heads is
    2^(-8 i / heads). If `heads` is not a power of two, the first heads have the slopes for the next smaller power of
    two and the others every second slope for twice that power.

    Args:
        heads: number of heads.

    Raises:
        RegardError: if `heads` is not a positive integer.

    >>> Alibi(4)(torch.tensor([2]), torch.arange(3))[0]
    tensor([[-0.5000, -0.2500, -0.0000]])
    """

    def __init__(self, heads: int) -> None:
        """Store the number of heads; the module has no parameters."""
        super().__init__()
        check_int("heads", heads)
        self.heads = heads

    def slopes(self, device: torch.device | None = None) -> Tensor:
        """Return the slope of each head, float32 (heads,).

        The slopes are computed on every call. As a buffer they would be rounded when a layer is converted to half
        precision.

        Args:
            device: device of the result; None for torch's default device.

        Returns:
            The slopes, all positive.
        """
        power_of_two = 2 ** (self.heads.bit_length() - 1)
        head = torch.arange(1, self.heads + 1, device=device, dtype=torch.float32)
        # With n = power_of_two, head n + j has slope 2j - 1 of 2n heads: 2^(-8 (2j - 1) / 2n) = 2^(-8 (j - 1/2) / n).
        exponent = torch.where(head <= power_of_two, head, head - power_of_two - 0.5) * (-8 / power_of_two)
        return torch.exp2(exponent)

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias of each pair.

        Args:
            query_positions: int64 (queries,).
            key_positions: int64 (keys,).

        Returns:
            float32 (heads, queries, keys).
        """
        distance = (query_positions.unsqueeze(-1) - key_positions).abs()
        return distance * -self.slopes(distance.device)[:, None, None]

    def extra_repr(self) -> str:
        """Return the number of heads as text."""
        return f"heads={self.heads}"
