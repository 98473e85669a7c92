"""From changes of lifted scores to tokens: products with the features of the other side, and what strays lack."""

from torch import Tensor

from regard.backends.fused.additive import tables
from regard.backends.fused.additive.call import Call, Slab, View, padded
from regard.backends.fused.additive.features import pull_features
from regard.backends.fused.additive.forward import group_of, product
from regard.backends.fused.additive.gradients import Cotangents, Gradients
from regard.backends.fused.additive.lift import CELLS
from regard.backends.fused.additive.sides import Features, Strays, strays_of
from regard.backends.fused.additive.strays import pull_strays
from regard.backends.fused.launch import operand, place, run_programs


class LiftedPulls:
    """The gradients of a call's tokens, as far as the lift has them, slab by slab.

    What a slab gives to its queries is known with it; the keys' sums over the slabs of the same batch elements are
    kept until the last.
    """

    def __init__(self, call: Call, sides: tuple[Features, Features], cotangents: Cotangents, found: Gradients) -> None:
        """Make lists of the strays, which all slabs use."""
        self._call = call
        self._query, self._key = sides
        self._query_strays, self._key_strays = (strays_of(side) for side in sides)
        self._cotangents = cotangents
        self._found = found
        self._pulls: Tensor | None = None
        self._sums: Tensor | None = None

    def add(self, slab: Slab, changes: Tensor, sums: Tensor) -> None:
        """Add one slab: its changes (elements, rows, columns), and their sums over rows (elements, columns)."""
        query, key, found = self._query, self._key, self._found
        # A row's changes sum to the gradient of its log_mass.
        of_row = self._cotangents.grad_log_mass
        pulls = product(changes, group_of(key.features, self._call, slab))
        self._pull(slab, pulls, of_row, query, found.query, found.query_weight, of_query=True)
        del pulls
        rows = group_of(query.features, self._call, slab)[:, slab.first_row : slab.first_row + slab.rows]
        own = product(changes.mT, rows)
        self._pulls = own if self._pulls is None else self._pulls.add_(own)
        self._sums = sums if self._sums is None else self._sums.add_(sums)
        if slab.is_last:
            self._pull(slab, self._pulls, self._sums, key, found.key, found.key_weight, of_query=False)
            self._pulls = self._sums = None
        of_query, of_key = slab.views(changes.shape[-1])
        strays = self._query_strays, self._key_strays
        to_query, to_key = (found.query, found.query_weight), (found.key, found.key_weight)
        self._pull_strays(slab, changes, (query, key), strays, of_query, to_query, weighted=True)
        self._pull_strays(slab, changes, (key, query), strays[::-1], of_key, to_key, weighted=False)

    def _pull(
        self,
        slab: Slab,
        pulls: Tensor,
        sums: Tensor,
        own: Features,
        grad: Tensor,
        grad_weight: Tensor,
        *,
        of_query: bool,
    ) -> None:
        """From products with the other side's features to the gradients of the slab's queries, or of its keys.

        sums: the changes of each key of the slab, or of all queries without the scale.
        """
        call, side, rows = self._call, own.side, pulls.shape[-2]
        blocks, rank = rows // tables.LIFT_TOKENS, side.values.shape[-1]
        run_programs(
            pull_features, slab.elements * blocks,
            operand(own.tokens), place(call.weight), place(own.flags), side.values, side.alone, side.slopes,
            side.slope_alone, pulls, sums, self._cotangents.scale, grad, grad_weight,
            inner=call.inner, first_batch=slab.first_batch, first=slab.first_row if of_query else 0,
            count=own.tokens.shape[-2], rows=rows, blocks=blocks,
            REACH=side.reach, CELLS=CELLS, RANK=rank, RANKS=padded(rank), UNITS=call.units, PADDED=padded(call.units),
            WEIGHTED=of_query, BLOCK=tables.BLOCK, BT=tables.LIFT_TOKENS, num_warps=tables.PULL_WARPS,
        )  # fmt: skip

    def _pull_strays(
        self,
        slab: Slab,
        changes: Tensor,
        sides: tuple[Features, Features],
        strays: tuple[Strays, Strays],
        view: View,
        grads: tuple[Tensor, Tensor],
        *,
        weighted: bool,
    ) -> None:
        """Add what strays lack to one side's gradients; sides and strays: own, then other."""
        (own, other), (own_strays, other_strays) = sides, strays
        call, (_, rows, columns) = self._call, changes.shape
        chunks = -(-view.own_rows // tables.STRAY_TOKENS)
        run_programs(
            pull_strays, slab.elements * call.units * chunks,
            operand(own.tokens), operand(other.tokens), place(own_strays.numbers), place(own_strays.places),
            place(other_strays.numbers), place(other_strays.places), place(own.flags), place(other.flags),
            place(call.weight), changes, self._cotangents.scale, *grads,
            first_batch=slab.first_batch, inner=call.inner, own_count=own.tokens.shape[-2],
            other_count=other.tokens.shape[-2], chunks=chunks, own_columns=own_strays.places.shape[-1],
            other_columns=other_strays.places.shape[-1], element_step=rows * columns, **view._asdict(),
            REACH=own.side.reach, OTHER_REACH=other.side.reach, UNITS=call.units, WEIGHTED=weighted,
            BLOCK=tables.BLOCK, BM=tables.STRAY_TOKENS, BN=tables.STRAY_SUM,
        )  # fmt: skip
