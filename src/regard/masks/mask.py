"""`Mask`: which keys each query may attend to. True always means "may attend"."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.checks import check_int, describe
from regard.errors import RegardError
from regard.masks import expressions
from regard.masks.bound import BoundMask, cached
from regard.masks.checks import CallSizes, check_bool, check_integer, check_sizes, float_repair, not_a_mask_error
from regard.masks.drawing import draw_expression


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mask:
    """Which keys each query may attend to; built by its constructors and combined by `&`, `|` and `~`.

    A mask is immutable and has no sizes. It is checked against the sizes of a call when it is passed to the call.

    The tensors of `lengths`, `lengths_per_query` and `keys` are copied, so changing them later does not change the
    mask; those of `keep`, `drop` and `documents` are not. A mask built while a CUDA graph is captured copies its
    tensors again at each replay.

    >>> print((Mask.causal() & Mask.lengths(torch.tensor(3))).draw(queries=4, keys=4))
              keys
              0
    queries 0 █···
            1 ██··
            2 ███·
            3 ███·
    """

    _expression: expressions.Expression
    # A cache: bound masks of recent calls, so that the layers of a model share the tensors derived from padding.
    _bound: dict[Any, Any] = field(default_factory=dict, init=False)

    def __reduce__(self) -> tuple:
        """Pickle and copy without the cache, which belongs to this process and its CUDA streams."""
        return Mask, (self._expression,)

    def __post_init__(self) -> None:
        """Raise a RegardError for `Mask(tensor)`, which would not say what True means."""
        if not isinstance(self._expression, expressions.Expression):
            raise not_a_mask_error("Mask", self._expression)

    @staticmethod
    def lengths(lengths: Tensor) -> "Mask":
        """Return the mask that allows the first keys of each batch element: key j is allowed if j < length.

        Args:
            lengths: integer (*batch). Batch axes at the end, such as heads, may be left out. The values are not
                checked, because that would wait for a GPU: a length above the number of keys allows every key, and a
                length below 1 allows none.

        Returns:
            The mask.

        Raises:
            RegardError: if `lengths` is not an integer tensor.
        """
        check_integer("Mask.lengths", "lengths", lengths, "(*batch)", 0)
        return Mask(expressions.Lengths.from_tensor(lengths, per_query=False))

    @staticmethod
    def lengths_per_query(lengths: Tensor) -> "Mask":
        """Return the mask that allows the first keys of each query: key j is allowed if j < length of the query.

        Args:
            lengths: integer (*batch, queries). Batch axes at the end, such as heads, may be left out.

        Returns:
            The mask.

        Raises:
            RegardError: if `lengths` is not an integer tensor with at least one axis.
        """
        check_integer("Mask.lengths_per_query", "lengths", lengths, "(*batch, queries)", 1)
        return Mask(expressions.Lengths.from_tensor(lengths, per_query=True))

    @staticmethod
    def keep(matrix: Tensor) -> "Mask":
        """Return the mask that allows a pair where a matrix is True.

        Args:
            matrix: bool, with at least two axes, broadcastable to (*batch, queries, keys). As in broadcasting, axes
                are aligned from the right, and an axis of size 1 is shared.

        Returns:
            The mask.

        Raises:
            RegardError: if `matrix` is not a boolean tensor with at least two axes.
        """
        check_bool("Mask.keep", matrix, "(*batch, queries, keys)", 2, "For one entry per key, write Mask.keys(m).")
        return Mask(expressions.Matrix(matrix, keeps=True))

    @staticmethod
    def drop(matrix: Tensor) -> "Mask":
        """Return the mask that forbids a pair where a matrix is True.

        Args:
            matrix: as for `keep`, but True means "must not attend".

        Returns:
            The mask.

        Raises:
            RegardError: if `matrix` is not a boolean tensor with at least two axes.
        """
        check_bool("Mask.drop", matrix, "(*batch, queries, keys)", 2, "For one entry per key, write ~Mask.keys(m).")
        return Mask(expressions.Matrix(matrix, keeps=False))

    @staticmethod
    def keys(real: Tensor) -> "Mask":
        """Return the mask that allows real keys and forbids padding.

        Args:
            real: bool (*batch, keys), True for a real token and False for padding. Batch axes at the end, such as
                heads, may be left out.

        Returns:
            The mask.

        Raises:
            RegardError: if `real` is not a boolean tensor with at least one axis.
        """
        check_bool("Mask.keys", real, "(*batch, keys)", 1, "Pass one entry per key.")
        return Mask(expressions.Keys.from_tensor(real))

    @staticmethod
    def documents(query_ids: Tensor, key_ids: Tensor) -> "Mask":
        """Return the mask that allows a pair in the same document: query and key have equal ids.

        Args:
            query_ids: integer (*batch, queries). Batch axes at the end, such as heads, may be left out.
            key_ids: integer (*batch, keys), likewise.

        Returns:
            The mask.

        Raises:
            RegardError: if an argument is not an integer tensor with at least one axis.

        >>> ids = torch.tensor([0, 0, 0, 1])
        >>> print(Mask.documents(ids, ids).draw())
                  keys
                  0
        queries 0 ███·
                1 ███·
                2 ███·
                3 ···█
        """
        check_integer("Mask.documents", "query_ids", query_ids, "(*batch, queries)", 1)
        check_integer("Mask.documents", "key_ids", key_ids, "(*batch, keys)", 1)
        return Mask(expressions.Documents(query_ids, key_ids))

    @staticmethod
    def causal(align: str | None = None) -> "Mask":
        """Return the causal mask: each query may attend to the keys up to its own position.

        Args:
            align: the positions of the queries if their number differs from that of the keys: "top_left" (query 0 is
                at key 0) or "lower_right" (the last query is at the last key). A call that knows the position of its
                queries, such as a call with a Memory, ignores `align`.

        Returns:
            The mask.

        Raises:
            RegardError: if `align` has another value.
        """
        return Mask(expressions.Band(None, 0, _check_align("Mask.causal", align)))

    @staticmethod
    def window(left: int | None, right: int | None, align: str | None = None) -> "Mask":
        """Return a sliding window: the query at position i may attend to the keys i - left to i + right.

        Args:
            left: number of keys before the query's position, or None for all of them.
            right: number of keys after the query's position, or None for all of them.
            align: as for `causal`.

        Returns:
            The mask.

        Raises:
            RegardError: if a number is not an int or is negative, or if `align` has another value.

        >>> print(Mask.window(1, 0).draw(queries=4, keys=4))
                  keys
                  0
        queries 0 █···
                1 ██··
                2 ·██·
                3 ··██
        """
        for name, size in (("left", left), ("right", right)):
            if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
                raise RegardError(
                    "Mask.window",
                    got=f"{name}={size!r}",
                    needed=f"{name} to be a number of keys, 0 or more, or None for all keys on that side",
                    repair="Write None where other libraries write -1. To hide the key at the query's own position, "
                    "combine the mask with & ~Mask.window(0, 0).",
                )
        return Mask(expressions.Band(left, right, _check_align("Mask.window", align)))

    @staticmethod
    def from_multihead(
        attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, *, heads: int | None = None
    ) -> "Mask":
        """Return the mask for the masks of nn.MultiheadAttention, where True means "must not attend".

        Args:
            attn_mask: bool (queries, keys) or (batch * heads, queries, keys).
            key_padding_mask: bool (batch, keys) or (keys), True for padding.
            heads: number of heads; needed for an `attn_mask` with three axes.

        Returns:
            The mask.

        Raises:
            RegardError: if both masks are missing, or if one of them is not boolean or has the wrong axes.

        >>> Mask.from_multihead(key_padding_mask=torch.tensor([[False, False, True]]))
        ~Mask.keys(bool (1, 3) on cpu)
        """
        parts: list[expressions.Expression] = []
        if attn_mask is not None:
            parts.append(expressions.Matrix(_split_heads(attn_mask, heads), keeps=False))
        if key_padding_mask is not None:
            _check_not_additive("key_padding_mask", key_padding_mask, "(batch, keys)", "m[:, None, None]")
            check_bool("key_padding_mask", key_padding_mask, "(batch, keys)", 1, "Pass one entry per key.")
            if key_padding_mask.ndim > 2:
                raise RegardError(
                    "key_padding_mask",
                    got=describe(key_padding_mask),
                    needed="a boolean tensor (batch, keys)",
                    repair="Pass a mask with one entry per query and key as attn_mask.",
                )
            parts.append(expressions.Not(expressions.Keys.from_tensor(key_padding_mask)))
        if not parts:
            raise RegardError(
                "Mask.from_multihead",
                got="neither attn_mask nor key_padding_mask",
                needed="at least one of them",
                repair="Pass mask=None to the call if every key is allowed.",
            )
        return Mask(parts[0] if len(parts) == 1 else expressions.And(*parts))

    @staticmethod
    def from_sdpa(attn_mask: Tensor) -> "Mask":
        """Return the mask for a boolean attn_mask of scaled_dot_product_attention.

        Args:
            attn_mask: bool, with at least two axes, broadcastable to (*batch, queries, keys); True means "may attend".

        Returns:
            The mask.

        Raises:
            RegardError: if `attn_mask` is not a boolean tensor with at least two axes.
        """
        check_bool("attn_mask", attn_mask, "(*batch, queries, keys)", 2, "For one entry per key, write Mask.keys(m).")
        return Mask(expressions.Matrix(attn_mask, keeps=True))

    def to_multihead(self, batch: int, heads: int, queries: int, keys: int) -> Tensor:
        """Return the mask as an attn_mask of nn.MultiheadAttention.

        Args:
            batch: batch size.
            heads: number of heads.
            queries: number of queries.
            keys: number of keys.

        Returns:
            bool (batch * heads, queries, keys), True where a query must not attend, on the device of the mask.

        Raises:
            RegardError: if a size is invalid or does not fit the mask.
        """
        check_int("batch", batch, least=0)
        check_int("heads", heads, least=0)
        return ~self.to_sdpa((batch, heads), queries, keys).reshape(batch * heads, queries, keys)

    def to_sdpa(self, batch: Sequence[int], queries: int, keys: int) -> Tensor:
        """Return the mask as an attn_mask of scaled_dot_product_attention.

        Args:
            batch: sizes of the batch axes, heads included.
            queries: number of queries.
            keys: number of keys.

        Returns:
            bool (*batch, queries, keys), True where a query may attend, on the device of the mask. It is a copy;
            entries along a shared axis share memory.

        Raises:
            RegardError: if a size is invalid or does not fit the mask.

        >>> Mask.lengths(torch.tensor([1, 2])).to_sdpa((2,), queries=1, keys=3)
        tensor([[[ True, False, False]],
        <BLANKLINE>
                [[ True,  True, False]]])
        """
        check_sizes(batch, queries, keys)
        device = self._expression.known_sizes().device or torch.device("cpu")
        mask = self._expression.bind(CallSizes(tuple(batch), queries, keys, device))
        return mask.tile(slice(0, queries), slice(0, keys), device).clone().expand(*batch, queries, keys)

    @staticmethod
    def expect(value: object, argument: str = "mask") -> "Mask":
        """Return `value` if it is a Mask.

        Args:
            value: the value to check.
            argument: name of the argument for the error message.

        Returns:
            The same object.

        Raises:
            RegardError: if it is not a Mask; the message names the constructor to use.
        """
        if isinstance(value, Mask):
            return value
        raise not_a_mask_error(argument, value)

    def __and__(self, other: "Mask") -> "Mask":
        """Return the mask that allows what both masks allow."""
        return Mask(expressions.And(self._expression, Mask.expect(other, "&")._expression))

    def __or__(self, other: "Mask") -> "Mask":
        """Return the mask that allows what at least one of the masks allows."""
        return Mask(expressions.Or(self._expression, Mask.expect(other, "|")._expression))

    # Python would use __and__ and __or__ for &= and |= anyway; torch.compile before 2.13 does not.
    __iand__ = __and__
    __ior__ = __or__

    def __rand__(self, other: object) -> "Mask":
        """Raise a RegardError for `tensor & mask`."""
        raise not_a_mask_error("&", other)

    def __ror__(self, other: object) -> "Mask":
        """Raise a RegardError for `tensor | mask`."""
        raise not_a_mask_error("|", other)

    def __invert__(self) -> "Mask":
        """Return the mask that allows what this mask forbids."""
        return self.negated()

    def negated(self) -> "Mask":
        """Return `~self`; for functions under torch.compile, which does not trace `~` on objects.

        Returns:
            The mask that allows what this mask forbids.
        """
        return Mask(expressions.Not(self._expression))

    def __bool__(self) -> bool:
        """Raise a RegardError, because `first and second` would silently ignore the first mask."""
        raise RegardError(
            "mask",
            got="a request for its truth value, such as by and, or, not or if",
            needed="the operators & for and, | for or, ~ for not",
            repair="To test whether a mask was given, write mask is not None.",
        )

    def __repr__(self) -> str:
        """Return the constructors and operators that build the mask."""
        return str(self._expression)

    def place(
        self,
        *,
        batch: tuple[int, ...],
        queries: int,
        keys: int,
        device: torch.device,
        first_query: int | None = None,
        has_heads: bool = False,
    ) -> BoundMask:
        """Check the mask against the sizes of a call and bind it to them.

        Args:
            batch: sizes of the batch axes, heads included.
            queries: number of queries.
            keys: number of keys.
            device: device of the query. The tensors of the mask must be on it.
            first_query: position of query 0 among the keys, if the call knows it, such as a call with a Memory. Causal
                masks and windows then use it instead of `align`.
            has_heads: whether the last batch axis is the heads of a layer. A `keep` or `drop` of three axes is then an
                error if its first axis may mean either the batch or the heads.

        Returns:
            The bound mask.

        Raises:
            RegardError: if a tensor of the mask does not fit the sizes or the device, or if `align` is needed.
        """
        sizes = CallSizes(batch, queries, keys, device, first_query, has_heads)
        if isinstance(self._expression, expressions.Band):  # no tensors, so nothing to cache
            return self._expression.bind(sizes)
        return cached(self._bound, sizes, device, lambda: self._expression.bind(sizes))

    def select(self, rows: Tensor, batch_axes: int | None = None) -> "Mask":
        """Return the mask of selected rows of the first batch axis, as beam search needs it.

        Tensors that the batch shares are not changed.

        Args:
            rows: int64 (rows,), positions along the first batch axis.
            batch_axes: number of batch axes of a call; needed for `keep` and `drop` of three axes or more.

        Returns:
            The mask.

        Raises:
            RegardError: if `rows` is invalid, or if `batch_axes` is needed.

        >>> Mask.lengths(torch.tensor([3, 5])).select(torch.tensor([1, 1, 0])).to_sdpa((3,), 1, 6).sum(-1).flatten()
        tensor([5, 5, 3])
        """
        if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.ndim != 1:
            raise RegardError(
                "rows",
                got=describe(rows),
                needed="an int64 tensor with one axis",
                repair="Pass the row numbers, for example torch.tensor([0, 0, 2]).",
            )
        return Mask(self._expression.select(rows, batch_axes))

    def real_keys(self, batch: tuple[int, ...], keys: int) -> Tensor | None:
        """Return which keys are real tokens, if the mask is a plain padding mask.

        Args:
            batch: sizes of the batch axes.
            keys: number of keys.

        Returns:
            bool (*batch, keys), a copy; None unless the mask is a `lengths` or `keys` of exactly these sizes.
        """
        match self._expression:
            case expressions.Lengths(lengths=lengths, per_query=False) if lengths.shape == batch:
                return torch.arange(keys, device=lengths.device) < lengths[..., None]
            case expressions.Keys(real=real) if real.shape == (*batch, keys):
                return real.clone()
        return None

    @property
    def is_causal(self) -> bool:
        """Whether the mask is a causal mask and nothing else."""
        expression = self._expression
        return isinstance(expression, expressions.Band) and expression.left is None and expression.right == 0

    def grow(self, old_keys: int, new_keys: int) -> "Mask":
        """Return the mask for more keys.

        Padding masks allow the appended keys; causal masks and windows apply to them.

        Args:
            old_keys: number of keys before.
            new_keys: number of appended keys.

        Returns:
            The mask for `old_keys + new_keys` keys.

        Raises:
            RegardError: if a number is not an int or is negative, or if the mask covers only the existing keys, as
                `keep`, `drop`, `documents` and `lengths_per_query` do.
        """
        for argument, number in (("old_keys", old_keys), ("new_keys", new_keys)):
            check_int(argument, number, least=0)
        return Mask(self._expression.extend(old_keys, new_keys, allowed=True))

    def to(self, device: torch.device | str) -> "Mask":
        """Return the mask with its tensors on another device.

        Args:
            device: the device.

        Returns:
            The mask.
        """
        return Mask(self._expression.to(torch.device(device)))

    def draw(self, queries: int | None = None, keys: int | None = None, batch: Sequence[int] | None = None) -> str:
        """Return a drawing of the mask in text: █ where a query may attend, · where it must not.

        The drawing has one panel for each batch element, at most 8 panels of 48 queries and 96 keys. It ends with the
        numbers of queries, keys and panels that are left out.

        Args:
            queries: number of queries; by default that of the mask's tensors, else the number of keys, else 8.
            keys: number of keys; by default that of the mask's tensors, else the number of queries.
            batch: sizes of the batch axes; by default those of the mask's tensors.

        Returns:
            The lines of the drawing.

        Raises:
            RegardError: if a size is invalid or does not fit the mask.
        """
        return draw_expression(self._expression, queries, keys, batch)


def _check_align(argument: str, align: str | None) -> str | None:
    """Return `align` if it is valid, else raise a RegardError."""
    if align is not None and align not in expressions.ALIGNMENTS:
        raise RegardError(
            argument,
            got=f"align={align!r}",
            needed='align to be "top_left", "lower_right" or None',
            repair='Write align="lower_right" if the last query is at the position of the last key, or '
            'align="top_left" if query 0 is at the position of key 0.',
        )
    return align


def _split_heads(attn_mask: Tensor, heads: int | None) -> Tensor:
    """Return the attn_mask of nn.MultiheadAttention, checked and with heads in an axis of their own.

    Args:
        attn_mask: bool (queries, keys) or (batch * heads, queries, keys).
        heads: number of heads.

    Returns:
        (queries, keys) or (batch, heads, queries, keys).
    """
    shape = "(queries, keys) or (batch * heads, queries, keys)"
    has_heads = isinstance(attn_mask, Tensor) and attn_mask.ndim == 3
    _check_not_additive("attn_mask", attn_mask, shape, "m.unflatten(0, (-1, heads))" if has_heads else "m")
    check_bool("attn_mask", attn_mask, shape, 2, "Pass a mask with one entry per key as key_padding_mask.")
    if attn_mask.ndim == 2:
        return attn_mask
    if attn_mask.ndim > 3:
        raise RegardError(
            "attn_mask",
            got=describe(attn_mask),
            needed=f"a boolean tensor {shape}",
            repair="Flatten the batch axes and heads into one axis, or write Mask.drop(m).",
        )
    if heads is not None:
        check_int("heads", heads)
    if heads is None or attn_mask.shape[0] % heads:
        raise RegardError(
            "heads",
            got=f"{heads}, with attn_mask {describe(attn_mask)}",
            needed="the number of heads, a divisor of the size of the first axis, batch * heads",
            repair="Pass the num_heads of the nn.MultiheadAttention as heads.",
        )
    return attn_mask.unflatten(0, (-1, heads))


def _check_not_additive(argument: str, mask: object, shape: str, bias: str) -> None:
    """Raise if a mask is floating point: nn.MultiheadAttention would add it to the scores.

    Args:
        argument: name of the argument for the error message.
        mask: the value to check.
        shape: the needed shape, for the error message.
        bias: an expression of the mask m that is a bias of the layer, for the error message.
    """
    if isinstance(mask, Tensor) and mask.is_floating_point():
        raise RegardError(
            argument,
            got=describe(mask),
            needed=f"a boolean tensor {shape}",
            repair=float_repair(f"pass {argument}=m != 0", f"pass bias={bias} to the layer"),
        )
