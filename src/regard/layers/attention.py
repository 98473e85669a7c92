"""Attention as a module without projections of its own: a score, dropout while training, and a memory."""

from collections.abc import Callable

from torch import Tensor, nn

from regard.backends.choice import check_backend_name
from regard.backends.problem import Bias, Problem
from regard.errors import RegardError
from regard.layers.memory import Memory, check_pairs
from regard.layers.scoring import Custom, as_score
from regard.masks import Mask
from regard.pooling import Attended, attend
from regard.pooling.attend import pool, pool_inspect, pool_with_weights
from regard.pooling.prepare import Settings, check_dropout, prepare, to_autocast, to_problem
from regard.scores.names import ScoreLike
from regard.shapes import check_inputs, describe


class Attention(nn.Module):
    """sum_j softmax_j(score(query, key_j)) value_j (eq. 1 and 3) as a layer.

    score: a name, a module of `regard.scores`, or any callable, as for `regard.attend`.
    dropout: the probability with which a weight is dropped, in training only.
    bias: added to the scores: a tensor, a parameter, or a callable of positions such as `Alibi(heads)`.
    backend: name of the backend for every call of the layer, as for `regard.attend`.

    >>> import torch
    >>> layer = Attention("gaussian")
    >>> memory = layer.remember(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]]))
    >>> layer.recall(torch.tensor([[0.5]]), memory)
    tensor([[0.5000]])
    """

    bias: Bias | None
    backend: str = "auto"  # on the class too: layers saved by version 0.1 lack the attribute

    def __init__(
        self,
        score: ScoreLike = "scaled_dot",
        *,
        dropout: float = 0.0,
        bias: Bias | None = None,
        backend: str = "auto",
    ) -> None:
        """Check what can be checked before there is a call."""
        super().__init__()
        check_dropout(dropout)
        check_backend_name(backend)
        self.backend = backend
        self.score = as_score(score)
        self.dropout = dropout
        set_bias(self, "bias", bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None = None, *, bias: Bias | None = None
    ) -> Tensor:
        """Attend from each query to all keys.

        Args:
            query: (*batch, queries, query_dim).
            key: (*batch, keys, key_dim).
            value: (*batch, keys, value_dim).
            mask: who may attend to whom.
            bias: added to the scores, beside the layer's own, as for `regard.attend`.

        Returns:
            (*batch, queries, value_dim). A query that may see no key gets 0.
        """
        if bias is None or self.bias is None:
            dropout = self.dropout if self.training else 0.0
            bias = self.bias if bias is None else bias
            return attend(query, key, value, self.score, mask, bias=bias, dropout=dropout, backend=self.backend)
        return pool(*prepare(query, key, value, self.score, self._settings(mask, bias)), self.backend)

    def inspect(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None = None, *, bias: Bias | None = None
    ) -> Attended:
        """The same pooling as a record that can be asked for weights."""
        return pool_inspect(*prepare(query, key, value, self.score, self._settings(mask, bias)), self.backend)

    def remember(self, key: Tensor, value: Tensor, mask: Mask | None = None) -> Memory:
        """Prepare keys and values once, for any number of recalls.

        Args:
            key: (*batch, keys, key_dim).
            value: (*batch, keys, value_dim).
            mask: who may attend to whom; queries are numbered so that the last stands at the last key.
        """
        if mask is not None:
            Mask.expect(mask)
        memory = Memory(*self._prepare(key, value, 0), mask, key.ndim - 2, self._prepare)
        # A user's function might divide by the norm of a key: it sees keys as they came.
        return memory if isinstance(self.score, Custom) else memory.without_padding()

    def recall(self, query: Tensor, memory: Memory, *, bias: Bias | None = None) -> Tensor:
        """Pool what is remembered: (*batch, queries, query_dim) -> (*batch, queries, value_dim)."""
        return pool(*self._recalled(query, memory, bias), self.backend)

    def recall_inspect(self, query: Tensor, memory: Memory, *, bias: Bias | None = None) -> Attended:
        """The same recall as a record that can be asked for weights: a decoder's alignments."""
        return pool_inspect(*self._recalled(query, memory, bias), self.backend)

    def recall_with_weights(self, query: Tensor, memory: Memory, *, bias: Bias | None = None) -> tuple[Tensor, Tensor]:
        """The same recall and its weights (*batch, queries, keys), from one pass: for a decoder's few queries."""
        return pool_with_weights(*self._recalled(query, memory, bias), self.backend)

    def _prepare(self, key: Tensor, value: Tensor | None, first: int) -> tuple[Tensor, Tensor]:
        value = key if value is None else value
        check_pairs(key, value)
        return self.score.prepare_key(to_autocast(key, self.score), first), to_autocast(value)

    def _settings(self, mask: Mask | None, bias: Bias | None) -> Settings:
        """What modifies a call of the layer."""
        return Settings(mask, bias, self.dropout if self.training else 0.0, layer_bias=self.bias)

    def _recalled(self, query: Tensor, memory: Memory, bias: Bias | None) -> tuple[Problem, Tensor | None]:
        if not isinstance(memory, Memory):
            raise RegardError(
                "memory",
                got=describe(memory),
                needed="a Memory",
                repair="Make one with remember(key, value).",
            )
        memory.check_owner(self)
        check_inputs(query, memory.key, memory.value)
        query, key = to_autocast(query, self.score), to_autocast(memory.key, self.score)
        value = to_autocast(memory.value)
        first = memory.keys - query.shape[-2]
        form = self.score.pair(self.score.prepare_query(query, first), key)
        settings = self._settings(memory.mask, bias)._replace(first_query=first, is_blanked=memory.is_blanked)
        return to_problem(form, value, settings), self.score.sink_logits()

    def extra_repr(self) -> str:
        """Show what is not a module."""
        return f"dropout={self.dropout}" + ("" if self.backend == "auto" else f", backend={self.backend!r}")


def set_bias(module: nn.Module, name: str, bias: Bias | Callable[[Tensor, Tensor], Tensor] | None) -> None:
    """Give a module its bias: a plain tensor as a buffer, so that it moves along; the rest as it is."""
    if isinstance(bias, Tensor) and not isinstance(bias, nn.Parameter):
        module.register_buffer(name, bias)
    else:
        setattr(module, name, bias)
