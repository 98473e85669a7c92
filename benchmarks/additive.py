"""Additive attention against its textbook form, which builds a (queries x keys x hidden) tensor."""

import torch
from torch import Tensor

import regard
from benchmarks.measure import compare, relative_error

SIZES = [(2, 512, 128, 64)]


def run(device: str) -> list[dict]:
    """Rows for forward, and for forward and backward."""
    return [row(*size, backward=backward, device=device) for size in SIZES for backward in (False, True)]


def textbook(a: Tensor, b: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """Eq. 12 as books write it, after the projections."""
    scores = (torch.tanh(a.unsqueeze(-2) + b.unsqueeze(-3)) * weight).sum(-1)
    return scores.softmax(-1) @ value


def row(batch: int, tokens: int, hidden: int, value_dim: int, backward: bool, device: str) -> dict:
    """One comparison, with the relative L2 error of output and gradients of both against float64."""
    torch.manual_seed(0)
    a, b = (torch.randn(batch, tokens, hidden, device=device) for _ in range(2))
    value = torch.randn(batch, tokens, value_dim, device=device)
    weight = 2 * torch.randn(hidden, device=device) / hidden**0.5
    score = regard.scores.Additive.of_projected(hidden)
    score.weight.data = weight
    inputs = [x.requires_grad_(backward) for x in (a, b, value)]
    weight = weight.clone().requires_grad_(backward)

    def peer() -> list[Tensor]:
        output = textbook(*inputs, weight)
        return [output, *(torch.autograd.grad(output.sum(), [*inputs, weight]) if backward else ())]

    def library() -> list[Tensor]:
        output = regard.attend(*inputs, score)
        return [output, *(torch.autograd.grad(output.sum(), [*inputs, score.weight]) if backward else ())]

    with torch.set_grad_enabled(backward):
        exact_inputs = [x.detach().double().requires_grad_(backward) for x in (*inputs, weight)]
        output = textbook(*exact_inputs)
        exact = [output, *(torch.autograd.grad(output.sum(), exact_inputs) if backward else ())]
        errors = {
            name: [relative_error(got, want) for got, want in zip(call(), exact, strict=True)]
            for name, call in (("textbook", peer), ("regard.attend", library))
        }
        del exact, output
        timing = compare({"textbook": peer, "regard.attend": library})
    size = {"batch": batch, "tokens": tokens, "hidden": hidden, "value_dim": value_dim}
    return {**size, "backward": backward, "errors": errors, **timing}
