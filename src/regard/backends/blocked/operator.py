"""The blocked sweeps as torch.library operators, so that callers can be compiled, exported and vmapped.

An operator takes tensors, numbers and text only: a form travels as its name, two numbers and its operands, a mask
as its text and its tensors. Every tensor has the rank of the batch plus two.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.backends.blocked import sweep as sweeps
from regard.backends.blocked.additive import AdditiveTiles
from regard.backends.blocked.tiles import DistanceTiles, DotTiles, Tiles
from regard.backends.problem import Problem
from regard.masks.placed import decode
from regard.scores.forms import DistanceForm, DotForm
from regard.scores.links import LINKS
from regard.shapes import accumulation_dtype


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Encode a problem of closed form and call the operator."""
    form, mask, bias = problem.form, problem.mask, problem.bias
    operands = [form.query, form.key, *problem.parameters]
    name, scale, softcap = "additive", 1.0, 0.0
    if isinstance(form, DotForm):
        name, scale, softcap = "dot", float(form.scale), float(form.softcap or 0.0)
    elif isinstance(form, DistanceForm):
        name = form.link.name
    seed = None
    if problem.dropout:
        seed = torch.randint(2**62, (), device=problem.value.device)
    return forward_operator(
        operands,
        problem.value,
        bias if isinstance(bias, Tensor) else None,
        mask.tensors() if mask is not None else [],
        seed,
        name,
        scale,
        softcap,
        mask.encode() if mask is not None else "",
        float(problem.dropout),
    )


