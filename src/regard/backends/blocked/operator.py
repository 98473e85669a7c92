"""The blocked sweeps as an operator of torch.

Its tensors are the form's operands, value, perhaps bias and seed, then the mask's; the seed alone has no axes but those
over which a call is mapped.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.base import Problem, full_precision
from regard.backends.blocked import bounded
from regard.backends.blocked import sweep as sweeps
from regard.backends.blocked.additive import keeps
from regard.backends.blocked.chunks import ChunkTiles
from regard.backends.blocked.loops import LoopTiles, has_compiler
from regard.backends.blocked.tiles import DistanceTiles, DotTiles, Tiles
from regard.backends.custom_op import Directions, operator, wants_gradient
from regard.checks import accumulation_dtype, common_batch
from regard.masks.bound import flatten, unflatten
from regard.scores.distance import DistancePair
from regard.scores.dot import DotPair
from regard.scores.kernels import KERNELS
from regard.torch_compat import has_saved_tensor_hooks, is_exporting, is_traced


class Statics(NamedTuple):
    """What is known before any number: how many operands the form has, what else is in the list, the settings.

    tanh: additive tiles take tanh itself, because a tolerance is tighter than what their identity promises. compiled:
    they are part of a compiled program, so that their loops may be compiled too. mask, numbers: what a mask is beside
    its tensors, its text and the ends of its bands. keep: a backward pass follows, for which the scores of a small
    problem are kept.
    """

    operands: int
    has_bias: bool
    has_seed: bool
    form: str
    scale: float
    softcap: float
    tanh: bool
    compiled: bool
    mask: str
    numbers: Sequence[int]
    dropout: float
    keep: bool


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Encode a problem of closed form and pool it."""
    pair, mask, bias, dropout = problem.pair, problem.mask, problem.bias, float(problem.dropout)
    name, scale, softcap = "additive", 1.0, 0.0
    if isinstance(pair, DotPair):
        name, scale, softcap = "dot", float(pair.scale), float(pair.softcap or 0.0)
    elif isinstance(pair, DistancePair):
        name = pair.kernel.name
    tensors = [pair.query, pair.key, *pair.parameters(), problem.value]
    operands = len(tensors) - 1
    if isinstance(bias, Tensor):
        tensors.append(bias)
    if dropout:
        tensors.append(torch.randint(2**62, (), device=problem.value.device))
    text, numbers = "", []
    if mask is not None:
        text, parts, numbers = flatten(mask)
        tensors += parts
    tanh = name == "additive" and not keeps(problem.tolerance, pair.query.dtype)
    compiled = name == "additive" and torch.compiler.is_compiling() and not is_exporting()
    keep = wants_gradient(tensors) and (compiled or not (is_traced() or has_saved_tensor_hooks()))
    settings = name, scale, softcap, tanh, compiled, text, numbers, dropout, keep
    statics = Statics(operands, bias is not None, dropout > 0, *settings)
    output, log_mass, _ = OPERATOR.run(tensors, statics)
    return output, log_mass


