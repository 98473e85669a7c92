"""`Mask`: who may attend to whom, said in words; True always means "may attend"."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor

from regard.checks import check_int, describe
from regard.errors import RegardError
from regard.masks import expressions
from regard.masks.bound import BoundMask, cached
from regard.masks.checks import CallSizes, check_bool, check_integer, check_sizes, not_a_mask
from regard.masks.expressions import And, Expression, Keys, Matrix, Not


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mask:
    """A statement about which keys each query may attend to; made by its words, joined by `&`, `|`, `~`.

    A mask is immutable and knows no sizes: it is checked when a call places it on its own. Padding (lengths,
    keys) is copied: a tensor that changes later does not change the mask. One made while a CUDA graph is recorded reads
    its tensor anew at each replay.

    >>> print((Mask.causal() & Mask.lengths(torch.tensor(3))).draw(queries=4, keys=4))
              keys
              0
    queries 0 █···
            1 ██··
            2 ███·
            3 ███·
    """

    _expression: expressions.Expression
    # Masks bound to the sizes of recent calls: the layers of a model share what is derived from padding.
    _bound: dict[Any, Any] = field(default_factory=dict, init=False)

    def __reduce__(self) -> tuple:
        """Copy without the cache, which belongs to this process and its CUDA streams."""
        return Mask, (self._expression,)

    def __post_init__(self) -> None:
        """Refuse `Mask(tensor)`, which would not say what True means."""
        if not isinstance(self._expression, expressions.Expression):
            raise not_a_mask("Mask", self._expression)

    @staticmethod
    def lengths(lengths: Tensor) -> "Mask":
        """Key j is allowed where j < length; lengths: integer (*leading batch), heads may be missing.

        Values are not looked at, which would wait for a GPU: a length beyond the keys allows all, one below 1 none.
        """
        check_integer("Mask.lengths", lengths, "(*leading batch)", 0)
        return Mask(expressions.Lengths.of(lengths, per_query=False))

    @staticmethod
    def lengths_per_query(lengths: Tensor) -> "Mask":
        """A length for every query; lengths: integer (*leading batch, queries), heads may be missing."""
        check_integer("Mask.lengths_per_query", lengths, "(*leading batch, queries)", 1)
        return Mask(expressions.Lengths.of(lengths, per_query=True))

    @staticmethod
    def keep(matrix: Tensor) -> "Mask":
        """True means may attend; matrix: bool (…, queries, keys), aligned from the right, 1 is shared."""
        check_bool("Mask.keep", matrix, "(…, queries, keys)", 2, "For one entry per key write Mask.keys(m).")
        return Mask(expressions.Matrix(matrix, keeps=True))

    @staticmethod
    def drop(matrix: Tensor) -> "Mask":
        """True means must not attend; matrix: bool (…, queries, keys), aligned from the right."""
        check_bool("Mask.drop", matrix, "(…, queries, keys)", 2, "For one entry per key write ~Mask.keys(m).")
        return Mask(expressions.Matrix(matrix, keeps=False))

    @staticmethod
    def keys(real: Tensor) -> "Mask":
        """True marks a real token, False padding; real: bool (*leading batch, keys), heads may be missing."""
        check_bool("Mask.keys", real, "(*leading batch, keys)", 1, "Give it one entry per key.")
        return Mask(expressions.Keys.of(real))

    @staticmethod
    def documents(query_ids: Tensor, key_ids: Tensor) -> "Mask":
        """Allowed where the ids are equal; integer (*leading batch, queries) and (*leading batch, keys)."""
        check_integer("Mask.documents", query_ids, "(*leading batch, queries)", 1)
        check_integer("Mask.documents", key_ids, "(*leading batch, keys)", 1)
        return Mask(expressions.Documents(query_ids, key_ids))

    @staticmethod
    def causal(align: str | None = None) -> "Mask":
        """Query i sees the keys up to its own position.

        Args:
            align: where the queries stand when they are not as many as the keys: "top_left" (query 0 at
                key 0) or "lower_right" (the last query at the last key). A call that knows the position of
                its queries, as one with a Memory does, uses that position and needs no align.
        """
        return Mask(expressions.Band(None, 0, _check_align("Mask.causal", align)))

    @staticmethod
    def window(left: int | None, right: int | None, align: str | None = None) -> "Mask":
        """Query i sees keys i - left .. i + right; None is unbounded; align as in `causal`."""
        for side in (left, right):
            if side is not None and (isinstance(side, bool) or not isinstance(side, int) or side < 0):
                raise RegardError(
                    "Mask.window",
                    got=f"{side!r}",
                    needed="a number of keys, 0 or more, on each side; None for an unbounded side",
                    repair="Write None for the -1 of others; to exclude the key itself & ~Mask.window(0, 0).",
                )
        return Mask(expressions.Band(left, right, _check_align("Mask.window", align)))

    @staticmethod
    def from_multihead(
        attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, *, heads: int | None = None
    ) -> "Mask":
        """The masks of nn.MultiheadAttention, where True means must not attend.

        Args:
            attn_mask: bool (queries, keys) or (batch * heads, queries, keys), which needs `heads`.
            key_padding_mask: bool (batch, keys) or (keys), True at padding.
            heads: the number of heads, for an attn_mask of three axes.
        """
        return Mask(_from_multihead(attn_mask, key_padding_mask, heads))

    @staticmethod
    def from_sdpa(attn_mask: Tensor) -> "Mask":
        """The boolean attn_mask of scaled_dot_product_attention, where True means may attend."""
        return Mask(_from_sdpa(attn_mask))

    def to_multihead(self, batch: int, heads: int, queries: int, keys: int) -> Tensor:
        """The attn_mask of nn.MultiheadAttention: bool (batch * heads, queries, keys), True drops."""
        return _to_multihead(self._expression, batch, heads, queries, keys)

    def to_sdpa(self, batch: Sequence[int], queries: int, keys: int) -> Tensor:
        """The attn_mask of scaled_dot_product_attention: bool (*batch, queries, keys), True may attend."""
        return _to_sdpa(self._expression, batch, queries, keys)

    @staticmethod
    def expect(value: object, argument: str = "mask") -> "Mask":
        """`value` if it is a Mask; otherwise the error that says which word to use."""
        if isinstance(value, Mask):
            return value
        raise not_a_mask(argument, value)

    def __and__(self, other: "Mask") -> "Mask":
        """Allowed where both allow."""
        return Mask(expressions.And(self._expression, Mask.expect(other, "&")._expression))

    def __or__(self, other: "Mask") -> "Mask":
        """Allowed where one of them allows."""
        return Mask(expressions.Or(self._expression, Mask.expect(other, "|")._expression))

    # Python would find these by itself; torch.compile before 2.13 does not.
    __iand__ = __and__
    __ior__ = __or__

    def __rand__(self, other: object) -> "Mask":
        """Refuse `tensor & mask`."""
        raise not_a_mask("&", other)

    def __ror__(self, other: object) -> "Mask":
        """Refuse `tensor | mask`."""
        raise not_a_mask("|", other)

    def __invert__(self) -> "Mask":
        """Allowed where this one forbids."""
        return self.negated()

    def negated(self) -> "Mask":
        """The same as `~`, for functions under torch.compile, which does not trace that sign on objects."""
        return Mask(expressions.Not(self._expression))

    def __bool__(self) -> bool:
        """Refuse `and`, `or`, `not` and `if`, which would drop a mask without a word."""
        raise RegardError(
            "mask",
            got="its truth value",
            needed="& for and, | for or, ~ for not",
            repair="Write mask is None to ask whether there is one.",
        )

    def __repr__(self) -> str:
        """The words it was made of."""
        return f"{self._expression}"

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
        """Check the mask against the sizes of a call and lay it on them.

        Args:
            batch: the batch axes of the call, heads included.
            queries: how many.
            keys: how many.
            device: where the query is; a mask elsewhere is refused.
            first_query: the position of query 0 counted in keys, where the call knows it (a Memory does); it
                then decides where causal masks and windows stand, whatever their align.
            has_heads: whether the last batch axis is heads that a layer made: then a `keep` or `drop` of three axes
                that may mean either is refused.
        """
        sizes = CallSizes(tuple(batch), queries, keys, device, first_query, has_heads)
        if isinstance(self._expression, expressions.Band):  # it has no tensors
            return self._expression.bind(sizes)
        return cached(self._bound, sizes, device, lambda: self._expression.bind(sizes))

    def select(self, rows: Tensor, batch_axes: int | None = None) -> "Mask":
        """The mask of the chosen rows of the first batch axis, as beams do; what is shared stays shared.

        Args:
            rows: int64 (chosen).
            batch_axes: how many batch axes a call has; needed for `keep` and `drop` of three axes or more.
        """
        if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.ndim != 1:
            needed = "an int64 tensor with one axis"
            raise RegardError(
                "rows",
                got=describe(rows),
                needed=needed,
                repair="Pass the row numbers, for example torch.tensor([0, 0, 2]).",
            )
        return Mask(self._expression.select(rows, batch_axes))

    def real_keys(self, batch: tuple[int, ...], keys: int) -> Tensor | None:
        """bool (*batch, keys), True at real tokens, where the mask says no more than that, for each row of a batch."""
        match self._expression:
            case expressions.Lengths(lengths=lengths, per_query=False) if lengths.shape == batch:
                return torch.arange(keys, device=lengths.device) < lengths[..., None]
            case expressions.Keys(real=real) if real.shape == (*batch, keys):
                return real.clone()
        return None

    @property
    def is_causal(self) -> bool:
        """Whether it says no more than that query i sees the keys up to its own position."""
        expression = self._expression
        return isinstance(expression, expressions.Band) and expression.left is None and expression.right == 0

    def grow(self, old_keys: int, new_keys: int) -> "Mask":
        """The mask after `new_keys` keys that everyone may see were appended to `old_keys`."""
        for argument, number in (("old_keys", old_keys), ("new_keys", new_keys)):
            check_int(argument, number, least=0)
        return Mask(self._expression.extend(old_keys, new_keys, allowed=True))

    def to(self, device: torch.device | str) -> "Mask":
        """The mask with its tensors on another device."""
        return Mask(self._expression.to(torch.device(device)))

    def draw(self, queries: int | None = None, keys: int | None = None, batch: Sequence[int] | None = None) -> str:
        """A picture in text, one character a cell: █ may attend, · may not.

        Sizes that are not given are those of the mask's tensors, and 8 where they tell nothing.
        """
        return _draw(self._expression, queries, keys, batch)


def _check_align(argument: str, align: str | None) -> str | None:
    if align is not None and align not in expressions.ALIGNMENTS:
        raise RegardError(
            argument,
            got=f"align={align!r}",
            needed='"top_left", "lower_right" or None',
            repair='Write align="lower_right" if the last query stands at the last key.',
        )
    return align


def _from_multihead(attn_mask: Tensor | None, key_padding_mask: Tensor | None, heads: int | None) -> Expression:
    """The word for (queries, keys) or (batch * heads, queries, keys), and (batch, keys), True dropping."""
    parts: list[Expression] = []
    if attn_mask is not None:
        parts.append(Matrix(_split_heads(attn_mask, heads), keeps=False))
    if key_padding_mask is not None:
        _refuse_numbers("key_padding_mask", key_padding_mask, "(batch, keys)", "m[:, None, None]")
        check_bool("key_padding_mask", key_padding_mask, "(batch, keys)", 1, "Give it one entry per key.")
        if key_padding_mask.ndim > 2:
            raise RegardError(
                "key_padding_mask",
                got=describe(key_padding_mask),
                needed="a boolean tensor (batch, keys)",
                repair="A mask with an entry for every query and key is the attn_mask.",
            )
        parts.append(Not(Keys.of(key_padding_mask)))
    if not parts:
        raise RegardError(
            "Mask.from_multihead",
            got="neither attn_mask nor key_padding_mask",
            needed="at least one of them",
            repair="Pass mask=None where everything is allowed.",
        )
    return parts[0] if len(parts) == 1 else And(*parts)


def _from_sdpa(attn_mask: Tensor) -> Expression:
    """The word for a boolean (…, queries, keys), True keeping."""
    check_bool(
        "attn_mask",
        attn_mask,
        "(…, queries, keys)",
        2,
        "Write Mask.keys(m) for one entry per key.",
    )
    return Matrix(attn_mask, keeps=True)


def _to_sdpa(expression: Expression, batch: Sequence[int], queries: int, keys: int) -> Tensor:
    """A boolean (*batch, queries, keys), True keeping, on the mask's device; shared axes share memory.

    It is the caller's own: what a mask keeps is not handed out.
    """
    check_sizes(batch, queries, keys)
    device = expression.known_sizes().device or torch.device("cpu")
    mask = expression.bind(CallSizes(tuple(batch), queries, keys, device))
    return mask.tile(slice(0, queries), slice(0, keys), device).clone().expand(*batch, queries, keys)


def _to_multihead(expression: Expression, batch: int, heads: int, queries: int, keys: int) -> Tensor:
    """A boolean (batch * heads, queries, keys), True dropping."""
    return ~_to_sdpa(expression, (batch, heads), queries, keys).reshape(batch * heads, queries, keys)


def _split_heads(attn_mask: Tensor, heads: int | None) -> Tensor:
    """(queries, keys) as it is; (batch * heads, queries, keys) as (batch, heads, queries, keys)."""
    shape = "(queries, keys) or (batch * heads, queries, keys)"
    has_heads = isinstance(attn_mask, Tensor) and attn_mask.ndim == 3
    _refuse_numbers("attn_mask", attn_mask, shape, "m.unflatten(0, (-1, heads))" if has_heads else "m")
    check_bool("attn_mask", attn_mask, shape, 2, "A mask with one entry per key is the key_padding_mask.")
    if attn_mask.ndim == 2:
        return attn_mask
    if attn_mask.ndim > 3:
        repair = "Flatten the batch axes and heads, or write Mask.drop(m)."
        raise RegardError("attn_mask", got=describe(attn_mask), needed=f"a boolean tensor {shape}", repair=repair)
    if heads is not None:
        check_int("heads", heads)
    if heads is None or attn_mask.shape[0] % heads:
        raise RegardError(
            "heads",
            got=f"{heads}, with attn_mask {describe(attn_mask)}",
            needed="the number of heads, which divides the first axis, (batch * heads)",
            repair="Pass heads= as the layer was given num_heads.",
        )
    return attn_mask.unflatten(0, (-1, heads))


def _refuse_numbers(argument: str, mask: object, shape: str, bias: str) -> None:
    """Refuse a mask whose numbers nn.MultiheadAttention would add to the scores.

    bias: the expression that makes a bias of the layer of such a mask m.
    """
    if isinstance(mask, Tensor) and mask.is_floating_point():
        raise RegardError(
            argument,
            got=describe(mask),
            needed=f"a boolean tensor {shape}",
            repair=f"If it holds only 0 and -inf, pass {argument}=m != 0. Other numbers are a bias: pass the layer "
            f"bias={bias}.",
        )


ALLOWED, FORBIDDEN = "█", "·"
_DEFAULT, _MOST_QUERIES, _MOST_KEYS, _MOST_PANELS = 8, 48, 96, 8
_MARGIN = "queries"


def _draw(expression: Expression, queries: int | None, keys: int | None, batch: Sequence[int] | None) -> str:
    """Draw every batch element, at most 8 panels of 48 queries and 96 keys; what is left out is said."""
    known, cpu = expression.known_sizes(), torch.device("cpu")
    batch = known.batch if batch is None else batch
    # Check before a missing size is derived from a given one, so that the error names the argument that was given.
    check_sizes(batch, _DEFAULT if queries is None else queries, _DEFAULT if keys is None else keys)
    queries = _first(queries, known.queries, keys, known.keys)
    keys = _first(keys, known.keys, queries)
    batch = tuple(batch)
    mask = expression.to(cpu).bind(CallSizes(batch, queries, keys, cpu))
    rows, cols = min(queries, _MOST_QUERIES), min(keys, _MOST_KEYS)
    tile = mask.tile(slice(0, rows), slice(0, cols), cpu).expand(*batch, rows, cols)
    panels = [
        "\n".join([f"batch {index}"] * bool(batch) + _panel(tile[index]))
        for index in islice(product(*map(range, batch)), _MOST_PANELS)
    ]
    left_out = {
        "queries": queries - rows,
        "keys": keys - cols,
        "panels": math.prod(batch) - len(panels),
    }
    notes = [f"… {number} more {what}" for what, number in left_out.items() if number]
    return "\n".join(panels + notes)


def _first(*sizes: int | None) -> int:
    return next((size for size in sizes if size is not None), _DEFAULT)


def _panel(cells: Tensor) -> list[str]:
    """The lines of one (queries, keys) matrix."""
    queries, keys = cells.shape
    margin = len(_MARGIN) + 1 + len(str(max(queries - 1, 0)))
    ticks = "".join(f"{key:<5}" for key in range(0, keys, 5)).rstrip()
    lines = [" " * (margin + 1) + "keys", " " * (margin + 1) + ticks]
    for query, row in enumerate(cells.tolist()):
        label = f"{_MARGIN} {query}" if query == 0 else f"{query}"
        lines.append(f"{label:>{margin}} " + "".join(ALLOWED if cell else FORBIDDEN for cell in row))
    return lines
