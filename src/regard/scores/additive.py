"""The additive score of Bahdanau: a dense network with one hidden tanh layer on query and key (eq. 12)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.scores.forms import AdditiveForm
from regard.scores.reach import Reach
from regard.scores.score import Score, align_batch, check_dim, check_dtype
from regard.shapes import check_int


class Additive(Score):
    """w' tanh(Wq q + Wk k), for queries and keys of any sizes.

    `Additive(query_dim, key_dim, hidden_dim)` has all three parameters of eq. 12.
    `Additive.of_projected(hidden_dim, heads)` has w alone: its queries and keys come projected already, as
    inside a multi-head layer whose projections are Wq and Wk.

    `reach` is how far |Wq q| and |Wk k| are expected to go. With a loose tolerance a GPU approximates tanh there, and
    corrects what lies beyond; training on a GPU moves it, evaluation does not.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        """Draw the projections as a linear layer does, and w likewise."""
        super().__init__()
        check_int("query_dim", query_dim)
        check_int("key_dim", key_dim)
        check_int("hidden_dim", hidden_dim)
        self.hidden_dim = hidden_dim
        self.query_weight: nn.Parameter | None = nn.Parameter(_uniform(hidden_dim, query_dim))
        self.key_weight: nn.Parameter | None = nn.Parameter(_uniform(hidden_dim, key_dim))
        self.weight = nn.Parameter(_uniform(hidden_dim))
        self.reach = Reach()

    @classmethod
    def of_projected(cls, hidden_dim: int, heads: int | None = None) -> "Additive":
        """An additive score without projections of its own; one w per head, heads the last batch axis."""
        score = cls(1, 1, hidden_dim)
        score.query_weight = score.key_weight = None
        if heads is not None:
            check_int("heads", heads)
            score.weight = nn.Parameter(_uniform(heads, hidden_dim))
        return score

    def prepare_query(self, query: Tensor, first: int = 0) -> Tensor:
        """Wq q, (*batch, queries, hidden)."""
        del first
        return self._project("query", query, self.query_weight)

    def prepare_key(self, key: Tensor, first: int = 0) -> Tensor:
        """Wk k, (*batch, keys, hidden)."""
        del first
        return self._project("key", key, self.key_weight)

    def pair(self, query: Tensor, key: Tensor) -> AdditiveForm:
        """The additive form."""
        if self.training and torch.is_grad_enabled():
            self.reach.observe(query, key)
        return AdditiveForm(query, key, align_batch(self.weight, query), self.reach.range)

    def _project(self, argument: str, tokens: Tensor, weight: Tensor | None) -> Tensor:
        if weight is None:
            check_dim(argument, tokens, self.hidden_dim, "Additive")
            return tokens
        check_dim(argument, tokens, weight.shape[-1], "Additive")
        check_dtype(argument, tokens, weight, "Additive")
        return functional.linear(tokens, weight)

    def extra_repr(self) -> str:
        """Show the sizes."""
        if self.query_weight is None or self.key_weight is None:
            return f"hidden_dim={self.hidden_dim}, projected"
        sizes = (self.query_weight.shape[-1], self.key_weight.shape[-1], self.hidden_dim)
        return "query_dim={}, key_dim={}, hidden_dim={}".format(*sizes)


def _uniform(*shape: int) -> Tensor:
    return (torch.rand(shape) * 2 - 1) / math.sqrt(shape[-1])
