"""`MultiHeadAttention`: projections, attention with any score in each head, and the sum over heads (eq. 14)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.attention import Attended
from regard.attention.attended import run_with_weights
from regard.attention.prepare import Options, cast_for_autocast, check_dropout
from regard.backends.base import Bias, Problem
from regard.backends.dispatch import check_backend_name, run
from regard.checks import check_inputs, check_int, describe
from regard.errors import RegardError
from regard.layers import native, torch_weights
from regard.layers.heads import CallableScore, check_bias_axes, multihead_problem, resolve_head_score
from regard.layers.memory import Memory, check_pairs
from regard.layers.projections import QKVProjection, apply_linear
from regard.masks import Mask
from regard.scores.names import ScoreLike
from regard.scores.positions import Alibi

if TYPE_CHECKING:
    from regard.sharding.ring import Group


@dataclass(frozen=True, eq=False, repr=False)
class MultiHeadAttended(Attended):
    """The record of a multi-head call: the output of the layer, and everything else per head.

    output is (*batch, queries, output_dim), log_mass (*batch, heads, queries), weights (*batch, heads, queries, keys).

    Attributes:
        heads: the record of the heads h_j of eq. 14, whose output is (*batch, heads, queries, value_head_dim). To
            attend over several sets of keys, merge these records and pass the merged output to `layer.join`.

    >>> import torch, regard
    >>> regard.MultiHeadAttention(12, 3).inspect(torch.randn(2, 5, 12))
    MultiHeadAttended(output=(2, 5, 12), heads=(2, 3, 5, 4))
    """

    heads: Attended = field(default_factory=lambda: Attended(torch.empty(0), torch.empty(0)))

    @classmethod
    def _of_heads(cls, heads: Attended, output: Tensor) -> "MultiHeadAttended":
        """Return the record of a layer.

        Args:
            heads: the record of the heads.
            output: (*batch, queries, output_dim), the joined heads.

        Returns:
            The record. It computes scores and weights as the record of the heads does.
        """
        return cls(output, heads.log_mass, heads._problems, heads)

    def __repr__(self) -> str:
        """Return the shapes."""
        heads = tuple(self.heads.output.shape)
        return f"MultiHeadAttended(output={tuple(self.output.shape)}, heads={heads})"


class MultiHeadAttention(nn.Module):
    """Multi-head attention with any score: h_j = attend(Wq_j q, Wk_j k, Wv_j v), output = sum_j Wo_j h_j (eq. 14).

    A score given by name has no projections of its own: `score="additive"` is eq. 12 with the layer's Wq and Wk and one
    w per head, and `score="bilinear"` is the scaled dot product, because q'Mk of eq. 10 with M = Wq' Wk is a dot
    product of projected tokens. A kernel given by name has a learnable bandwidth per head; the flat boxcar has a fixed
    one. A score given as a module or a callable takes projected heads, (*batch, heads, tokens, head_dim).

    Inputs are batch first, (*batch, tokens, dim), with any number of batch axes. The batch axes of a mask are (*batch)
    or (*batch, heads): a padding mask with one entry per example and key applies to all heads. For `Mask.keep` and
    `Mask.drop` pass m[:, None] for one mask per example, or m[None] for one mask per head.

    Args:
        dim: size of a query.
        heads: number of heads.
        score: a name, a module of `regard.scores`, or any callable.
        key_dim: size of a key; dim by default.
        value_dim: size of a value; key_dim by default.
        output_dim: size of the output; dim by default.
        head_dim: size of a projected query and key; dim / heads by default.
        value_head_dim: size of a projected value; head_dim by default.
        kv_heads: number of heads of keys and values, each shared by heads / kv_heads query heads; heads by default. A
            callable score then takes (*batch, kv_heads, heads_per_kv, queries, dim) and (*batch, kv_heads, 1, keys,
            dim).
        bias: whether the projections have biases. The argument `bias` of a call is different: it is added to the
            scores.
        dropout: probability with which a weight is dropped, only in training.
        position_bias: a callable of query and key positions, added to the scores, such as `Alibi(heads)`. If it is a
            module, its parameters belong to the layer. Rotary positions are a score:
            `regard.scores.Rotary("scaled_dot")`.
        backend: name of the backend for every call of the layer, as for `regard.attend`.

    Raises:
        RegardError: if an argument is invalid.

    >>> import torch
    >>> layer = MultiHeadAttention(12, 3)
    >>> tokens = torch.randn(2, 5, 12)
    >>> layer(tokens, mask=Mask.causal()).shape
    torch.Size([2, 5, 12])
    >>> layer.inspect(tokens).weights().shape
    torch.Size([2, 3, 5, 5])
    """

    head_gate: Tensor | None
    backend: str = "auto"  # for layers that were pickled before the attribute existed

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
        """Check the arguments and initialise the weights."""
        super().__init__()
        check_int("dim", dim)
        check_int("heads", heads)
        check_dropout(dropout)
        check_backend_name(backend)
        self.backend = backend
        self.heads = heads
        self.kv_heads = _checked_kv_heads(heads, heads if kv_heads is None else kv_heads)
        self.head_dim = _default_head_dim(dim, heads) if head_dim is None else head_dim
        self.value_head_dim = self.head_dim if value_head_dim is None else value_head_dim
        key_dim = dim if key_dim is None else key_dim
        value_dim = key_dim if value_dim is None else value_dim
        output_dim = dim if output_dim is None else output_dim
        sizes = {"head_dim": self.head_dim, "value_head_dim": self.value_head_dim}
        for name, size in {"key_dim": key_dim, "value_dim": value_dim, "output_dim": output_dim, **sizes}.items():
            check_int(name, size)
        self.dropout = dropout
        self.score = resolve_head_score(score, heads, self.kv_heads, self.head_dim)
        _check_position_bias(position_bias, heads)
        self.position_bias = position_bias
        head_dims = (self.head_dim, self.head_dim, self.value_head_dim)
        self.input = QKVProjection((dim, key_dim, value_dim), (heads, self.kv_heads, self.kv_heads), head_dims, bias)
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
            mask: which keys each query may attend to.
            bias: added to the scores, beside the layer's position_bias: a tensor (queries, keys), or one with all axes
                of (*batch, heads, queries, keys), where an axis of size 1 is shared; or a callable of positions, as for
                `regard.attend`.
            group: the process group whose ranks share the sequence. Each rank passes its own tokens, and a mask and a
                bias for the tokens of all ranks.
            order: which tokens each rank holds; see `regard.sharding.attend`.

        Returns:
            (*batch, queries, output_dim). For a query without allowed keys every head is 0, so that the output is the
            bias of the output projection.

        Raises:
            RegardError: if an argument is invalid, or if the named backend refuses the call.
        """
        if group is not None:
            return self.join(self._flatten_heads(self._attend_on_shards(query, key, value, mask, bias, group, order)))
        if order != "contiguous":
            raise RegardError(
                "order",
                got=f"{order!r} without a group",
                needed="the process group whose ranks hold the tokens in this order",
                repair="Pass group= too, or leave order out: without a group one process holds the whole sequence.",
            )
        if mask is None and bias is None and type(query) is Tensor and query.device.type == native.DEVICE:
            overrides_join = type(self).join is not MultiHeadAttention.join
            output = None if overrides_join else native.run_layer(self, query, key, value)
            if output is not None:
                return output
        problem = self._call_problem(query, key, value, mask, bias)
        return self.join(self._flatten_heads(run(problem, self.backend).output))

    def inspect(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
    ) -> MultiHeadAttended:
        """Return the result of a call as a record that computes weights per head, entropy and more on demand.

        If kv_heads < heads, keys and values are repeated for each query head, which takes memory linear in tokens.

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
        return self._record(
            Attended.of(self._call_problem(query, key, value, mask, bias, repeat_kv=True), self.backend)
        )

    def remember(self, key: Tensor, value: Tensor | None = None, mask: Mask | None = None) -> Memory:
        """Project and prepare keys and values once, for any number of recalls.

        Args:
            key: (*batch, keys, key_dim).
            value: (*batch, keys, value_dim); the key by default.
            mask: which keys each query may attend to. In a recall, the last query is at the position of the last key.

        Returns:
            The memory.

        Raises:
            RegardError: if key, value or mask is invalid.
        """
        if mask is not None:
            Mask.expect(mask)
        memory = Memory(*self._prepare(key, value, 0), mask, key.ndim - 2, self._prepare)
        return memory if isinstance(self.score, CallableScore) else memory.without_padding()

    def recall(self, query: Tensor, memory: Memory, *, bias: Bias | None = None) -> Tensor:
        """Attend from queries to the keys of a memory.

        Args:
            query: (*batch, queries, dim).
            memory: returned by `remember` of this layer.
            bias: as for `forward`, for these queries and all keys of the memory.

        Returns:
            (*batch, queries, output_dim).

        Raises:
            RegardError: if another layer made the memory, or if the queries or the bias do not fit it.
        """
        return self.join(self._flatten_heads(run(self._memory_problem(query, memory, bias), self.backend).output))

    def recall_inspect(self, query: Tensor, memory: Memory, *, bias: Bias | None = None) -> MultiHeadAttended:
        """Return the result of `recall` as a record that computes weights per head on demand.

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
        return self._record(Attended.of(self._memory_problem(query, memory, bias, repeat_kv=True), self.backend))

    def recall_with_weights(self, query: Tensor, memory: Memory, *, bias: Bias | None = None) -> tuple[Tensor, Tensor]:
        """Return the result of `recall` and all weights, computed together. Meant for few queries.

        Args:
            query: as for `recall`.
            memory: as for `recall`.
            bias: as for `recall`.

        Returns:
            Output (*batch, queries, output_dim) and weights (*batch, heads, queries, keys).

        Raises:
            RegardError: as for `recall`.
        """
        heads, weights = run_with_weights(self._memory_problem(query, memory, bias, repeat_kv=True), self.backend)
        return self.join(heads), weights

    def join(self, heads: Tensor) -> Tensor:
        """Return sum_j Wo_j h_j, computed as one product of the concatenated heads (eq. 14).

        Args:
            heads: (*batch, heads, queries, value_head_dim).

        Returns:
            (*batch, queries, output_dim).

        Raises:
            RegardError: if `head_gate` does not have one factor for each head.
        """
        if self.head_gate is not None:
            heads = heads * _checked_gate(self.head_gate, self.heads)[:, None, None].to(heads.dtype)
        return apply_linear(self.output, heads.transpose(-3, -2).flatten(-2))

    def switch_off(self, heads: int | Iterable[int]) -> None:
        """Set the output of heads to 0. Compare the loss with and without them to measure their importance.

        The factors of the heads are the buffer `head_gate`, (heads,), or None if all heads are on. It is not part of
        the state dict. Assign a tensor to it to scale heads or to compute gradients of the factors.

        Args:
            heads: index or indices of heads.

        Raises:
            RegardError: if there is no such head.
        """
        _set_gate(self, heads, 0.0)

    def switch_on(self, heads: int | Iterable[int] | None = None) -> None:
        """Undo `switch_off`.

        Args:
            heads: index or indices of heads; all heads by default.

        Raises:
            RegardError: if there is no such head.
        """
        _set_gate(self, range(self.heads) if heads is None else heads, 1.0)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """Return a layer with a copy of the weights of an nn.MultiheadAttention.

        The layer takes (batch, tokens, dim), even if the module has batch_first=False. `Mask.from_multihead` converts
        the masks of the module. For a query without allowed keys every head is 0, where the module returns NaN.

        Args:
            module: the module.

        Returns:
            The layer, with the module's dtype, device, dropout and training mode. Frozen parameters stay frozen.

        Raises:
            RegardError: if `module` is another module, or if it has the options add_bias_kv or add_zero_attn.
        """
        return torch_weights.from_torch(cls, module)

    def to_torch(self) -> nn.MultiheadAttention:
        """Return an nn.MultiheadAttention with batch_first=True and a copy of the weights.

        Returns:
            The module, with the layer's dtype, device, dropout and training mode. Frozen parameters stay frozen.

        Raises:
            RegardError: if nn.MultiheadAttention cannot compute what this layer computes.
        """
        return torch_weights.to_torch(self)

    def _call_problem(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Mask | None,
        bias: Bias | None,
        *,
        repeat_kv: bool = False,
    ) -> Problem:
        """Return the problem of a call, from tokens that are not projected yet."""
        _check_query_is_given(query)
        key = query if key is None else key
        query, key, value = self.input(query, key, key if value is None else value)
        score = self.score
        options = self._options(mask, bias)
        return self._problem(score.prepare_query(query), score.prepare_key(key), value, options, repeat_kv)

    def _memory_problem(self, query: Tensor, memory: Memory, bias: Bias | None, *, repeat_kv: bool = False) -> Problem:
        """Return the problem of a recall, from queries that are not projected yet."""
        _check_query_is_given(query)
        query, _, _ = self.input(query, None, None)
        self._check_memory(query, memory)
        first = memory.keys - query.shape[-2]
        score, options = self.score, self._options(memory.mask, bias, first, memory.padding_is_zero)
        query, key = score.prepare_query(query, first), cast_for_autocast(memory.key, score)
        return self._problem(query, key, cast_for_autocast(memory.value), options, repeat_kv)

    def _options(
        self, mask: Mask | None, bias: Bias | None, first_query: int | None = None, padding_is_zero: bool = False
    ) -> Options:
        """Return the options of a call together with those of the layer."""
        dropout = self.dropout if self.training else 0.0
        return Options(
            mask=mask,
            bias=bias,
            layer_bias=self.position_bias,
            dropout=dropout,
            first_query=first_query,
            padding_is_zero=padding_is_zero,
        )

    def _problem(self, query: Tensor, key: Tensor, value: Tensor, options: Options, repeat_kv: bool) -> Problem:
        """Return the problem of prepared heads; `repeat_kv` repeats keys and values for each query head."""
        if repeat_kv and self.kv_heads != self.heads:
            times = self.heads // self.kv_heads
            key, value = (x if x.shape[-3] == self.heads else x.repeat_interleave(times, -3) for x in (key, value))
        check_bias_axes(options.bias, query.ndim)
        score = self.score
        return multihead_problem(score.pair(query, key), value, options, score.sink_logits())

    def _attend_on_shards(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Mask | None,
        bias: Bias | None,
        group: "Group",
        order: str,
    ) -> Tensor:
        """Return the heads of this rank's queries over the keys of all ranks."""
        from regard.sharding.api import attend_shards  # imported here, because most programs have one process

        key = query if key is None else key
        tokens = (query, key, key if value is None else value)
        check_bias_axes(bias, query.ndim + 1)
        return attend_shards(
            tokens,
            self.score,
            self._options(mask, bias),
            group=group,
            order=order,
            project=self.input,
            make_problem=multihead_problem,
            backend=self.backend,
        )

    def _prepare(self, key: Tensor, value: Tensor | None, first: int) -> tuple[Tensor, Tensor]:
        """Return prepared keys and values, as a Memory stores them; `first` is the position of the first key."""
        value = key if value is None else value
        check_pairs(key, value)
        _, key, value = self.input(None, key, value)
        return self.score.prepare_key(key, first), value

    def _flatten_heads(self, heads: Tensor) -> Tensor:
        """Return (*batch, kv_heads, heads_per_kv, queries, dim) as (*batch, heads, queries, dim)."""
        return heads if self.kv_heads == self.heads else heads.flatten(-4, -3)

    def _record(self, heads: Attended) -> MultiHeadAttended:
        """Return the record of the layer for the record of its heads."""
        return MultiHeadAttended._of_heads(heads, self.join(heads.output))

    def _check_memory(self, query: Tensor, memory: Memory) -> None:
        """Raise a RegardError unless this layer made the memory and its keys and values fit the projected queries."""
        is_memory = isinstance(memory, Memory) and memory.value.ndim >= 3
        if not is_memory or memory.value.shape[-3:-1] != (self.kv_heads, memory.keys):
            raise RegardError(
                "memory",
                got=f"{memory}" if isinstance(memory, Memory) else describe(memory),
                needed=f"a Memory of this layer, with {self.kv_heads} heads of keys and values",
                repair="Pass the result of remember of this layer.",
            )
        memory.check_owner(self)
        tokens = query, memory.key, memory.value
        if self.kv_heads != self.heads:
            tokens = tuple(x[..., :1, :, :] for x in tokens)  # the numbers of heads differ and are checked above
        check_inputs(*tokens)

    def extra_repr(self) -> str:
        """Return heads, dropout and backend, which the submodules do not show."""
        backend = "" if self.backend == "auto" else f", backend={self.backend!r}"
        return f"heads={self.heads}, kv_heads={self.kv_heads}, dropout={self.dropout}{backend}"


