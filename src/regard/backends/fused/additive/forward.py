"""The forward pass of additive attention: scores slab by slab, exact or lifted, each pooled as soon as it is there."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.backends.fused import INTERPRETED
from regard.backends.fused.additive import tables
from regard.backends.fused.additive.call import Call, Slab, Statics, View, call_of, columns_of, padded
from regard.backends.fused.additive.pool import pool_slab
from regard.backends.fused.additive.scores import exact_scores, patch_scores
from regard.backends.fused.additive.sides import Columns, Features, exact_sides, lifted_sides
from regard.backends.fused.additive.strays import add_strays
from regard.backends.fused.launch import operand, place, run_programs

Sides = tuple[Columns, Columns] | tuple[Features, Features]


def pool(tensors: Sequence[Tensor], statics: Statics, batch: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Output (*batch, queries, value_dim) in value's dtype and log_mass (*batch, queries)."""
    call = call_of(tensors, statics)
    value_dim = call.value.shape[-1]
    output = call.value.new_empty(*batch, call.queries, value_dim)
    log_mass = call.value.new_empty(*batch, call.queries, dtype=torch.float32)
    with torch.cuda.device_of(output):
        sides = sides_of(call)
        for slab in call.slabs():
            _pool(call, sides, slab, scores_of(call, sides, slab), output, log_mass)
    return output, log_mass


def sides_of(call: Call) -> Sides:
    """And sides of a call, made ready."""
    return lifted_sides(call) if call.statics.rank else exact_sides(call)


def key_bias_of(call: Call, sides: Sides) -> Tensor | None:
    """What is added to the scores of each key: its own part of the lift, minus infinity if nobody may see it."""
    key = sides[1]
    if isinstance(key, Features):
        return key.alone if call.key_bias is None else key.alone + call.key_bias
    return call.key_bias


def scores_of(call: Call, sides: Sides, slab: Slab) -> Tensor:
    """Scores (elements, rows, columns) in float32: without bias and mask, and where lifted in the lift's own terms."""
    columns, (query, key) = columns_of(call.keys), sides
    common = {
        "first_batch": slab.first_batch,
        "first_row": slab.first_row,
        "inner": call.inner,
        "queries": call.queries,
        "keys": call.keys,
        "key_columns": columns,
        "UNITS": call.units,
        "FAST": not INTERPRETED,
    }
    tokens = operand(call.query), operand(call.key)
    if isinstance(query, Features) and isinstance(key, Features):
        rows = group_of(query.features, call, slab)[:, slab.first_row : slab.first_row + slab.rows]
        scores = product(rows, group_of(key.features, call, slab).mT)
        row_blocks, key_blocks = slab.rows // tables.BLOCK, columns // tables.BLOCK
        run_programs(
            patch_scores, slab.elements * row_blocks * -(-key_blocks // tables.SPAN),
            *tokens, place(query.flags), place(key.flags), place(query.alone), place(key.alone),
            place(call.weight), scores, **common, row_blocks=row_blocks, key_blocks=key_blocks,
            PADDED=padded(call.units), SPAN=tables.SPAN, BM=tables.BLOCK, BN=tables.BLOCK,
        )  # fmt: skip
        of_query, of_key = slab.views(columns)
        _add_strays(call, slab, scores, query, key, of_query, every=True)
        _add_strays(call, slab, scores, key, query, of_key, every=False)
        return scores
    assert isinstance(query, Columns)
    assert isinstance(key, Columns)
    scores, tile = call.weight.new_empty(slab.elements, slab.rows, columns), tables.SCORE
    row_blocks, key_blocks = slab.rows // tile.queries, columns // tile.keys
    run_programs(
        exact_scores, slab.elements * row_blocks * key_blocks,
        *tokens, place(query.exps), place(key.exps), place(query.tanhs), place(key.tanhs), place(query.reach),
        place(key.reach), place(call.weight), scores, **common, row_blocks=row_blocks, key_blocks=key_blocks,
        query_columns=query.exps.shape[-1], band=call.band, BLOCK=tables.BLOCK, BM=tile.queries, BN=tile.keys,
        **tile.options(),
    )  # fmt: skip
    return scores


def _add_strays(
    call: Call, slab: Slab, scores: Tensor, own: Features, other: Features, view: View, *, every: bool
) -> None:
    """Add what the strays of one side lack, against all others or against those that are no strays."""
    spans = -(-view.other_rows // tables.STRAY_TOKENS)
    run_programs(
        add_strays, slab.elements * (view.own_rows // tables.STRAY_GROUP) * spans,
        operand(own.tokens), operand(other.tokens), place(own.numbers), place(own.strays), place(other.flags),
        place(call.weight), scores, first_batch=slab.first_batch, inner=call.inner, spans=spans,
        other_count=other.tokens.shape[-2], element_step=slab.rows * scores.shape[-1], **view._asdict(),
        REACH=own.side.reach, OTHER_REACH=other.side.reach, ALL=every, UNITS=call.units, PADDED=padded(call.units),
        BLOCK=tables.BLOCK, BM=tables.STRAY_GROUP, BN=tables.STRAY_TOKENS,
    )  # fmt: skip


def group_of(features: Tensor, call: Call, slab: Slab) -> Tensor:
    """The features of a slab's batch elements, (elements, columns, width); elements lie in one row of the batch."""
    outer, first = divmod(slab.first_batch, call.inner)
    row = features[outer if features.shape[0] > 1 else 0]
    if row.shape[0] > 1:
        return row[first : first + slab.elements]
    return row.expand(slab.elements, -1, -1)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Batched products of half precision, summed and returned in float32."""
    if left.device.type == "cuda":
        return torch.bmm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()  # torch has no such product on a CPU, where only the interpreter runs


def _pool(call: Call, sides: Sides, slab: Slab, scores: Tensor, output: Tensor, log_mass: Tensor) -> None:
    tile, width = tables.POOL[call.statics.rank > 0], min(padded(call.value.shape[-1]), tables.WIDEST_CHUNK)
    blocks, chunks = -(-slab.rows // tile.queries), -(-call.value.shape[-1] // width)
    key_bias, query = key_bias_of(call, sides), sides[0]
    run_programs(
        pool_slab, slab.elements * blocks * chunks,
        scores, operand(call.value), place(call.weight), None if key_bias is None else place(key_bias),
        place(query.alone) if isinstance(query, Features) else None, output=output, log_mass=log_mass,
        first_batch=slab.first_batch, first_row=slab.first_row, rows=slab.rows, blocks=blocks, chunks=chunks,
        **call.settings(), HAS_KEY_BIAS=key_bias is not None, BV=width, BM=tile.queries, BN=tile.keys,
        **tile.options(),
    )  # fmt: skip
