"""`Attention`: the operator `regard.attend` as a layer, without projections."""

from torch import Tensor, nn

from regard.attention import Attended
from regard.attention.attended import run_with_weights
from regard.attention.prepare import Options, cast_for_autocast, check_dropout, prepare, to_problem
from regard.backends.base import Bias, Problem
from regard.backends.dispatch import check_backend_name, run
from regard.checks import check_inputs, describe
from regard.errors import RegardError
from regard.layers.heads import CallableScore, resolve_score
from regard.layers.memory import Memory, check_pairs
from regard.masks import Mask
from regard.scores.names import ScoreLike


class Attention(nn.Module):
    """Layer that computes sum_j softmax_j(score(query, key_j)) value_j (eq. 1 and 3).

    Args:
        score: a name, a module of `regard.scores`, or any callable, as for `regard.attend`.
        dropout: probability with which a weight is dropped, only in training.
        bias: added to the scores: a tensor, a parameter, or a callable of positions such as `Alibi(heads)`. A tensor
            becomes a buffer of the layer.
        backend: name of the backend for every call of the layer, as for `regard.attend`.

    Raises:
        RegardError: if the score, the dropout or the name of the backend is invalid.

    >>> import torch
    >>> layer = Attention("gaussian")
    >>> memory = layer.remember(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]]))
    >>> layer.recall(torch.tensor([[0.5]]), memory)
    tensor([[0.5000]])
    """

    bias: Bias | None
    backend: str = "auto"  # for layers that were pickled before the attribute existed

    def __init__(
        self,
        score: ScoreLike = "scaled_dot",
        *,
        dropout: float = 0.0,
        bias: Bias | None = None,
        backend: str = "auto",
    ) -> None:
        """Check the arguments and register the score and the bias."""
        super().__init__()
        check_dropout(dropout)
        check_backend_name(backend)
        self.backend = backend
        self.score = resolve_score(score)
        self.dropout = dropout
        if isinstance(bias, Tensor) and not isinstance(bias, nn.Parameter):
            self.register_buffer("bias", bias)
        else:
            self.bias = bias

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None = None, *, bias: Bias | None = None
    ) -> Tensor:
        """Attend from each query to all keys.

        Args:
            query: (*batch, queries, query_dim).
            key: (*batch, keys, key_dim).
            value: (*batch, keys, value_dim).
            mask: which keys each query may attend to.
            bias: added to the scores, beside the bias of the layer, as for `regard.attend`.

        Returns:
            (*batch, queries, value_dim). A query without allowed keys gets 0.

        Raises:
            RegardError: if an argument is invalid, or if the named backend refuses the call.
        """
        return run(prepare(query, key, value, self.score, self._options(mask, bias)), self.backend).output

    def inspect(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None = None, *, bias: Bias | None = None
    ) -> Attended:
        """Return the result of a call as a record that computes weights, entropy and more on demand.

        Args:
            query: as for `forward`.
            key: as for `forward`.
            value: as for `forward`.
            mask: as for `forward`.
            bias: as for `forward`.

        Returns:
            The record.

        Raises:
            RegardError: as for `forward`.
        """
        return Attended.of(prepare(query, key, value, self.score, self._options(mask, bias)), self.backend)

    def remember(self, key: Tensor, value: Tensor, mask: Mask | None = None) -> Memory:
        """Prepare keys and values once, for any number of recalls.

        Args:
            key: (*batch, keys, key_dim).
            value: (*batch, keys, value_dim).
            mask: which keys each query may attend to. In a recall, the last query is at the position of the last key.

        Returns:
            The memory.

        Raises:
            RegardError: if key, value or mask is invalid.
        """
        if mask is not None:
            Mask.expect(mask)
        memory = Memory(*self._prepare(key, value, 0), mask, key.ndim - 2, self._prepare)
        # A callable score gets the padding unchanged, because 0 might not be in its domain.
        return memory if isinstance(self.score, CallableScore) else memory.without_padding()

    def recall(self, query: Tensor, memory: Memory, *, bias: Bias | None = None) -> Tensor:
        """Attend from queries to the keys of a memory.

        Args:
            query: (*batch, queries, query_dim).
            memory: returned by `remember` of this layer.
            bias: as for `forward`, for these queries and all keys of the memory.

        Returns:
            (*batch, queries, value_dim).

        Raises:
            RegardError: if another layer made the memory, or if the queries or the bias do not fit it.
        """
        return run(self._memory_problem(query, memory, bias), self.backend).output

    def recall_inspect(self, query: Tensor, memory: Memory, *, bias: Bias | None = None) -> Attended:
        """Return the result of `recall` as a record that computes weights on demand.

        In a decoder the weights are the alignments.

        Args:
            query: as for `recall`.
            memory: as for `recall`.
            bias: as for `recall`.

        Returns:
            The record.

        Raises:
            RegardError: as for `recall`.
        """
        return Attended.of(self._memory_problem(query, memory, bias), self.backend)

    def recall_with_weights(self, query: Tensor, memory: Memory, *, bias: Bias | None = None) -> tuple[Tensor, Tensor]:
        """Return the result of `recall` and all weights, computed together. Meant for few queries.

        Args:
            query: as for `recall`.
            memory: as for `recall`.
            bias: as for `recall`.

        Returns:
            Output (*batch, queries, value_dim) and weights (*batch, queries, keys).

        Raises:
            RegardError: as for `recall`.
        """
        return run_with_weights(self._memory_problem(query, memory, bias), self.backend)

    def _prepare(self, key: Tensor, value: Tensor | None, first: int) -> tuple[Tensor, Tensor]:
        """Return prepared keys and values, as a Memory stores them; `first` is the position of the first key."""
        value = key if value is None else value
        check_pairs(key, value)
        return self.score.prepare_key(cast_for_autocast(key, self.score), first), cast_for_autocast(value)

    def _options(self, mask: Mask | None, bias: Bias | None) -> Options:
        """Return the options of a call together with those of the layer."""
        return Options(mask, bias, self.bias, self.dropout if self.training else 0.0)

    def _memory_problem(self, query: Tensor, memory: Memory, bias: Bias | None) -> Problem:
        """Return the problem of one recall."""
        if not isinstance(memory, Memory):
            raise RegardError(
                "memory",
                got=describe(memory),
                needed="a Memory",
                repair="Make one with remember(key, value).",
            )
        memory.check_owner(self)
        check_inputs(query, memory.key, memory.value)
        query, key = cast_for_autocast(query, self.score), cast_for_autocast(memory.key, self.score)
        value = cast_for_autocast(memory.value)
        first = memory.keys - query.shape[-2]
        pair = self.score.pair(self.score.prepare_query(query, first), key)
        options = self._options(memory.mask, bias)._replace(first_query=first, padding_is_zero=memory.padding_is_zero)
        return to_problem(pair, value, options, self.score.sink_logits())

    def extra_repr(self) -> str:
        """Return dropout and backend, which the submodules do not show."""
        return f"dropout={self.dropout}" + ("" if self.backend == "auto" else f", backend={self.backend!r}")