def _check_query_is_given(query: Tensor | None) -> None:
    """Raise a RegardError if the query is None. The projections accept None, because `remember` has no queries."""
    if query is None:
        raise RegardError(
            "query",
            got=describe(query),
            needed="a torch.Tensor",
            repair="Pass the tokens that attend to the keys, (*batch, queries, dim).",
        )


def _checked_gate(gate: Tensor, heads: int) -> Tensor:
    """Return the gate, or raise a RegardError unless it has one factor for each head."""
    if isinstance(gate, Tensor) and gate.shape == (heads,):
        return gate
    raise RegardError(
        "head_gate",
        got=describe(gate),
        needed=f"({heads},), one factor for each head",
        repair="Assign a tensor of this shape, or use switch_off and switch_on.",
    )


def _set_gate(layer: MultiHeadAttention, heads: int | Iterable[int], factor: float) -> None:
    """Set the factor of some heads. The gate becomes None if all factors are 1, unless it is a parameter."""
    indices = _head_indices(heads, layer.heads)
    if isinstance(layer.head_gate, nn.Parameter):  # changed in place, because an optimizer may hold it
        with torch.no_grad():
            layer.head_gate[indices] = factor
        return
    gate = layer.input.matrices()[0].new_ones(layer.heads) if layer.head_gate is None else layer.head_gate.clone()
    gate[indices] = factor
    if "head_gate" in layer._parameters:  # a parameter was assigned and then None: make it a buffer again
        del layer.head_gate
        layer.register_buffer("head_gate", None, persistent=False)
    layer.head_gate = None if bool((gate == 1).all()) else gate


