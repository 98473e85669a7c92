"""Multi-head attention over any score: split, attend, join (eq. 14)."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from regard.backends.choice import check_backend_name
from regard.backends.problem import Bias, Problem
from regard.errors import RegardError
from regard.layers import torch_weights
from regard.layers.few_calls import few_calls
from regard.layers.gate import checked_gate, switch
from regard.layers.grouping import heads_problem
from regard.layers.memory import Memory, check_pairs
from regard.layers.product import product_of
from regard.layers.projection import Projections
from regard.layers.record import MultiHeadAttended
from regard.layers.scoring import Custom, as_head_score
from regard.layers.sizes import check_bias_of_heads, check_head_dim, check_kv_heads, check_position_bias
from regard.masks import Mask
from regard.pooling import Attended, everyday
from regard.pooling.attend import pool, pool_inspect, pool_with_weights
from regard.pooling.prepare import Settings, check_dropout, to_autocast
from regard.scores.names import ScoreLike
from regard.shapes import check_inputs, check_int, check_tensor, describe

if TYPE_CHECKING:
    from regard.sharding.ring import Group


class MultiHeadAttention(nn.Module):
    """h_j = pool(Wq_j q, Wk_j k, Wv_j v), output = sum_j Wo_j h_j (eq. 14), for any score.

    The layer's projections are the score's own: inside it `score="additive"` is eq. 12 with Wq and Wk the layer's and
    one w per head, and `score="bilinear"` is the scaled dot product, because q'Mk of eq. 10 with M = Wq' Wk is one.
    Kernels by name have a learnable bandwidth per head (boxcar, being flat, a fixed one). A score that is passed as
    a module or a callable sees projected heads, (*batch, heads, tokens, head_dim).

    Inputs are batch first, (*batch, tokens, dim), with any number of batch axes. Masks are in terms of (*batch) or
    (*batch, heads): a padding mask of one entry per sequence and key serves all heads. `Mask.keep` and `Mask.drop` say
    which by their axes: m[:, None] is one for each row of the batch, m[None] one for each head.

    Args:
        dim: the size of a query, and of everything that is not given.
        heads: how many.
        score: a name, a module of `regard.scores`, or any callable.
        key_dim: the size of a key; dim by default.
        value_dim: the size of a value; that of a key by default.
        output_dim: the size of the result; dim by default.
        head_dim: the size of a projected query and key; dim / heads by default.
        value_head_dim: the size of a projected value; head_dim by default.
        kv_heads: heads of keys and values, each shared by heads / kv_heads heads of queries; heads by default.
            A callable score then sees (*batch, kv_heads, group, queries, dim) and (*batch, kv_heads, 1, keys, dim).
        bias: whether the projections have biases.
        dropout: the probability with which a weight is dropped, in training only.
        position_bias: a callable of query and key positions, added to the scores, such as `Alibi(heads)`; a module
            brings its parameters along. Rotary positions are a score: `regard.scores.Rotary("scaled_dot")`.
        backend: name of the backend for every call of the layer, as for `regard.attend`. Only "reference" has second
            derivatives and forward-mode derivatives for every score.

    >>> import torch
    >>> layer = MultiHeadAttention(12, 3)
    >>> tokens = torch.randn(2, 5, 12)
    >>> layer(tokens, mask=Mask.causal()).shape
    torch.Size([2, 5, 12])
    >>> layer.inspect(tokens).weights().shape
    torch.Size([2, 3, 5, 5])
    """

    head_gate: Tensor | None
    backend: str = "auto"  # on the class too: layers saved by version 0.1 lack the attribute

    def __init__(
        self,
        dim: int,
        heads: int,
        score: ScoreLike = "scaled_dot",
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        output_dim: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        position_bias: Callable[[Tensor, Tensor], Tensor] | None = None,
        backend: str = "auto",
    ) -> None:
        """Check the sizes and draw the weights."""
        super().__init__()
        check_int("dim", dim)
        check_int("heads", heads)
        check_dropout(dropout)
        check_backend_name(backend)
        self.backend = backend
        self.heads = heads
        self.kv_heads = check_kv_heads(heads, heads if kv_heads is None else kv_heads)
        self.head_dim = check_head_dim(dim, heads) if head_dim is None else head_dim
        self.value_head_dim = self.head_dim if value_head_dim is None else value_head_dim
        key_dim = dim if key_dim is None else key_dim
        value_dim = key_dim if value_dim is None else value_dim
        output_dim = dim if output_dim is None else output_dim
        sizes = {"head_dim": self.head_dim, "value_head_dim": self.value_head_dim}
        for name, size in {"key_dim": key_dim, "value_dim": value_dim, "output_dim": output_dim, **sizes}.items():
            check_int(name, size)
        self.dropout = dropout
        self.score = as_head_score(score, heads, self.kv_heads, self.head_dim)
        self.position_bias = check_position_bias(position_bias, heads)
        head_dims = (self.head_dim, self.head_dim, self.value_head_dim)
        self.input = Projections((dim, key_dim, value_dim), (heads, self.kv_heads, self.kv_heads), head_dims, bias)
        self.output = nn.Linear(heads * self.value_head_dim, output_dim, bias)
        if bias:
            nn.init.zeros_(self.output.bias)
        self.register_buffer("head_gate", None, persistent=False)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        group: "Group | None" = None,
        order: str = "contiguous",
    ) -> Tensor:
        """Attend from each query to all keys.

        Args:
            query: (*batch, queries, dim).
            key: (*batch, keys, key_dim); the query by default. Each batch axis is equal to the query's or 1.
            value: (*batch, keys, value_dim); the key by default.
            mask: who may attend to whom.
            bias: added to the scores, beside the layer's position_bias: a tensor (queries, keys), or one with all axes
                of (*batch, heads, queries, keys), where an axis of size 1 is shared; or a callable of positions, as for
                `regard.attend`.
            group: the ranks that share the sequence; each passes its own tokens, and a mask and a bias of all of them.
            order: which tokens each of these ranks holds; see `regard.sharding.attend`.

        Returns:
            (*batch, queries, output_dim). A query that may see no key gets 0 from every head: the output's bias.
        """
        if group is not None:
            return self.join(self._merge_groups(self._pool_shards(query, key, value, mask, bias, group, order)))
        if order != "contiguous":
            raise RegardError(
                "order",
                got=f"{order!r} without a group",
                needed="the group of ranks that hold the tokens in this order",
                repair="Pass group= as well, or leave order out: without a group, tokens come in the sequence's order.",
            )
        # A subclass with its own `join` cannot use torch's operator for the whole layer.
        mixed = None
        if bias is None and type(self).join is MultiHeadAttention.join:
            mixed = few_calls(self, query, key, value, mask)
        return self.join(self._merge_groups(self._pool(query, key, value, mask, bias))) if mixed is None else mixed

    def inspect(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
    ) -> MultiHeadAttended:
        """The same as calling the layer, as a record with weights per head.

        Looking at heads that share keys gives each its own copy of them, linear in tokens.
        """
        heads = self._project(query, key, value)
        return self._record(pool_inspect(*self._problem(*heads, mask, bias, share=False), self.backend))

    def remember(self, key: Tensor, value: Tensor | None = None, mask: Mask | None = None) -> Memory:
        """Project and prepare keys and values once, for any number of recalls.

        Args:
            key: (*batch, keys, key_dim).
            value: (*batch, keys, value_dim); the key by default.
            mask: who may attend to whom; queries are numbered so that the last stands at the last key.
        """
        if mask is not None:
            Mask.expect(mask)
        memory = Memory(*self._prepare(key, value, 0), mask, key.ndim - 2, self._prepare)
        return memory if isinstance(self.score, Custom) else memory.without_padding()

    def recall(self, query: Tensor, memory: Memory, *, bias: Bias | None = None) -> Tensor:
        """Attend to what is remembered: (*batch, queries, dim) -> (*batch, queries, output_dim).

        Args:
            query: (*batch, queries, dim).
            memory: what `remember` returned.
            bias: as for a call of the layer; its last two axes are these queries and all remembered keys.
        """
        return self.join(self._merge_groups(pool(*self._recalled(query, memory, bias), self.backend)))

    def recall_inspect(self, query: Tensor, memory: Memory, *, bias: Bias | None = None) -> MultiHeadAttended:
        """The same recall as a record with weights per head: a decoder's alignments."""
        return self._record(pool_inspect(*self._recalled(query, memory, bias, share=False), self.backend))

    def recall_with_weights(self, query: Tensor, memory: Memory, *, bias: Bias | None = None) -> tuple[Tensor, Tensor]:
        """The same recall and its weights (*batch, heads, queries, keys), from one pass: for few queries."""
        heads, weights = pool_with_weights(*self._recalled(query, memory, bias, share=False), self.backend)
        return self.join(heads), weights

    def join(self, heads: Tensor) -> Tensor:
        """sum_j Wo_j h_j, as one product over the concatenated heads (eq. 14).

        heads: (*batch, heads, queries, value_head_dim) -> (*batch, queries, output_dim).
        """
        if self.head_gate is not None:
            heads = heads * checked_gate(self.head_gate, self.heads)[:, None, None].to(heads.dtype)
        return product_of(self.output, heads.transpose(-3, -2).flatten(-2))

    def switch_off(self, heads: int | Iterable[int]) -> None:
        """Silence heads: they contribute 0 to the output, so that the loss shows what they were worth.

        The switch is the buffer `head_gate`, (heads,) factors or None while all are on; it is not part of the state
        dict. Any such tensor may be assigned to it, to weigh heads or to take a gradient in their weight.
        """
        switch(self, heads, 0.0)

    def switch_on(self, heads: int | Iterable[int] | None = None) -> None:
        """Let heads speak again; all of them by default."""
        switch(self, range(self.heads) if heads is None else heads, 1.0)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """A layer with a copy of the weights of nn.MultiheadAttention.

        It takes (batch, tokens, dim) whatever the module's batch_first was; `Mask.from_multihead` converts masks.
        A query that may see no key gets 0 from every head here, and NaN there.
        """
        return torch_weights.from_torch(cls, module)

    def to_torch(self) -> nn.MultiheadAttention:
        """An nn.MultiheadAttention with batch_first=True and a copy of the weights, where there is one."""
        return torch_weights.to_torch(self)

    def _pool(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, mask: Mask | None, bias: Bias | None
    ) -> Tensor:
        """All h_j of eq. 14: (*batch, heads, queries, value_head_dim), or (*batch, kv_heads, group, …)."""
        query, key, value = self._project(query, key, value)
        heads = None
        # Padding is left out here: its batch axes are those of the tokens, without the axis of heads.
        is_plain = self.backend == "auto" and bias is None and self.position_bias is None
        if is_plain and (mask is None or (isinstance(mask, Mask) and mask.is_causal)):
            heads = None if self.training and self.dropout else everyday.pool(query, key, value, self.score, mask)
        return pool(*self._problem(query, key, value, mask, bias), self.backend) if heads is None else heads

    def _project(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if query is None:  # which the projections take for no queries at all
            check_tensor("query", query)
        key = query if key is None else key
        return self.input(query, key, key if value is None else value)

    def _problem(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None,
        bias: Bias | None,
        *,
        share: bool = True,
    ) -> tuple[Problem, Tensor | None]:
        """The problem of projected heads."""
        score = self.score
        return self._posed(score.prepare_query(query), score.prepare_key(key), value, Settings(mask, bias), share)

    def _pool_shards(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Mask | None,
        bias: Bias | None,
        group: "Group",
        order: str,
    ) -> Tensor:
        from regard.sharding.pool import pool_shards  # loaded where it is used: most calls have one process

        key = query if key is None else key
        tokens = (query, key, key if value is None else value)
        check_bias_of_heads(bias, query.ndim + 1)
        dropout = self.dropout if self.training else 0.0
        return pool_shards(
            tokens,
            self.score,
            Settings(mask, bias, dropout, layer_bias=self.position_bias),
            group=group,
            order=order,
            project=self.input,
            pose=heads_problem,
            backend=self.backend,
        )

    def _recalled(
        self, query: Tensor, memory: Memory, bias: Bias | None, *, share: bool = True
    ) -> tuple[Problem, Tensor | None]:
        if query is None:
            check_tensor("query", query)
        query, _, _ = self.input(query, None, None)
        self._check_memory(query, memory)
        first = memory.keys - query.shape[-2]
        query = self.score.prepare_query(query, first)
        settings = Settings(memory.mask, bias, first_query=first, is_blanked=memory.is_blanked)
        return self._posed(query, to_autocast(memory.key, self.score), to_autocast(memory.value), settings, share)

    def _posed(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        settings: Settings,
        share: bool,
    ) -> tuple[Problem, Tensor | None]:
        """The problem over prepared heads; without sharing, every head has its own keys and values."""
        if not share and self.kv_heads != self.heads:
            group = self.heads // self.kv_heads
            key, value = (x if x.shape[-3] == self.heads else x.repeat_interleave(group, -3) for x in (key, value))
        check_bias_of_heads(settings.bias, query.ndim)
        dropout = self.dropout if self.training else 0.0
        settings = settings._replace(layer_bias=self.position_bias, dropout=dropout)
        return heads_problem(self.score.pair(query, key), value, self.score.sink_logits(), settings)

    def _prepare(self, key: Tensor, value: Tensor | None, first: int) -> tuple[Tensor, Tensor]:
        value = key if value is None else value
        check_pairs(key, value)
        _, key, value = self.input(None, key, value)
        return self.score.prepare_key(key, first), value

    def _merge_groups(self, heads: Tensor) -> Tensor:
        return heads if self.kv_heads == self.heads else heads.flatten(-4, -3)

    def _record(self, heads: Attended) -> MultiHeadAttended:
        return MultiHeadAttended(self.join(heads.output), heads.log_mass, heads._sources, heads._has_sink, heads)

    def _check_memory(self, query: Tensor, memory: Memory) -> None:
        """Refuse what another layer remembered; heads apart, query and memory must fit as query and key do."""
        is_memory = isinstance(memory, Memory) and memory.value.ndim >= 3
        if not is_memory or memory.value.shape[-3:-1] != (self.kv_heads, memory.keys):
            raise RegardError(
                "memory",
                got=f"{memory}" if isinstance(memory, Memory) else describe(memory),
                needed=f"{self.kv_heads} heads of keys and values, as this layer remembers",
                repair="Recall from what this layer's own remember returned.",
            )
        memory.check_owner(self)
        check_inputs(query[..., :1, :, :], memory.key[..., :1, :, :], memory.value[..., :1, :, :])

    def extra_repr(self) -> str:
        """Show what the modules below do not."""
        backend = "" if self.backend == "auto" else f", backend={self.backend!r}"
        return f"heads={self.heads}, kv_heads={self.kv_heads}, dropout={self.dropout}{backend}"
