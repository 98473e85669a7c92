"""What a score or a bias that is code learns: the parameters of its module; a closure that learns is refused."""

import torch
from torch import Tensor, nn

from regard.backends.problem import Problem
from regard.errors import RegardError
from regard.scores.forms import CallableForm


def learned_by_code(problem: Problem, score: object, bias: object) -> tuple[Tensor, ...]:
    """The parameters of `score` and of `bias`, where the problem calls them, that want a gradient.

    Each is tried on one pair, the same on every rank: should its result want a gradient of something else, nobody
    would know of that in the backward pass, when blocks are recomputed.
    """
    if not problem.is_code or not torch.is_grad_enabled():
        return ()
    found: dict[int, Tensor] = {}
    form, device = problem.form, problem.value.device
    if isinstance(form, CallableForm):
        tile = form.function(_one(form.query), _one(form.key))
        found |= _parameters("score", score, tile)
    if problem.bias is not None and not isinstance(problem.bias, Tensor):
        position = torch.arange(1, device=device)
        found |= _parameters("bias", bias, problem.bias(position, position))
    return tuple(found.values())


def _parameters(argument: str, source: object, tile: Tensor) -> dict[int, Tensor]:
    parameters = source.parameters() if isinstance(source, nn.Module) else ()
    found: dict[int, Tensor] = {id(parameter): parameter for parameter in parameters if parameter.requires_grad}
    if tile.requires_grad and not found:
        raise RegardError(
            argument,
            got="a callable that depends on tensors which require gradients",
            needed="a torch.nn.Module, whose parameters can be found",
            repair="Write it as a Module that has these tensors as parameters.",
        )
    return found


def _one(tokens: Tensor) -> Tensor:
    """(*batch, 1, dim) of ones."""
    return tokens.new_ones((*tokens.shape[:-2], 1, tokens.shape[-1]))
