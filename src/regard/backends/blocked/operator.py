"""The blocked sweeps as torch.library operators, so that callers can be compiled, exported and vmapped.

An operator takes tensors, numbers and text only. All tensors of a call travel in one list (the form's operands,
value, bias, seed, the mask's tensors), the rest as `Statics`. Every tensor but the seed has the rank of the batch
plus two, so that one vmap rule serves all.

Differentiation is registered twice, because torch has two readers: torch.compile and torch.export want it on the
operator, and torch.func's transforms understand it on an autograd.Function only.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.blocked import bounded
from regard.backends.blocked import sweep as sweeps
from regard.backends.blocked.additive import AdditiveTiles, keeps
from regard.backends.blocked.tiles import DistanceTiles, DotTiles, Tiles
from regard.backends.problem import Problem
from regard.errors import RegardError
from regard.masks.placed import decode
from regard.scores.forms import DistanceForm, DotForm
from regard.scores.links import LINKS
from regard.shapes import accumulation_dtype


class Statics(NamedTuple):
    """What is known before any number: how many operands the form has, what else is in the list, the settings.

    tanh: additive tiles take tanh itself, because a tolerance is tighter than what their identity promises.
    """

    operands: int
    has_bias: bool
    has_seed: bool
    form: str
    scale: float
    softcap: float
    tanh: bool
    mask: str
    dropout: float


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Encode a problem of closed form and pool it."""
    form, mask, bias, dropout = problem.form, problem.mask, problem.bias, float(problem.dropout)
    name, scale, softcap = "additive", 1.0, 0.0
    if isinstance(form, DotForm):
        name, scale, softcap = "dot", float(form.scale), float(form.softcap or 0.0)
    elif isinstance(form, DistanceForm):
        name = form.link.name
    tensors = [form.query, form.key, *problem.parameters, problem.value]
    operands = len(tensors) - 1
    if isinstance(bias, Tensor):
        tensors.append(bias)
    if dropout:
        tensors.append(torch.randint(2**62, (), device=problem.value.device))
    text = ""
    if mask is not None:
        tensors += mask.tensors()
        text = mask.encode()
    tanh = name == "additive" and not keeps(problem.tolerance, form.query.dtype)
    statics = Statics(operands, bias is not None, dropout > 0, name, scale, softcap, tanh, text, dropout)
    if torch.compiler.is_compiling():
        return forward_operator(tensors, *statics)
    return _Pooling.apply(*statics, *tensors)


class _Pooling(torch.autograd.Function):
    """First derivatives of the forward operator, by the backward operator."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments):
        count = len(Statics._fields)
        return forward_operator(list(arguments[count:]), *arguments[:count])

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        count = len(Statics._fields)
        ctx.statics = inputs[:count]
        ctx.save_for_backward(*output, *inputs[count:])

    @staticmethod
    def backward(ctx, *grads):
        needs = list(ctx.needs_input_grad[len(ctx.statics) :])
        grads = _Gradient.apply(ctx.statics, needs, *grads, *ctx.saved_tensors)
        found = [grad if need else None for grad, need in zip(grads, needs, strict=True)]
        return (*(None for _ in ctx.statics), *found)


class _Gradient(torch.autograd.Function):
    """The backward operator, which has no derivative of its own and says so."""

    generate_vmap_rule = True

    @staticmethod
    def forward(statics, needs, *tensors):
        return tuple(backward_operator(list(tensors[:4]), list(tensors[4:]), *statics, needs))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise RegardError(
            "backend",
            got="a second derivative through blocked",
            needed="first derivatives: closed forms in tiles have no others",
            repair='Use backend="reference", or write the score as a callable.',
        )


@torch.library.custom_op("regard::blocked", mutates_args=())
def forward_operator(
    tensors: Sequence[Tensor],
    operands: int,
    has_bias: bool,
    has_seed: bool,
    form: str,
    scale: float,
    softcap: float,
    tanh: bool,
    mask: str,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Output in value's dtype and log_mass in the accumulation dtype."""
    statics = Statics(operands, has_bias, has_seed, form, scale, softcap, tanh, mask, dropout)
    value = tensors[operands]
    with torch.autocast(value.device.type, enabled=False):
        tiles = _tiles(tensors, statics, [False] * operands)
        sweep = _sweep(tensors, statics)
        output, log_mass = (bounded if bounded.suits(tiles, sweep) else sweeps).forward(tiles, sweep)
        return output.to(value.dtype), log_mass


@forward_operator.register_fake
def _(tensors, operands, has_bias, has_seed, form, scale, softcap, tanh, mask, dropout):
    query, value = tensors[0], tensors[operands]
    shape = (*_batch(tensors), query.shape[-2])
    return value.new_empty(*shape, value.shape[-1]), value.new_empty(shape, dtype=accumulation_dtype(value.dtype))