@torch.library.custom_op("regard::blocked", mutates_args=())
def forward_operator(
    operands: Sequence[Tensor],
    value: Tensor,
    bias: Tensor | None,
    mask_tensors: Sequence[Tensor],
    seed: Tensor | None,
    form: str,
    scale: float,
    softcap: float,
    mask: str,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Output in value's dtype and log_mass in the accumulation dtype."""
    with torch.autocast(value.device.type, enabled=False):
        tiles = _tiles(operands, form, scale, softcap, [False] * len(operands))
        sweep = _sweep(operands, value, bias, mask_tensors, seed, mask, dropout)
        output, log_mass = sweeps.forward(tiles, sweep)
        return output.to(value.dtype, copy=False), log_mass


@forward_operator.register_fake
def _(operands, value, bias, mask_tensors, seed, form, scale, softcap, mask, dropout):
    batch = _batch(*operands, value, bias, *mask_tensors)
    queries = operands[0].shape[-2]
    output = value.new_empty(*batch, queries, value.shape[-1])
    return output, value.new_empty((*batch, queries), dtype=accumulation_dtype(value.dtype))


@torch.library.custom_op("regard::blocked_backward", mutates_args=())
def backward_operator(
    grad_output: Tensor,
    grad_log_mass: Tensor,
    output: Tensor,
    log_mass: Tensor,
    operands: Sequence[Tensor],
    value: Tensor,
    bias: Tensor | None,
    mask_tensors: Sequence[Tensor],
    seed: Tensor | None,
    form: str,
    scale: float,
    softcap: float,
    mask: str,
    dropout: float,
    needs: Sequence[bool],
) -> list[Tensor]:
    """Gradients of operands, value and bias in this order; empty tensors where `needs` is False."""
    with torch.autocast(value.device.type, enabled=False):
        tiles = _tiles(operands, form, scale, softcap, needs[: len(operands)])
        sweep = _sweep(operands, value, bias, mask_tensors, seed, mask, dropout)
        dtype = sweep.value.dtype
        found = sweeps.backward(
            tiles, sweep, output.to(dtype), log_mass, grad_output.to(dtype), grad_log_mass, needs[-2], needs[-1]
        )
        grads = [*found.operands, found.value, found.bias]
        sources = [*operands, value, value if bias is None else bias]
        return [
            value.new_empty(0) if grad is None else grad.to(source.dtype)
            for grad, source in zip(grads, sources, strict=True)
        ]


@backward_operator.register_fake
def _(
    grad_output, grad_log_mass, output, log_mass, operands, value, bias, mask_tensors,
    seed, form, scale, softcap, mask, dropout, needs,
):  # fmt: skip
    sources = [*operands, value, value if bias is None else bias]
    return [s.new_empty(s.shape) if need else value.new_empty(0) for s, need in zip(sources, needs, strict=True)]


def _setup(ctx, inputs, output) -> None:
    operands, value, bias, mask_tensors, seed, *statics = inputs
    ctx.counts = (len(operands), bias is not None, len(mask_tensors), seed is not None)
    present = [x for x in (bias, *mask_tensors, seed) if x is not None]
    ctx.save_for_backward(*operands, value, *output, *present)
    ctx.statics = statics
    ctx.set_materialize_grads(True)


def _backward(ctx, grad_output: Tensor, grad_log_mass: Tensor):
    operand_count, has_bias, mask_count, has_seed = ctx.counts
    saved = list(ctx.saved_tensors)
    operands, saved = saved[:operand_count], saved[operand_count:]
    value, output, log_mass, *saved = saved
    bias = saved.pop(0) if has_bias else None
    mask_tensors, saved = saved[:mask_count], saved[mask_count:]
    seed = saved.pop(0) if has_seed else None
    wanted = ctx.needs_input_grad
    needs = [*wanted[0], wanted[1], has_bias and wanted[2]]
    *grads, grad_value, grad_bias = backward_operator(
        grad_output, grad_log_mass, output, log_mass, operands, value, bias, mask_tensors, seed, *ctx.statics, needs
    )
    found = [grad if need else None for grad, need in zip(grads, needs, strict=False)]
    none = (None,) * len(ctx.statics)
    return (
        found,
        grad_value if needs[-2] else None,
        grad_bias if needs[-1] else None,
        [None] * mask_count,
        None,
        *none,
    )


forward_operator.register_autograd(_backward, setup_context=_setup)


@forward_operator.register_vmap
def _(info, in_dims, *arguments):
    """Every tensor has full rank: the mapped axis becomes one more batch axis, of size 1 where it is absent."""
    del info
    return forward_operator(*_lead(arguments, in_dims, absent=1)), (0, 0)


@backward_operator.register_vmap
def _(info, in_dims, *arguments):
    """As forward, but a tensor without the mapped axis gets it at full size: each example has its own gradient."""
    grads = backward_operator(*_lead(arguments, in_dims, absent=info.batch_size))
    return grads, [0] * len(grads)


def _lead(arguments, in_dims, absent: int):
    """Move each mapped axis to the front; tensors without one are expanded there to size `absent`."""

    def move(argument, dim):
        if isinstance(argument, list | tuple) and argument and isinstance(argument[0], Tensor):
            dims = dim if isinstance(dim, list | tuple) else [dim] * len(argument)
            return [move(a, d) for a, d in zip(argument, dims, strict=True)]
        if not isinstance(argument, Tensor):
            return argument
        return argument.expand(absent, *argument.shape) if dim is None else argument.movedim(dim, 0)

    return [move(argument, dim) for argument, dim in zip(arguments, in_dims, strict=True)]


def _batch(*tensors: Tensor | None) -> tuple[int, ...]:
    """What the leading axes broadcast to; under vmap any tensor may be the one that has the mapped axis."""
    return tuple(torch.broadcast_shapes(*(x.shape[:-2] for x in tensors if x is not None)))


def _tiles(operands: Sequence[Tensor], form: str, scale: float, softcap: float, needs: Sequence[bool]) -> Tiles:
    dtype = operands[0].dtype
    operands = [x.to(accumulation_dtype(dtype)) for x in operands]
    match form:
        case "dot":
            return DotTiles(operands, needs, scale, softcap)
        case "additive":
            return AdditiveTiles(operands, needs)
    return DistanceTiles(operands, needs, LINKS[form], dtype)


def _sweep(
    operands: Sequence[Tensor],
    value: Tensor,
    bias: Tensor | None,
    mask_tensors: Sequence[Tensor],
    seed: Tensor | None,
    mask: str,
    dropout: float,
) -> sweeps.Sweep:
    dtype = accumulation_dtype(value.dtype)
    return sweeps.Sweep(
        value=value.to(dtype),
        batch=_batch(*operands, value, bias, *mask_tensors),
        queries=operands[0].shape[-2],
        keys=value.shape[-2],
        mask=decode(mask, list(mask_tensors)) if mask else None,
        bias=None if bias is None else bias.to(dtype),
        dropout=dropout,
        seed=0 if seed is None else int(seed.flatten()[0]),
    )