def _forward(
    tensors: Sequence[Tensor],
    operands: int,
    has_bias: bool,
    has_seed: bool,
    form: str,
    scale: float,
    softcap: float,
    tanh: bool,
    compiled: bool,
    mask: str,
    numbers: Sequence[int],
    dropout: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output in value's dtype, log_mass and kept scores in the accumulation dtype; none are (*batch, 0)."""
    statics = Statics(operands, has_bias, has_seed, form, scale, softcap, tanh, compiled, mask, numbers, dropout, keep)
    value = tensors[operands]
    with full_precision(value.device):
        tiles = _tiles(tensors, statics, [False] * operands)
        sweep = _sweep(tensors, statics, tiles.larger)
        output, log_mass, scores = (bounded if bounded.suits(tiles, sweep) else sweeps).forward(tiles, sweep)
        scores = log_mass.new_empty(*sweep.batch, 0) if scores is None else scores
        return output.to(value.dtype), log_mass, scores


def _fake(tensors, *statics):
    known = Statics(*statics)
    query, value = tensors[0], tensors[known.operands]
    batch, queries = _batch(tensors, known), query.shape[-2]
    log_mass = value.new_empty(*batch, queries, dtype=accumulation_dtype(value.dtype))
    pairs = (*batch, queries, value.shape[-2])
    scores = log_mass.new_empty(pairs if sweeps.is_kept(known.keep, pairs) else (*batch, 0))
    return value.new_empty(*batch, queries, value.shape[-1]), log_mass, scores


def _backward(
    results: Sequence[Tensor],
    tensors: Sequence[Tensor],
    operands: int,
    has_bias: bool,
    has_seed: bool,
    form: str,
    scale: float,
    softcap: float,
    tanh: bool,
    compiled: bool,
    mask: str,
    numbers: Sequence[int],
    dropout: float,
    keep: bool,
    needs: Sequence[bool],
) -> list[Tensor]:
    """A gradient for each tensor, empty where `needs` is False.

    results: the gradients of output and log_mass, then output, log_mass and kept scores.
    """
    statics = Statics(operands, has_bias, has_seed, form, scale, softcap, tanh, compiled, mask, numbers, dropout, keep)
    value = tensors[operands]
    with full_precision(value.device):
        tiles = _tiles(tensors, statics, needs[:operands])
        sweep = _sweep(tensors, statics, tiles.larger)
        grad_output, grad_log_mass, output, log_mass, scores = (x.to(sweep.value.dtype) for x in results)
        scores = scores if scores.numel() else None
        needs_bias = has_bias and needs[operands + 1]
        found = sweeps.backward(
            tiles, sweep, output, log_mass, grad_output, grad_log_mass, scores, needs[operands], needs_bias
        )
    grads = [*found.operands, found.value, found.bias]
    grads += [None] * (len(tensors) - len(grads))
    return [
        source.new_empty(0) if grad is None else grad.to(source.dtype)
        for grad, source in zip(grads, tensors, strict=False)
    ]


OPERATOR = operator(
    "blocked",
    Directions(_forward, _backward, _fake),
    backend="blocked",
    refusal="closed forms in tiles have no others",
)


def _batch(tensors: Sequence[Tensor], statics: Statics) -> tuple[int, ...]:
    """What the leading axes broadcast to; under vmap any tensor may be the one that has the mapped axis."""
    seed = statics.operands + 1 + statics.has_bias
    return common_batch(*(x for at, x in enumerate(tensors) if not (statics.has_seed and at == seed)))


def _tiles(tensors: Sequence[Tensor], statics: Statics, needs: Sequence[bool]) -> Tiles:
    dtype = tensors[0].dtype
    operands = [x.to(accumulation_dtype(dtype)) for x in tensors[: statics.operands]]
    match statics.form:
        case "dot":
            return DotTiles(operands, needs, statics.scale, statics.softcap)
        case "additive":
            is_looped = statics.compiled and operands[0].device.type == "cpu" and has_compiler()
            return (LoopTiles if is_looped else ChunkTiles)(operands, needs, statics.tanh)
    return DistanceTiles(operands, needs, KERNELS[statics.form], dtype)


def _sweep(tensors: Sequence[Tensor], statics: Statics, larger: int) -> sweeps.Sweep:
    value, *rest = tensors[statics.operands :]
    dtype = accumulation_dtype(value.dtype)
    bias = rest.pop(0).to(dtype) if statics.has_bias else None
    seeds = rest.pop(0).cpu() if statics.has_seed else None  # read for every tile: one transfer from a GPU
    return sweeps.Sweep(
        value=value.to(dtype),
        batch=_batch(tensors, statics),
        queries=tensors[0].shape[-2],
        keys=value.shape[-2],
        mask=unflatten(statics.mask, rest, statics.numbers) if statics.mask else None,
        bias=bias,
        dropout=statics.dropout,
        seeds=seeds,
        larger=larger,
        keep=statics.keep,
    )