@torch.library.custom_op("regard::blocked_backward", mutates_args=())
def backward_operator(
    results: Sequence[Tensor],
    tensors: Sequence[Tensor],
    operands: int,
    has_bias: bool,
    has_seed: bool,
    form: str,
    scale: float,
    softcap: float,
    tanh: bool,
    mask: str,
    dropout: float,
    needs: Sequence[bool],
) -> list[Tensor]:
    """A gradient for each tensor, empty where `needs` is False.

    results: the gradients of output and log_mass, then output and log_mass.
    """
    statics = Statics(operands, has_bias, has_seed, form, scale, softcap, tanh, mask, dropout)
    value = tensors[operands]
    with torch.autocast(value.device.type, enabled=False):
        tiles = _tiles(tensors, statics, needs[:operands])
        sweep = _sweep(tensors, statics)
        grad_output, grad_log_mass, output, log_mass = (x.to(sweep.value.dtype) for x in results)
        needs_bias = has_bias and needs[operands + 1]
        found = sweeps.backward(tiles, sweep, output, log_mass, grad_output, grad_log_mass, needs[operands], needs_bias)
    grads = [*found.operands, found.value, found.bias]
    grads += [None] * (len(tensors) - len(grads))
    return [
        value.new_empty(0) if grad is None else grad.to(source.dtype)
        for grad, source in zip(grads, tensors, strict=False)
    ]


def _setup(ctx, inputs, output) -> None:
    tensors, *ctx.statics = inputs
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx, grad_output: Tensor, grad_log_mass: Tensor):
    output, log_mass, *tensors = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[0])
    grads = backward_operator([grad_output, grad_log_mass, output, log_mass], tensors, *ctx.statics, needs)
    found = [grad if need else None for grad, need in zip(grads, needs, strict=True)]
    return (found, *(None for _ in ctx.statics))


forward_operator.register_autograd(_backward, setup_context=_setup)


@backward_operator.register_fake
def _(results, tensors, operands, has_bias, has_seed, form, scale, softcap, tanh, mask, dropout, needs):
    empty = tensors[0].new_empty
    return [x.new_empty(x.shape) if need else empty(0) for x, need in zip(tensors, needs, strict=True)]


@forward_operator.register_vmap
def _(info, in_dims, tensors, *statics):
    """Every tensor has full rank: the mapped axis becomes one more batch axis, of size 1 where it is absent."""
    del info
    return forward_operator(_lead(tensors, in_dims[0], absent=1), *statics), (0, 0)


@backward_operator.register_vmap
def _(info, in_dims, results, tensors, *statics_and_needs):
    """As forward, but a tensor without the mapped axis gets it at full size: each example has its own gradient."""
    results = _lead(results, in_dims[0], absent=info.batch_size)
    grads = backward_operator(results, _lead(tensors, in_dims[1], absent=info.batch_size), *statics_and_needs)
    needs = statics_and_needs[-1]
    return grads, [0 if need else None for need in needs]


def _lead(tensors: Sequence[Tensor], dims: Sequence[int | None], absent: int) -> list[Tensor]:
    """Move each mapped axis to the front; tensors without one are expanded there to size `absent`."""
    return [
        x.expand(absent, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors, dims, strict=True)
    ]


def _batch(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """What the leading axes broadcast to; under vmap any tensor may be the one that has the mapped axis."""
    return tuple(torch.broadcast_shapes(*(x.shape[:-2] for x in tensors)))


def _tiles(tensors: Sequence[Tensor], statics: Statics, needs: Sequence[bool]) -> Tiles:
    dtype = tensors[0].dtype
    operands = [x.to(accumulation_dtype(dtype)) for x in tensors[: statics.operands]]
    match statics.form:
        case "dot":
            return DotTiles(operands, needs, statics.scale, statics.softcap)
        case "additive":
            return AdditiveTiles(operands, needs, statics.tanh)
    return DistanceTiles(operands, needs, LINKS[statics.form], dtype)


def _sweep(tensors: Sequence[Tensor], statics: Statics) -> sweeps.Sweep:
    value, *rest = tensors[statics.operands :]
    dtype = accumulation_dtype(value.dtype)
    bias = rest.pop(0).to(dtype) if statics.has_bias else None
    seed = int(rest.pop(0).flatten()[0]) if statics.has_seed else 0
    return sweeps.Sweep(
        value=value.to(dtype),
        batch=_batch(tensors),
        queries=tensors[0].shape[-2],
        keys=value.shape[-2],
        mask=decode(statics.mask, rest) if statics.mask else None,
        bias=bias,
        dropout=statics.dropout,
        seed=seed,
    )
