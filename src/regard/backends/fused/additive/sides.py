"""Queries and keys made ready, once for a call: columns for exact scores, or features for the lift."""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.fused.additive import tables
from regard.backends.fused.additive.call import Call, columns_of, padded
from regard.backends.fused.additive.columns import expand_tokens
from regard.backends.fused.additive.features import lift_tokens
from regard.backends.fused.additive.lift import CELLS, Side, sides_on
from regard.backends.fused.additive.strays import list_strays
from regard.backends.fused.launch import operand, place, run_programs


class Columns(NamedTuple):
    """exps, tanhs: (outer or 1, inner or 1, units, columns) of e^2a and tanh a; reach: (.., .., blocks) of |a|."""

    tokens: Tensor
    exps: Tensor
    tanhs: Tensor
    reach: Tensor


class Features(NamedTuple):
    """features: (outer or 1, inner or 1, columns, units * rank) in float16; alone: (.., .., columns), w'f(a).

    flags: (.., .., blocks), 1 for a block with too many strays; of others, numbers: (.., .., columns), how many a token
    has, and strays: (.., .., columns, units), their units.
    """

    tokens: Tensor
    features: Tensor
    alone: Tensor
    flags: Tensor
    numbers: Tensor
    strays: Tensor
    side: Side


class Strays(NamedTuple):
    """The strays of each unit: numbers (outer or 1, inner or 1, units), and places (.., .., .., columns), tokens."""

    numbers: Tensor
    places: Tensor


def exact_sides(call: Call) -> tuple[Columns, Columns]:
    """And sides of exact scores."""
    return _columns(call.query), _columns(call.key)


def lifted_sides(call: Call) -> tuple[Features, Features]:
    """And sides of lifted scores; the weights are with the queries."""
    statics = call.statics
    lift = sides_on(call.query.device, statics.query_reach, statics.key_reach, statics.rank)
    return _features(call, call.query, lift[0], weighted=True), _features(call, call.key, lift[1], weighted=False)


def strays_of(own: Features) -> Strays:
    """The strays of one side, which the backward pass wants by unit."""
    outer, inner, columns, units = own.strays.shape
    numbers = own.flags.new_empty(outer, inner, units)
    places = own.flags.new_empty(outer, inner, units, columns)
    blocks = -(-units // tables.LIST_UNITS)
    run_programs(
        list_strays, outer * inner * blocks,
        operand(own.tokens), place(own.flags), numbers, places,
        inner=inner, count=own.tokens.shape[-2], columns=columns, blocks=blocks,
        REACH=own.side.reach, UNITS=units, BLOCK=tables.BLOCK, BT=tables.LIST_TOKENS, BU=tables.LIST_UNITS,
    )  # fmt: skip
    return Strays(numbers, places)


def _columns(tokens: Tensor) -> Columns:
    outer, inner, count, units = tokens.shape
    columns = columns_of(count)
    blocks = columns // tables.BLOCK
    exps, tanhs = (_single(tokens, outer, inner, units, columns) for _ in range(2))
    reach = _single(tokens, outer, inner, blocks)
    run_programs(
        expand_tokens, outer * inner * blocks,
        operand(tokens), exps, tanhs, reach, inner=inner, count=count, columns=columns, blocks=blocks,
        UNITS=units, BT=tables.BLOCK, BU=min(padded(units), 32), num_warps=tables.LIFT_WARPS,
    )  # fmt: skip
    return Columns(tokens, exps, tanhs, reach)


def _features(call: Call, tokens: Tensor, side: Side, *, weighted: bool) -> Features:
    outer, inner = (max(x, y) for x, y in zip(tokens.shape[:2], call.weight.shape[:2], strict=True))
    count, units = tokens.shape[-2:]
    columns, rank = columns_of(count), side.values.shape[-1]
    blocks = columns // tables.BLOCK
    features = tokens.new_empty(outer, inner, columns, units * rank, dtype=torch.float16)
    alone = _single(tokens, outer, inner, columns)
    flags, numbers = (tokens.new_empty(outer, inner, size, dtype=torch.int32) for size in (blocks, columns))
    strays = tokens.new_empty(outer, inner, columns, units, dtype=torch.int16)
    parts = columns // tables.LIFT_TOKENS
    run_programs(
        lift_tokens, outer * inner * parts,
        operand(tokens), place(call.weight), side.values, side.alone, features, alone, flags, numbers, strays,
        inner=inner, count=count, columns=columns, blocks=parts,
        REACH=side.reach, CELLS=CELLS, RANK=rank, RANKS=padded(rank), UNITS=units, PADDED=padded(units),
        WEIGHTED=weighted, MOST=tables.BLOCK * units // tables.STRAY_SHARE, BLOCK=tables.BLOCK, BT=tables.LIFT_TOKENS,
        num_warps=tables.LIFT_WARPS,
    )  # fmt: skip
    return Features(tokens, features, alone, flags, numbers, strays, side)


def _single(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)
