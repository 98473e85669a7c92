"""MultiHeadAttention against nn.MultiheadAttention, self-attention, in training and in evaluation."""

import copy
import itertools

import torch
from torch import nn

import regard
from benchmarks.measure import compare, relative_error

PEER, LIBRARY = "nn.MultiheadAttention", "regard.MultiHeadAttention"

# (batch, tokens, dim, heads)
SIZES = [(8, 16, 256, 8), (8, 64, 256, 8), (8, 128, 512, 8), (4, 512, 512, 8), (1, 2048, 512, 8)]
DTYPES_ON = {"cpu": ("float32",), "cuda": ("float32", "bfloat16")}


def run(device: str) -> list[dict]:
    """Rows for training (forward and backward, gradients to the input too) and evaluation (no gradients)."""
    cases = itertools.product(DTYPES_ON[device], SIZES, (True, False))
    return [row(*size, training, device, dtype) for dtype, size, training in cases]


def row(batch: int, tokens: int, dim: int, heads: int, training: bool, device: str, dtype: str) -> dict:
    """One comparison with the same weights on both sides."""
    where = {"device": device, "dtype": getattr(torch, dtype)}
    theirs = nn.MultiheadAttention(dim, heads, batch_first=True, **where).train(training)
    ours = regard.MultiHeadAttention.from_torch(theirs).train(training)
    x = torch.randn(batch, tokens, dim, requires_grad=training, **where)

    def train(layer: nn.Module, output: torch.Tensor) -> None:
        torch.autograd.grad(output.sum(), (x, *layer.parameters()))

    def peer() -> None:
        output = theirs(x, x, x, need_weights=False)[0]
        if training:
            train(theirs, output)

    def library() -> None:
        output = ours(x)
        if training:
            train(ours, output)

    with torch.set_grad_enabled(training):
        results = {PEER: theirs(x, x, x, need_weights=False)[0], LIBRARY: ours(x)}
        exact = copy.deepcopy(ours).double()(x.double())
        errors = {name: relative_error(result, exact) for name, result in results.items()}
        timing = compare({PEER: peer, LIBRARY: library})
    size = {"batch": batch, "tokens": tokens, "dim": dim, "heads": heads}
    return {**size, "dtype": dtype, "training": training, "errors": errors, **timing}
