"""The conventions of torch: nn.MultiheadAttention (True drops), scaled_dot_product_attention (True keeps)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.masks.checks import Call, check_bool, check_sizes
from regard.masks.tensors import Keys, Matrix
from regard.masks.words import Both, Not, Word
from regard.shapes import check_int, describe


def from_multihead(attn_mask: Tensor | None, key_padding_mask: Tensor | None, heads: int | None) -> Word:
    """The word for (queries, keys) or (batch * heads, queries, keys), and (batch, keys), True dropping."""
    parts: list[Word] = []
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
    return parts[0] if len(parts) == 1 else Both(*parts)


def from_sdpa(attn_mask: Tensor) -> Word:
    """The word for a boolean (…, queries, keys), True keeping."""
    check_bool(
        "attn_mask",
        attn_mask,
        "(…, queries, keys)",
        2,
        "Write Mask.keys(m) for one entry per key.",
    )
    return Matrix(attn_mask, keeps=True)


def to_sdpa(word: Word, batch: Sequence[int], queries: int, keys: int) -> Tensor:
    """A boolean (*batch, queries, keys), True keeping, on the mask's device; shared axes share memory.

    It is the caller's own: what a mask keeps is not handed out.
    """
    check_sizes(batch, queries, keys)
    device = word.told().device or torch.device("cpu")
    placed = word.place(Call(tuple(batch), queries, keys, device))
    return placed.tile(slice(0, queries), slice(0, keys), device).clone().expand(*batch, queries, keys)


def to_multihead(word: Word, batch: int, heads: int, queries: int, keys: int) -> Tensor:
    """A boolean (batch * heads, queries, keys), True dropping."""
    return ~to_sdpa(word, (batch, heads), queries, keys).reshape(batch * heads, queries, keys)


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
