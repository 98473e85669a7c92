"""The backward pass of additive attention, slab by slab: scores again, their changes, and what these give to tokens.

Exact: kernels sum over pairs. Lifted: the changes are multiplied with the features of the other side, by the machine's
own matrix product (`lifted_backward`); what tiles of flagged blocks give is added exactly.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.fused import INTERPRETED
from regard.backends.fused.additive import tables
from regard.backends.fused.additive.call import Call, Slab, Statics, call_of, padded
from regard.backends.fused.additive.cotangents import choose_scale, measure_rows
from regard.backends.fused.additive.forward import Sides, key_bias_of, scores_of, sides_of
from regard.backends.fused.additive.grade import grade_slab
from regard.backends.fused.additive.gradients import Cotangents, Gradients
from regard.backends.fused.additive.lift import CELLS
from regard.backends.fused.additive.lifted_backward import LiftedPulls
from regard.backends.fused.additive.pulls import pull_tokens
from regard.backends.fused.additive.sides import Columns, Features
from regard.backends.fused.launch import operand, place, run_programs


class NeededSides(NamedTuple):
    """The sides that the backward pass has to compute."""

    query: bool
    key: bool


def gradients(
    results: Sequence[Tensor], tensors: Sequence[Tensor], statics: Statics, needs: Sequence[bool], batch: Sequence[int]
) -> list[Tensor]:
    """A gradient for each tensor, empty where none is needed.

    results: the gradients of output and log_mass, then output and log_mass.
    """
    call = call_of(tensors, statics)
    # The gradient of the weights is computed with that of the queries and, if lifted, partly with that of the keys.
    needed = NeededSides(needs[0] or needs[2], needs[1] or (needs[2] and statics.rank > 0))
    with torch.cuda.device_of(tensors[0]):
        found = _sweep(call, _cotangents(call, results), needed, bias=statics.has_bias and needs[4])
    weight = None
    if needs[2]:
        weight = found.query_weight.sum(-2, keepdim=True)
        if statics.rank:
            weight += found.key_weight.sum(-2, keepdim=True)
    grads: list[Tensor | None] = [found.query, found.key, weight, found.value]
    if statics.has_bias:
        grads.append(found.bias)
    grads += [None] * (len(tensors) - len(grads))
    return [
        _like(grad, source, batch) if need and grad is not None else source.new_empty(0)
        for grad, source, need in zip(grads, tensors, needs, strict=True)
    ]


def _like(grad: Tensor, source: Tensor, batch: Sequence[int]) -> Tensor:
    """A gradient (batch or outer, inner, ...) as one of its source, summed over the axes on which that has size 1."""
    if grad.ndim == 3:
        grad = grad[..., : source.shape[-1]].reshape(*batch, grad.shape[-2], source.shape[-1])
    else:
        grad = grad.reshape(source.shape)
    grad = grad if grad.shape == source.shape else grad.sum_to_size(source.shape)
    return grad.to(source.dtype).contiguous()


def _cotangents(call: Call, results: Sequence[Tensor]) -> Cotangents:
    grad_output, grad_log_mass, output, log_mass = (x.contiguous() for x in results)
    value, rows = call.value, call.batch * call.queries
    log_mass = log_mass.reshape(call.batch, call.queries)
    means, norms, own = (torch.empty_like(log_mass) for _ in range(3))
    run_programs(
        measure_rows, -(-rows // tables.BLOCK),
        grad_output, output, log_mass, grad_log_mass, means, norms, own, rows=rows,
        VALUE_DIM=value.shape[-1], BV=min(padded(value.shape[-1]), tables.WIDEST_CHUNK), BR=tables.BLOCK,
    )  # fmt: skip
    scale = call.weight.new_ones(1)
    if call.statics.rank:
        value_norms = torch.linalg.vector_norm(value, dim=-1, dtype=torch.float32)
        run_programs(
            choose_scale, 1, norms, value_norms, own, scale, rows=rows, tokens=value_norms.numel(),
            kept=1 - call.statics.dropout, BLOCK=tables.LONGEST_RUN,
        )  # fmt: skip
    return Cotangents(grad_output.reshape(call.batch, call.queries, -1), means, log_mass, own, scale)


def _sweep(call: Call, cotangents: Cotangents, needed: NeededSides, *, bias: bool) -> Gradients:
    sides, found = sides_of(call), _empty(call, bias=bias)
    query, key = sides
    lifted = None
    if any(needed) and isinstance(query, Features) and isinstance(key, Features):
        lifted = LiftedPulls(call, (query, key), cotangents, found)
    for slab in call.slabs():
        changes, sums = _grade(call, sides, slab, cotangents, found)
        if found.bias is not None:
            _add_bias(call, slab, changes, cotangents.scale, found.bias)
        if lifted is not None:
            lifted.add(slab, changes, sums)
        _pull(call, sides, slab, changes, cotangents.scale, found, needed)
    return found


def _empty(call: Call, *, bias: bool) -> Gradients:
    def new(*shape: int) -> Tensor:
        return call.weight.new_empty(call.batch, *shape)

    query, key = (call.queries, call.units), (call.keys, call.units)
    value = new(call.keys, call.value.shape[-1])
    whole = None if call.bias is None or not bias else torch.zeros_like(call.bias, dtype=torch.float32)
    if call.statics.rank:  # the keys' are sums over slabs, of exact tiles and strays, and at last of features
        keys = call.weight.new_zeros(2, call.batch, *key)
        return Gradients(new(*query), keys[0], new(*query), keys[1], value, whole)
    return Gradients(new(*query), new(*key), new(*query), new(0, 0), value, whole)


def _grade(call: Call, sides: Sides, slab: Slab, cotangents: Cotangents, found: Gradients) -> tuple[Tensor, Tensor]:
    """Changes (elements, rows, columns) of the slab's scores, their sums over rows; adds to the values' gradient."""
    scores, lifted = scores_of(call, sides, slab), call.statics.rank > 0
    tile, width = tables.GRADE[lifted], min(padded(call.value.shape[-1]), tables.WIDEST_CHUNK)
    columns, value_dim = scores.shape[-1], call.value.shape[-1]
    key_blocks, chunks = columns // tile.keys, -(-value_dim // width)
    # Chunks of the values read the same scores: where there are several, changes must not take their place.
    in_place = chunks == 1 and not lifted
    changes = scores if in_place else torch.empty_like(scores, dtype=torch.float16 if lifted else None)
    parts = max(min(tables.ENOUGH_PROGRAMS // (slab.elements * key_blocks * chunks), slab.rows // tile.queries), 1)
    part_rows = -(-slab.rows // (parts * tile.queries)) * tile.queries
    total = found.value[slab.first_batch : slab.first_batch + slab.elements]
    is_whole = parts == 1 and slab.first_row == 0
    grad_value = total if is_whole else scores.new_empty(parts, *total.shape)
    sums = scores.new_empty(parts, slab.elements, columns)
    key_bias, query = key_bias_of(call, sides), sides[0]
    run_programs(
        grade_slab, slab.elements * key_blocks * parts * chunks,
        scores, changes, operand(call.value), place(call.weight), None if key_bias is None else place(key_bias),
        place(query.alone) if isinstance(query, Features) else None,
        grad_output=cotangents.grad_output, means=cotangents.means, log_mass=cotangents.log_mass,
        change_scale=cotangents.scale, grad_value=grad_value, sums=sums,
        first_batch=slab.first_batch, first_row=slab.first_row, rows=slab.rows, key_blocks=key_blocks, parts=parts,
        part_rows=part_rows, chunks=chunks, elements=slab.elements,
        **call.settings(), HAS_KEY_BIAS=key_bias is not None, BV=width, BM=tile.queries, BN=tile.keys,
        **tile.options(),
    )  # fmt: skip
    if slab.first_row > 0:
        total.add_(grad_value.sum(0))
    elif not is_whole:
        torch.sum(grad_value, 0, out=total)
    return changes, sums[0] if parts == 1 else sums.sum(0)


def _add_bias(call: Call, slab: Slab, changes: Tensor, scale: Tensor, total: Tensor) -> None:
    """Add the changes to the gradient of the bias, (outer or 1, inner or 1, queries or 1, keys or 1)."""
    rows = slice(slab.first_row, min(slab.first_row + slab.rows, call.queries))
    outer, first = divmod(slab.first_batch, call.inner)
    part = total[outer if total.shape[0] > 1 else 0]
    part = part[first : first + slab.elements] if part.shape[0] > 1 else part
    part = part[..., rows, :] if part.shape[-2] > 1 else part
    own = changes[:, : rows.stop - rows.start, : call.keys].float() / scale
    part.add_(own if own.shape == part.shape else own.sum_to_size(part.shape))


def _pull(
    call: Call, sides: Sides, slab: Slab, changes: Tensor, scale: Tensor, found: Gradients, needed: NeededSides
) -> None:
    """What pairs give exactly: all of them, or where lifted those of flagged blocks."""
    query, key = sides
    _, rows, columns = changes.shape
    low, high, *_ = call.band
    of_query, of_key = slab.views(columns)
    lifted = call.statics.rank > 0
    to_query = {"band": (low, high), "WEIGHTED": True, "ADD": lifted}
    to_key = {"band": (-high, -low), "WEIGHTED": False, "ADD": lifted or slab.first_row > 0}
    for is_needed, own, other, view, settings, grad, grad_weight in (
        (needed.query, query, key, of_query, to_query, found.query, found.query_weight),
        (needed.key, key, query, of_key, to_key, found.key, found.key_weight),
    ):
        if not is_needed:
            continue
        chunk = tables.PULL_UNITS if call.units % tables.PULL_UNITS == 0 else 4
        own_blocks, chunks = view.own_rows // tables.PULL.queries, call.units // chunk
        if isinstance(own, Columns) and isinstance(other, Columns):
            reaches = own.reach, other.reach
            columns_of_both = own.exps, other.exps, own.tanhs, other.tanhs, *reaches, *reaches
            sizes, alone, reach = (own.exps.shape[-1], other.exps.shape[-1]), (scale, scale), 1.0
        else:
            assert isinstance(own, Features)
            assert isinstance(other, Features)
            columns_of_both = (own.alone, other.alone) * 3 + (own.flags, other.flags)
            sizes, alone, reach = (0, 0), (own.side.alone, own.side.slope_alone), own.side.reach
        run_programs(
            pull_tokens, slab.elements * own_blocks * chunks,
            operand(own.tokens), operand(other.tokens), *(place(x) for x in columns_of_both), *alone,
            place(call.weight), changes, scale, grad, grad_weight,
            first_batch=slab.first_batch, inner=call.inner, own_count=own.tokens.shape[-2],
            other_count=other.tokens.shape[-2], own_blocks=own_blocks, chunks=chunks,
            own_columns=sizes[0], other_columns=sizes[1], element_step=rows * columns, **view._asdict(), **settings,
            REACH=reach, CELLS=CELLS, UNITS=call.units, CHUNK=chunk, PATCH=lifted,
            FAST=not INTERPRETED, BLOCK=tables.BLOCK, BM=tables.PULL.queries, BN=tables.PULL.keys,
            **tables.PULL.options(),
        )  # fmt: skip
