"""A mask in the words that the kernels know: conditions on keys alone, one band, one gap in it."""

from typing import NamedTuple

from regard.masks.bound import And, Band, BoundMask, Not

# Beyond the distance of any two of 2^30 tokens.
FAR = 2**30
ANYWHERE = (-FAR, FAR, 1, 0)


class Conditions(NamedTuple):
    """Allowed where every `keys` condition holds, and the offset key - query lies in the band and not in the gap.

    band: (low, high, gap_low, gap_high), ANYWHERE where every offset is allowed.
    """

    keys: tuple[BoundMask, ...]
    band: tuple[int, int, int, int]


def conditions_of(mask: BoundMask | None) -> Conditions | None:
    """The conditions a mask is made of, or None where it says anything else."""
    keys, (low, high, gap_low, gap_high) = [], ANYWHERE
    for part in _parts(mask):
        if not part.varies_by_query:
            keys.append(part)
        elif isinstance(part, Band):
            low, high = max(low, _end(part.low, -FAR)), min(high, _end(part.high, FAR))
        elif isinstance(part, Not) and isinstance(part.inner, Band) and gap_low > gap_high:
            gap_low, gap_high = _end(part.inner.low, -FAR), _end(part.inner.high, FAR)
        else:
            return None
    return Conditions(tuple(keys), (low, high, gap_low, gap_high))


def _parts(mask: BoundMask | None) -> list[BoundMask]:
    """What a mask joins with "and"."""
    if mask is None:
        return []
    return _parts(mask.left) + _parts(mask.right) if isinstance(mask, And) else [mask]


def _end(end: int | None, unbounded: int) -> int:
    return unbounded if end is None else max(min(end, FAR), -FAR)
