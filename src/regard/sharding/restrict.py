"""A mask of the whole sequence, seen from a block of it: the same statement in the block's own positions."""

from torch import Tensor

from regard.masks.placed import Band, Both, Dense, Either, Lengths, Not, Placed, Same


def restrict(mask: Placed, rows: slice, cols: slice) -> Placed:
    """The mask of the queries `rows` and the keys `cols`, both of which then count from 0."""
    match mask:
        case Band(low=low, high=high):
            shift = rows.start - cols.start
            return Band(None if low is None else low + shift, None if high is None else high + shift)
        case Lengths(lengths=lengths):
            # As int64: below zero there is nothing in an unsigned type.
            return Lengths(_narrow(lengths, -2, rows).long() - cols.start)
        case Dense(allowed=allowed):
            return Dense(narrow_pairs(allowed, rows, cols))
        case Same(query_ids=query_ids, key_ids=key_ids):
            return Same(_narrow(query_ids, -2, rows), _narrow(key_ids, -1, cols))
        case Both(left=left, right=right) | Either(left=left, right=right):
            return type(mask)(restrict(left, rows, cols), restrict(right, rows, cols))
        case Not(inner=inner):
            return Not(restrict(inner, rows, cols))
    raise AssertionError(mask)


def narrow_pairs(pairs: Tensor, rows: slice, cols: slice) -> Tensor:
    """A block of (*batch, queries or 1, keys or 1); what is shared stays shared."""
    return _narrow(_narrow(pairs, -2, rows), -1, cols)


def _narrow(tensor: Tensor, axis: int, span: slice) -> Tensor:
    return tensor if tensor.shape[axis] == 1 else tensor.narrow(axis, span.start, span.stop - span.start)
