"""What a score or a bias that is code learns: the parameters of its module; a closure that learns is refused."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from regard.backends.problem import Problem
from regard.errors import RegardError
from regard.scores.forms import CallableForm


def learned_by_code(problem: Problem, score: object, biases: Sequence[object]) -> tuple[Tensor, ...]:
    """The parameters of `score` and of `biases`, where the problem calls them, that want a gradient.

    Each is tried on one pair, the same on every rank: should its result want a gradient of something else as well,
    nobody would know of that in the backward pass, when blocks are recomputed.
    """
    if not problem.is_code or not torch.is_grad_enabled():
        return ()
    found: dict[int, Tensor] = {}
    form, device = problem.form, problem.value.device
    if isinstance(form, CallableForm):
        tile = _tried("score", device, form.function, _one(form.query), _one(form.key))
        found |= _parameters("score", [score], tile)
    if problem.bias is not None and not isinstance(problem.bias, Tensor):
        position = torch.arange(1, device=device)
        found |= _parameters("bias", biases, _tried("bias", device, problem.bias, position, position))
    return tuple(found.values())


def _tried(argument: str, device: torch.device, function: Callable[..., Tensor], *given: Tensor) -> Tensor:
    """What a function says of one pair; one that draws random numbers would say something else when recomputed."""
    before = _random_state(device)
    tile = function(*given)
    if not torch.equal(before, _random_state(device)):
        raise RegardError(
            argument,
            got="a callable that draws random numbers",
            needed="a function of its tokens alone, because the backward pass recomputes blocks, and would draw others",
            repair="Call eval() on a module with dropout, or add the noise to the tokens before.",
        )
    return tile


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _parameters(argument: str, sources: Sequence[object], tile: Tensor) -> dict[int, Tensor]:
    """The parameters of modules and the tensors among `sources` that want a gradient, by id."""
    parameters: list[Tensor] = [source for source in sources if isinstance(source, Tensor)]
    for source in sources:
        parameters += source.parameters() if isinstance(source, nn.Module) else ()
    found: dict[int, Tensor] = {id(parameter): parameter for parameter in parameters if parameter.requires_grad}
    lost = [leaf for leaf in _leaves(tile, found.values()) if id(leaf) not in found]
    if lost:
        raise RegardError(
            argument,
            got=f"a callable that depends on tensors which require gradients{_beside(found, lost)}",
            needed="a torch.nn.Module, whose parameters can be found",
            repair="Write it as a Module that has these tensors as parameters.",
        )
    return found


def _beside(found: dict[int, Tensor], lost: list[Tensor]) -> str:
    """For a module that is nearly right: which tensors it does not own."""
    shapes = ", ".join(str(tuple(leaf.shape)) for leaf in lost)
    return f" and are no parameters of it, of shape {shapes}" if found else ""


def _leaves(tile: Tensor, owned: Iterable[Tensor]) -> Iterator[Tensor]:
    """Every tensor at which a gradient of the tile would end, once: what the nodes of its graph accumulate into.

    owned: parameters, which may have been made from others (by `torch.func.functional_call`); beyond them nobody looks.
    """
    ahead, seen = [tile.grad_fn], {parameter.grad_fn for parameter in owned if parameter.grad_fn is not None}
    if tile.is_leaf and tile.requires_grad:
        yield tile
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            yield leaf
        ahead += [following for following, _ in node.next_functions]


def _one(tokens: Tensor) -> Tensor:
    """(*batch, 1, dim) of ones."""
    return tokens.new_ones((*tokens.shape[:-2], 1, tokens.shape[-1]))
