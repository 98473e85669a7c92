"""`Mask`: who may attend to whom, said in words; True always means "may attend"."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.masks import convert, tensors, words
from regard.masks.checks import Call, check_bool, check_integer, refuse_bare
from regard.masks.draw import draw
from regard.masks.placed import Placed
from regard.shapes import check_int, describe


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

    _word: words.Word

    def __post_init__(self) -> None:
        """Refuse `Mask(tensor)`, which would not say what True means."""
        if not isinstance(self._word, words.Word):
            raise refuse_bare("Mask", self._word)

    @staticmethod
    def lengths(lengths: Tensor) -> "Mask":
        """Key j is allowed where j < length; lengths: integer (*leading batch), heads may be missing.

        Values are not looked at, which would wait for a GPU: a length beyond the keys allows all, one below 1 none.
        """
        check_integer("Mask.lengths", lengths, "(*leading batch)", 0)
        return Mask(tensors.Lengths.of(lengths, per_query=False))

    @staticmethod
    def lengths_per_query(lengths: Tensor) -> "Mask":
        """A length for every query; lengths: integer (*leading batch, queries), heads may be missing."""
        check_integer("Mask.lengths_per_query", lengths, "(*leading batch, queries)", 1)
        return Mask(tensors.Lengths.of(lengths, per_query=True))

    @staticmethod
    def keep(matrix: Tensor) -> "Mask":
        """True means may attend; matrix: bool (…, queries, keys), aligned from the right, 1 is shared."""
        check_bool("Mask.keep", matrix, "(…, queries, keys)", 2, "For one entry per key write Mask.keys(m).")
        return Mask(tensors.Matrix(matrix, keeps=True))

    @staticmethod
    def drop(matrix: Tensor) -> "Mask":
        """True means must not attend; matrix: bool (…, queries, keys), aligned from the right."""
        check_bool("Mask.drop", matrix, "(…, queries, keys)", 2, "For one entry per key write ~Mask.keys(m).")
        return Mask(tensors.Matrix(matrix, keeps=False))

    @staticmethod
    def keys(real: Tensor) -> "Mask":
        """True marks a real token, False padding; real: bool (*leading batch, keys), heads may be missing."""
        check_bool("Mask.keys", real, "(*leading batch, keys)", 1, "Give it one entry per key.")
        return Mask(tensors.Keys.of(real))

    @staticmethod
    def documents(query_ids: Tensor, key_ids: Tensor) -> "Mask":
        """Allowed where the ids are equal; integer (*leading batch, queries) and (*leading batch, keys)."""
        check_integer("Mask.documents", query_ids, "(*leading batch, queries)", 1)
        check_integer("Mask.documents", key_ids, "(*leading batch, keys)", 1)
        return Mask(tensors.Documents(query_ids, key_ids))

    @staticmethod
    def causal(align: str | None = None) -> "Mask":
        """Query i sees the keys up to its own position.

        Args:
            align: where the queries stand when they are not as many as the keys: "top_left" (query 0 at
                key 0) or "lower_right" (the last query at the last key). A call that knows the position of
                its queries, as one with a Memory does, uses that position and needs no align.
        """
        return Mask(words.Band(None, 0, _check_align("Mask.causal", align)))

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
        return Mask(words.Band(left, right, _check_align("Mask.window", align)))

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
        return Mask(convert.from_multihead(attn_mask, key_padding_mask, heads))

    @staticmethod
    def from_sdpa(attn_mask: Tensor) -> "Mask":
        """The boolean attn_mask of scaled_dot_product_attention, where True means may attend."""
        return Mask(convert.from_sdpa(attn_mask))

    def to_multihead(self, batch: int, heads: int, queries: int, keys: int) -> Tensor:
        """The attn_mask of nn.MultiheadAttention: bool (batch * heads, queries, keys), True drops."""
        return convert.to_multihead(self._word, batch, heads, queries, keys)

    def to_sdpa(self, batch: Sequence[int], queries: int, keys: int) -> Tensor:
        """The attn_mask of scaled_dot_product_attention: bool (*batch, queries, keys), True may attend."""
        return convert.to_sdpa(self._word, batch, queries, keys)

    @staticmethod
    def expect(value: object, argument: str = "mask") -> "Mask":
        """`value` if it is a Mask; otherwise the error that says which word to use."""
        if isinstance(value, Mask):
            return value
        raise refuse_bare(argument, value)

    def __and__(self, other: "Mask") -> "Mask":
        """Allowed where both allow."""
        return Mask(words.Both(self._word, Mask.expect(other, "&")._word))

    def __or__(self, other: "Mask") -> "Mask":
        """Allowed where one of them allows."""
        return Mask(words.Either(self._word, Mask.expect(other, "|")._word))

    # Python would find these by itself; torch.compile before 2.13 does not.
    __iand__ = __and__
    __ior__ = __or__

    def __rand__(self, other: object) -> "Mask":
        """Refuse `tensor & mask`."""
        raise refuse_bare("&", other)

    def __ror__(self, other: object) -> "Mask":
        """Refuse `tensor | mask`."""
        raise refuse_bare("|", other)

    def __invert__(self) -> "Mask":
        """Allowed where this one forbids."""
        return self.negated()

    def negated(self) -> "Mask":
        """The same as `~`, for functions under torch.compile, which does not trace that sign on objects."""
        return Mask(words.Not(self._word))

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
        return f"{self._word}"

    def place(
        self,
        *,
        batch: tuple[int, ...],
        queries: int,
        keys: int,
        device: torch.device,
        first_query: int | None = None,
        has_heads: bool = False,
    ) -> Placed:
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
        return self._word.place(Call(tuple(batch), queries, keys, device, first_query, has_heads))

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
        return Mask(self._word.select(rows, batch_axes))

    def real_keys(self, batch: tuple[int, ...], keys: int) -> Tensor | None:
        """bool (*batch, keys), True at real tokens, where the mask says no more than that, for each row of a batch."""
        match self._word:
            case tensors.Lengths(lengths=lengths, per_query=False) if lengths.shape == batch:
                return torch.arange(keys, device=lengths.device) < lengths[..., None]
            case tensors.Keys(real=real) if real.shape == (*batch, keys):
                return real.clone()
        return None

    @property
    def kept(self) -> dict[Any, Any] | None:
        """What calls have made of it, to find it again; None where it says more than which keys are real tokens."""
        word = self._word  # asked of its type: of an abstract class isinstance is slow, and this is asked in every call
        if type(word) is tensors.Keys or (type(word) is tensors.Lengths and not word.per_query):
            return word.kept
        return None

    @property
    def is_causal(self) -> bool:
        """Whether it says no more than that query i sees the keys up to its own position."""
        word = self._word
        return type(word) is words.Band and word.left is None and word.right == 0

    def grow(self, old_keys: int, new_keys: int) -> "Mask":
        """The mask after `new_keys` keys that everyone may see were appended to `old_keys`."""
        for argument, number in (("old_keys", old_keys), ("new_keys", new_keys)):
            check_int(argument, number, least=0)
        return Mask(self._word.grow(old_keys, new_keys, True))

    def to(self, device: torch.device | str) -> "Mask":
        """The mask with its tensors on another device."""
        return Mask(self._word.to(torch.device(device)))

    def draw(self, queries: int | None = None, keys: int | None = None, batch: Sequence[int] | None = None) -> str:
        """A picture in text, one character a cell: █ may attend, · may not.

        Sizes that are not given are those of the mask's tensors, and 8 where they tell nothing.
        """
        return draw(self._word, queries, keys, batch)


def _check_align(argument: str, align: str | None) -> str | None:
    if align is not None and align not in words.ALIGNMENTS:
        raise RegardError(
            argument,
            got=f"align={align!r}",
            needed='"top_left", "lower_right" or None',
            repair='Write align="lower_right" if the last query stands at the last key.',
        )
    return align