def _head_indices(heads: Any, count: int) -> list[int]:
    """Return one or more head indices as a list, or raise a RegardError."""
    indices: list[Any]
    try:
        indices = list(heads)
    except TypeError:  # not iterable: a single index, or an error below
        indices = [heads]
    for head in indices:
        if isinstance(head, bool) or not isinstance(head, Integral) or not -count <= int(head) < count:
            raise RegardError(
                "heads",
                got=repr(head),
                needed=f"indices of heads, from 0 to {count - 1}",
                repair="Pass for example [0, 2].",
            )
    return [int(head) for head in indices]


def _checked_kv_heads(heads: int, kv_heads: int) -> int:
    """Return kv_heads, or raise a RegardError unless it divides heads."""
    check_int("kv_heads", kv_heads)
    if heads % kv_heads:
        raise RegardError(
            "kv_heads",
            got=f"{kv_heads} for {heads} heads",
            needed="a divisor of heads, so that each head of keys and values has equally many query heads",
            repair="Leave kv_heads out for one head of keys and values per query head.",
        )
    return kv_heads


def _default_head_dim(dim: int, heads: int) -> int:
    """Return dim / heads, or raise a RegardError unless heads divides dim."""
    if dim % heads:
        raise RegardError(
            "heads",
            got=f"{heads} for dim {dim}",
            needed="a number of heads that divides dim, or head_dim=",
            repair="Pass head_dim, the size of a projected query and key; dim need not be a multiple of it.",
        )
    return dim // heads


def _check_position_bias(bias: object, heads: int) -> None:
    """Raise a RegardError unless the bias is None or a callable. `Alibi` must have one slope for each head."""
    if bias is not None and (isinstance(bias, type | Tensor) or not callable(bias)):
        raise RegardError(
            "position_bias",
            got=f"{bias!r:.60}",
            needed="a callable of query positions and key positions",
            repair="Pass for example Alibi(heads).",
        )
    if isinstance(bias, Alibi) and bias.heads != heads:
        raise RegardError(
            "position_bias",
            got=f"Alibi({bias.heads}) for {heads} heads",
            needed="one slope for each head",
            repair=f"Pass Alibi({heads}).",
        )
